#include "decider.h"

#include "cells.h"
#include "guard.h"
#include "legacy.h"

void decider_start(const struct rules *rules, bool hands_cells, bool unchecked, struct decider *decider) {
    *decider =
        (struct decider){.rules = rules, .unchecked = unchecked, .guarded = guard_is_for(&rules->shape, hands_cells)};
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

static void count_choice(struct decider *decider, const struct choice *taken, int collective, size_t bytes) {
    struct choice_count *choices = decider->counters.choices;
    if (choices && counters_add(&choices[taken - decider->rules->lookup.choices].decided, 1) == 0) {
        counters_say_first(&decider->counters, taken, lookup_line(&decider->rules->lookup, taken), collective, bytes);
    }
}

/* The first row that holds a call, where it did not decide. */
static void count_first(struct decider *decider, const struct choice *row, const struct choice *taken) {
    const struct lookup *lookup = &decider->rules->lookup;
    bool another = !taken || lookup_line(lookup, taken) != lookup_line(lookup, row);
    if (another && decider->counters.choices) {
        counters_add(&decider->counters.choices[row - lookup->choices].unavailable, 1);
    }
}

bool decider_decide(struct decider *decider, int collective, size_t bytes, int pipelined, int registered, float *cells,
                    int algorithms, int protocols, int *channels) {
    counters_add(&decider->calls, 1);
    struct call call = {.bytes = bytes, .collective = collective, .pipelined = pipelined};
    struct cost_cells costs = {cells, algorithms, protocols};
    bool costed = costs_write(&decider->rules->costs, &call, costs, decider->guarded, decider->counters.costs) > 0;
    if (costed) {
        counters_add(&decider->costed, 1);
    }
    const struct choice *row;
    const struct choice *taken =
        take(decider, collective, bytes, pipelined, registered, cells, algorithms, protocols, &row);
    note_chunk(decider, collective, taken);
    if (taken) {
        counters_add(&decider->decided, 1);
        count_choice(decider, taken, collective, bytes);
        if (taken->channels > 0 && channels) {
            *channels = taken->channels;
        }
    } else if (row->algorithm >= 0) {
        counters_add(&decider->unavailable, 1);
        counters_leave(&decider->counters, UNDECIDED_UNAVAILABLE, collective, bytes);
    } else if (!costed) {
        counters_leave(&decider->counters, UNDECIDED_NO_ROW, collective, bytes);
    }
    if (row != taken && row->algorithm >= 0) {
        count_first(decider, row, taken);
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
    costs_write(&decider->rules->costs, call, cells, decider->guarded, NULL);
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
