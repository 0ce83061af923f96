#include "decider.h"

#include <float.h>

#include "cells.h"

void decider_start(const struct rules *rules, bool hands_cells, bool unchecked, struct decider *decider) {
    bool guarded = guard_is_for(&rules->shape, hands_cells);
    *decider = (struct decider){.rules = rules,
                                .unchecked = unchecked,
                                .guarded = guarded,
                                .guard_us = guarded ? guard_least_us(&rules->shape) : FLT_MAX};
}

/* Whether NCCL holds Ring back in a call. Mostly one comparison: Ring's own time is too short for that. */
static inline bool holds_ring_back(const struct decider *decider, const struct call *call, struct cost_cells cells,
                                   const struct step *step) {
    if (step->algorithm != ALGORITHM_RING || ALGORITHM_RING >= cells.algorithms || step->protocol >= cells.protocols) {
        return false;
    }
    float time = cells.us[ALGORITHM_RING * cells.protocols + step->protocol];
    return time >= decider->guard_us && guard_is_of(call->collective) && guard_shows(cells, decider->guard_us);
}

/* A choice that is not the first of its row; what is found may be here. */
static const struct step *take_other(const struct lookup *lookup, uint32_t number, struct step *other) {
    *other = lookup_step(lookup, number);
    return other;
}

/* Whether NCCL can take a choice, which is preferred in the cells then. */
static inline bool take(const struct decider *decider, const struct call *call, const struct step *step,
                        struct cost_cells cells) {
    return !holds_ring_back(decider, call, cells, step) && cells_prefer(cells, step->algorithm, step->protocol);
}

/* The first choice behind `step` in its row that NCCL can take, as `take` does; NULL for none. */
static const struct step *take_next(const struct decider *decider, const struct call *call, const struct step *step,
                                    struct cost_cells cells, struct step *other) {
    while (step->more) {
        step = take_other(&decider->rules->lookup, step->number + 1, other);
        if (take(decider, call, step, cells)) {
            return step;
        }
    }
    return NULL;
}

/* The first of a row's choices. */
static inline const struct step *prefer(const struct decider *decider, const struct call *call, const struct step *row,
                                        struct cost_cells cells, struct step *other) {
    return take(decider, call, row, cells) ? row : take_next(decider, call, row, cells, other);
}

/* The same of the later rows that hold the call, where rows fall through. */
static const struct step *fall(const struct decider *decider, const struct call *call, struct cost_cells cells,
                               struct step *other) {
    bool held_back = decider->guarded && guard_is_of(call->collective) && guard_shows(cells, decider->guard_us);
    uint32_t runnable = cells_runnable(cells) & ~(held_back ? CELLS_OF_RING : 0);
    uint32_t next = lookup_fall(&decider->rules->lookup, call, runnable);
    return next ? prefer(decider, call, take_other(&decider->rules->lookup, next, other), cells, other) : NULL;
}

/* Whether a row that NCCL can run nothing of ends with nccl. */
static bool ends_with_own(const struct lookup *lookup, uint32_t number) {
    while (lookup->choices[number].more) {
        number++;
    }
    return lookup->choices[number].own;
}

/* The arm of a row that explores, by the communicator's own count of such calls, which is the same on all ranks; NULL where
 * the call is NCCL's own. In which block of each round an arm is taken changes from round to round: else it would always
 * meet the same calls of a step. */
static const struct step *arm_of(const struct decider *decider, const struct step *row, int collective,
                                 struct step *other) {
    const struct lookup *lookup = &decider->rules->lookup;
    const struct schedule *schedule = &lookup->schedules[lookup->choices[row->number].explores - 1];
    uint64_t count;
    if (!decider->explorer || !explorer_counts(decider->explorer, collective, &count) || count >= schedule->calls) {
        return NULL;
    }
    uint64_t block = count / schedule->block, round = block / schedule->every;
    uint64_t mixed = (round ^ round >> 15) * 0x9e3779b97f4a7c15u;
    if ((mixed >> 32) % schedule->every != block % schedule->every) {
        return NULL;
    }
    const struct step *arm = take_other(lookup, row->number + 1 + (uint32_t)(round % schedule->arms), other);
    return arm->algorithm < 0 ? NULL : arm;
}

static uint64_t chunk_key(int algorithm, int protocol) {
    return (uint64_t)(algorithm * PROTOCOLS + protocol) << 32;
}

/* NCCL asks for chunk sizes after all choices of a group, channel by channel and without the operation's size: what
 * was decided last is the best there is to go by, and the same on every rank. */
static void note_chunk(struct decider *decider, int collective, const struct step *taken) {
    if (lookup_is_tuned(collective)) {
        uint64_t noted = 0;
        if (taken && taken->sets_chunk) {
            uint32_t bytes = decider->rules->lookup.choices[taken->number].chunk_bytes;
            noted = chunk_key(taken->algorithm, taken->protocol) | bytes;
        }
        atomic_store_explicit(&decider->chunks[collective], noted, memory_order_relaxed);
    }
}

/* From 2.31 on NCCL asks about a call up to three times, and only the last time, with numPipeOps of 1 or more, for its
 * choice: before that for a comparison with symmetric kernels (ncclTuningCompute, 2.31.2). */
static inline bool is_choice(const struct call *call) {
    return call->pipelined > 0;
}

static void count_choice(struct decider *decider, const struct step *taken, const struct call *call) {
    if (counters_add(&decider->counters.decided[taken->number], 1) == 0) {
        const struct lookup *lookup = &decider->rules->lookup;
        unsigned line = lookup_line(lookup, taken->number);
        counters_say_first(&decider->counters, &lookup->choices[taken->number], line, call);
    }
}

/* The first row that holds a call, where it did not decide. */
static void count_first(struct decider *decider, const struct step *row, const struct step *taken) {
    const struct lookup *lookup = &decider->rules->lookup;
    if (!taken || lookup_line(lookup, taken->number) != lookup_line(lookup, row->number)) {
        counters_add(&decider->counters.unavailable[row->number], 1);
    }
}

static bool write_costs(struct decider *decider, const struct call *call, struct cost_cells cells) {
    const struct costs *costs = &decider->rules->costs;
    atomic_size_t *counts = is_choice(call) ? decider->counters.costs : NULL;
    if (costs->rows == 0 || costs_write(costs, call, cells, decider->guarded, counts) == 0) {
        return false;
    }
    if (counts) {
        counters_add(&decider->counters.totals->costed, 1);
    }
    return true;
}

enum decided decider_decide(struct decider *decider, const struct call *call, struct cost_cells cells, int *channels) {
    const struct lookup *lookup = &decider->rules->lookup;
    bool costed = write_costs(decider, call, cells), counts = is_choice(call);
    const struct step *row = lookup_find(lookup, call), *taken = NULL;
    struct step other;
    if (__builtin_expect(row->explores, 0)) {
        const struct step *arm = arm_of(decider, row, call->collective, &other);
        taken = arm && take(decider, call, arm, cells) ? arm : NULL;
        row = &lookup->nothing; /* without the arm it is as if there were no row */
    }
    bool matches = row->algorithm >= 0;
    if (matches) {
        taken = prefer(decider, call, row, cells, &other);
        if (!taken) {
            taken = fall(decider, call, cells, &other);
        }
        if (taken != row && counts) {
            count_first(decider, row, taken);
        }
    }
    note_chunk(decider, call->collective, taken);
    if (taken) {
        if (counts) {
            count_choice(decider, taken, call);
        }
        if (taken->channels > 0 && channels) {
            *channels = taken->channels;
        }
        return DECIDED_CELLS;
    }
    if (counts && (matches || !costed)) {
        counters_leave(&decider->counters, matches ? UNDECIDED_UNAVAILABLE : UNDECIDED_NO_ROW, call);
    } else if (counts) {
        counters_add(&decider->counters.totals->costed_alone, 1);
    }
    return costed ? DECIDED_CELLS : ends_with_own(lookup, row->number) ? DECIDED_OWN : DECIDED_NOTHING;
}

enum decided decider_choose(struct decider *decider, const struct call *call, float cells[CELLS], int *algorithm,
                            int *protocol, int *channels) {
    enum decided decided = decider_decide(decider, call, (struct cost_cells){cells, ALGORITHMS, PROTOCOLS}, channels);
    if (decided == DECIDED_CELLS) {
        int cell = legacy_fastest(cells);
        *algorithm = cell / PROTOCOLS;
        *protocol = cell % PROTOCOLS;
    }
    return decided;
}

void decider_explain(const struct decider *decider, const struct call *call, struct cost_cells cells,
                     struct explanation *explanation) {
    const struct lookup *lookup = &decider->rules->lookup;
    *explanation = (struct explanation){0};
    for (int cell = 0; cell < CELLS; cell++) {
        int algorithm = cell / PROTOCOLS, protocol = cell % PROTOCOLS;
        bool there = algorithm < cells.algorithms && protocol < cells.protocols;
        if (there && cells.us[algorithm * cells.protocols + protocol] >= 0.0f) {
            explanation->costs[cell] =
                costs_line(&decider->rules->costs, call->collective, call->bytes, algorithm, protocol);
        }
    }
    bool costed = costs_write(&decider->rules->costs, call, cells, decider->guarded, NULL) > 0;
    const struct step *row = lookup_find(lookup, call), *taken = NULL;
    struct step other;
    if (row->algorithm >= 0) {
        taken = prefer(decider, call, row, cells, &other);
    }
    if (row->explores) {
        return; /* by which calls the communicator has made */
    }
    if (!taken && row->algorithm >= 0) {
        taken = fall(decider, call, cells, &other);
    }
    if (taken) {
        explanation->decision = lookup_line(lookup, taken->number);
    } else {
        explanation->unavailable = lookup_line(lookup, row->number);
        explanation->undecided = !costed && !ends_with_own(lookup, row->number);
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
