#include "cells.h"

#include <float.h>
#include <stdint.h>
#include <string.h>

#include "abi.h"

/* An hour in microseconds: through 2.28 NCCL takes no cell from here on, so raising others above one would leave it
 * without any (topoGetAlgoInfo, src/enqueue.cc, v2.28.9-1). */
static const float too_slow = 3600000000.0f;

/* The mark of what NCCL runs when it is told to, and never by itself: PAT of several ranks per node, which has no model
 * (ncclTuningPatModelSim, src/tuning/pat.cc, v2.31.2-1). Releases that take no cell of an hour do not write it. */
static const float without_model = FLT_MAX / 2;

/* -1 is "ignored"; other negative times and NaN, which NCCL does not take either, fail here as well. */
static bool can_be_taken(float time) {
    return time >= 0.0f && (time < too_slow || time == without_model);
}

/* The next float above a time that is not negative. Never a denormal: code built with -ffast-math makes the processor
 * read those as 0, and what was to be above would be equal. (nextafterf is in libm.) */
static float just_above(float time) {
    if (time < FLT_MIN) {
        return FLT_MIN;
    }
    uint32_t bits;
    memcpy(&bits, &time, sizeof bits);
    bits++;
    memcpy(&time, &bits, sizeof bits);
    return time;
}

/* No branch on a cell, so that the loop can be vectorised: times come in no order a processor could predict. */
static inline void put_above(float *cells, int count, float above) {
    for (int cell = 0; cell < count; cell++) {
        float old = cells[cell];
        cells[cell] = ((old >= 0.0f) & (old < above)) ? above : old;
    }
}

bool cells_prefer(struct cost_cells cells, int algorithm, int protocol) {
    if (algorithm >= cells.algorithms || protocol >= cells.protocols) {
        return false;
    }
    int chosen = algorithm * cells.protocols + protocol, count = cells.algorithms * cells.protocols;
    float time = cells.us[chosen];
    if (!can_be_taken(time)) {
        return false;
    }
    float above = just_above(time);
    if (count == CELLS) { /* that of today's NCCL, which a compiler unrolls */
        put_above(cells.us, CELLS, above);
    } else {
        put_above(cells.us, count, above);
    }
    cells.us[chosen] = time;
    return true;
}

uint32_t cells_runnable(struct cost_cells cells) {
    uint32_t runnable = 0;
    for (int algorithm = 0; algorithm < ALGORITHMS && algorithm < cells.algorithms; algorithm++) {
        for (int protocol = 0; protocol < PROTOCOLS && protocol < cells.protocols; protocol++) {
            uint32_t taken = can_be_taken(cells.us[algorithm * cells.protocols + protocol]);
            runnable |= taken << (algorithm * PROTOCOLS + protocol);
        }
    }
    return runnable;
}

/* No time is known; below "never", so that a row of costs can still put others last. */
static const float unknown_us = 2000000000.0f;

/* Source of what there is: the kernels and topoGetAlgoInfo, src/enqueue.cc, v2.19.3-1 to v2.21.5-1. */
static bool runs(const struct call *call, int algorithm, int protocol, const struct shape *shape, bool unchecked) {
    bool reduces = call->collective == COLLECTIVE_ALL_REDUCE;
    bool spreads = call->collective == COLLECTIVE_ALL_GATHER || call->collective == COLLECTIVE_REDUCE_SCATTER;
    bool collnet = call->collnet == 1, nvls = call->nvls == 1, simple = protocol == PROTOCOL_SIMPLE;
    switch (algorithm) {
    case ALGORITHM_RING:
        return protocol != PROTOCOL_LL128 || unchecked;
    case ALGORITHM_TREE:
        return reduces && (protocol != PROTOCOL_LL128 || unchecked);
    case ALGORITHM_NVLS:
        return (reduces || spreads) && simple && nvls && shape->known && shape->nodes == 1;
    case ALGORITHM_NVLS_TREE:
        return reduces && simple && nvls && shape->known && shape->nodes > 1;
    case ALGORITHM_COLLNET_DIRECT:
    case ALGORITHM_COLLNET_CHAIN:
        return reduces && simple && collnet && unchecked;
    default:
        return false;
    }
}

void legacy_fill(float cells[CELLS], const struct call *call, const struct shape *shape, bool unchecked) {
    for (int cell = 0; cell < CELLS; cell++) {
        bool there = runs(call, cell / PROTOCOLS, cell % PROTOCOLS, shape, unchecked);
        cells[cell] = there ? unknown_us : IGNORED_US;
    }
}

int legacy_fastest(const float cells[CELLS]) {
    int fastest = -1;
    for (int cell = 0; cell < CELLS; cell++) {
        if (cells[cell] >= 0.0f && (fastest < 0 || cells[cell] < cells[fastest])) {
            fastest = cell;
        }
    }
    return fastest;
}

/* updateCollCostTable, src/enqueue.cc, v2.24.3-1 to v2.30.7-1; ncclTopoGetAlgoTime, src/graph/tuning.cc, v2.31.2-1. */
static const float penalty = 1024.0f;
enum { LEAST_RANKS = 9 };

/* Between 1, where NCCL's times and the table's agree, and 1024. */
static const float apart = 64.0f;

bool guard_is_for(const struct shape *shape, bool hands_cells) {
    return hands_cells && shape->known && shape->ranks >= LEAST_RANKS;
}

static uint32_t bit_of(int algorithm, int protocol) {
    return 1u << (algorithm * PROTOCOLS + protocol);
}

bool guard_shows(struct cost_cells cells, float least_us) {
    float ring = too_slow, others = too_slow;
    for (int algorithm = 0; algorithm < cells.algorithms; algorithm++) {
        for (int protocol = 0; protocol < cells.protocols; protocol++) {
            float time = cells.us[algorithm * cells.protocols + protocol];
            float *least = algorithm == ALGORITHM_RING ? &ring : &others;
            *least = time >= 0.0f && time < *least ? time : *least;
        }
    }
    /* A row of costs that says never is no guard. */
    return ring >= least_us && ring < CELLS_NEVER_US && others < too_slow && ring > apart * others;
}

void guard_note(struct guard *guard, int algorithm, int protocol, float own_us, float row_us) {
    uint32_t bit = bit_of(algorithm, protocol);
    guard->rows |= bit;
    if (row_us >= CELLS_NEVER_US || own_us == without_model) {
        return; /* one of them is no time */
    }
    float ratio = row_us > 0.0f ? own_us / row_us : own_us > 0.0f ? CELLS_NEVER_US : 1.0f;
    if (algorithm != ALGORITHM_RING) {
        guard->others = ratio > guard->others ? ratio : guard->others;
    } else if (!(guard->timed & CELLS_OF_RING) || ratio < guard->ring) {
        guard->ring = ratio;
    }
    guard->timed |= bit;
}

void guard_apply(const struct guard *guard, struct cost_cells cells) {
    if (!(guard->timed & CELLS_OF_RING)) {
        return;
    }
    /* A cell without a row keeps NCCL's time, which is the table's as well. */
    bool has_own = cells_runnable(cells) & ~guard->rows & ~CELLS_OF_RING;
    bool is_alone = !has_own && !(guard->timed & ~CELLS_OF_RING);
    float others = (has_own || is_alone) && guard->others < 1.0f ? 1.0f : guard->others;
    if (!(guard->ring > apart * others)) {
        return;
    }
    for (int protocol = 0; protocol < PROTOCOLS && protocol < cells.protocols; protocol++) {
        if (guard->timed & bit_of(ALGORITHM_RING, protocol)) {
            float *cell = &cells.us[ALGORITHM_RING * cells.protocols + protocol];
            float time_us = *cell * penalty;
            *cell = time_us < CELLS_NEVER_US ? time_us : CELLS_NEVER_US;
        }
    }
}
