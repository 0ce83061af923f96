#include "decider.h"

#include "cells.h"
#include "guard.h"
#include "legacy.h"

void decider_start(const struct rules *rules, bool hands_cells, bool unchecked, struct decider *decider) {
    *decider =
        (struct decider){.rules = rules, .unchecked = unchecked, .guarded = guard_is_for(&rules->shape, hands_cells)};
}

/* NCCL makes the calls of one communicator one after the other, so a plain load and store counts exactly and costs a
 * tenth of a locked addition; were they ever to overlap, a count would be low and nothing else wrong. */
static void count(atomic_size_t *counter) {
    size_t value = atomic_load_explicit(counter, memory_order_relaxed);
    atomic_store_explicit(counter, value + 1, memory_order_relaxed);
}

/* The first of the choices that NCCL can take, or NULL; it is preferred in the cells then. */
static const struct choice *prefer(const struct choice *choice, float *cells, int algorithms, int protocols) {
    while (!cells_prefer(cells, algorithms, protocols, choice->algorithm, choice->protocol)) {
        if (!choice->more) {
            return NULL;
        }
        choice++;
    }
    return choice;
}

/* The choice that the table makes, preferred in the cells, or NULL; `row` is the first that holds the call. Inlined: a
 * call with nine arguments takes as long as the search. */
__attribute__((always_inline)) static inline const struct choice *take(const struct decider *decider, int collective,
                                                                       size_t bytes, int pipelined, int registered,
                                                                       float *cells, int algorithms, int protocols,
                                                                       const struct choice **row) {
    *row = lookup_find(&decider->rules->lookup, collective, bytes, pipelined, registered);
    const struct choice *taken = (*row)->algorithm < 0 ? NULL : prefer(*row, cells, algorithms, protocols);
    if (!taken && (*row)->algorithm >= 0) {
        uint32_t runnable = cells_runnable(cells, algorithms, protocols);
        const struct choice *next =
            lookup_fall(&decider->rules->lookup, collective, bytes, pipelined, registered, runnable);
        taken = next ? prefer(next, cells, algorithms, protocols) : NULL;
    }
    return taken;
}

static uint64_t chunk_key(int algorithm, int protocol) {
    return (uint64_t)(algorithm * PROTOCOLS + protocol) << 32;
}

/* NCCL asks for chunk sizes after all choices of a group, channel by channel and without the operation's size: what
 * was decided last is the best there is to go by, and the same on every rank. */
static void note_chunk(struct decider *decider, int collective, const struct choice *taken) {
    if (collective >= 0 && collective < COLLECTIVES) {
        uint64_t noted = taken ? chunk_key(taken->algorithm, taken->protocol) | taken->chunk_bytes : 0;
        atomic_store_explicit(&decider->chunks[collective], noted, memory_order_relaxed);
    }
}

bool decider_decide(struct decider *decider, int collective, size_t bytes, int pipelined, int registered, float *cells,
                    int algorithms, int protocols, int *channels) {
    count(&decider->calls);
    struct call call = {.bytes = bytes, .collective = collective, .pipelined = pipelined};
    struct cost_cells costs = {cells, algorithms, protocols};
    bool costed = costs_write(&decider->rules->costs, &call, costs, decider->guarded) > 0;
    if (costed) {
        count(&decider->costed);
    }
    const struct choice *row;
    const struct choice *taken =
        take(decider, collective, bytes, pipelined, registered, cells, algorithms, protocols, &row);
    note_chunk(decider, collective, taken);
    if (taken) {
        count(&decider->decided);
        if (taken->channels > 0 && channels) {
            *channels = taken->channels;
        }
    } else if (row->algorithm >= 0) {
        count(&decider->unavailable);
    }
    return costed || taken;
}

bool decider_choose(struct decider *decider, int collective, size_t bytes, int pipelined, float cells[CELLS],
                    int *algorithm, int *protocol, int *channels) {
    bool decided = decider_decide(decider, collective, bytes, pipelined, 0, cells, ALGORITHMS, PROTOCOLS, channels);
    if (decided) {
        int cell = legacy_fastest(cells);
        *algorithm = cell / PROTOCOLS;
        *protocol = cell % PROTOCOLS;
    }
    return decided;
}

void decider_explain(const struct decider *decider, const struct call *call, struct cost_cells cells,
                     struct explanation *explanation) {
    *explanation = (struct explanation){0};
    for (int cell = 0; cell < CELLS; cell++) {
        int algorithm = cell / PROTOCOLS, protocol = cell % PROTOCOLS;
        bool there = algorithm < cells.algorithms && protocol < cells.protocols;
        if (there && cells.us[algorithm * cells.protocols + protocol] >= 0.0f) {
            explanation->costs[cell] =
                costs_line(&decider->rules->costs, call->collective, call->bytes, algorithm, protocol);
        }
    }
    costs_write(&decider->rules->costs, call, cells, decider->guarded);
    const struct choice *row;
    const struct choice *taken = take(decider, call->collective, call->bytes, call->pipelined, call->registered,
                                      cells.us, cells.algorithms, cells.protocols, &row);
    if (taken) {
        explanation->decision = lookup_line(&decider->rules->lookup, taken);
    } else {
        explanation->unavailable = lookup_line(&decider->rules->lookup, row);
    }
}

void decider_chunk(const struct decider *decider, int collective, int algorithm, int protocol, size_t *chunk_bytes) {
    bool is_cell = algorithm >= 0 && algorithm < ALGORITHMS && protocol >= 0 && protocol < PROTOCOLS;
    if (collective < 0 || collective >= COLLECTIVES || !is_cell) {
        return;
    }
    uint64_t noted = atomic_load_explicit(&decider->chunks[collective], memory_order_relaxed);
    uint32_t bytes = (uint32_t)noted;
    if (bytes > 0 && noted == (chunk_key(algorithm, protocol) | bytes)) {
        *chunk_bytes = bytes;
    }
}
