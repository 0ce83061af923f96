#include "guard.h"

#include "cells.h"

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

static const uint32_t rings = ((1u << PROTOCOLS) - 1) << (ALGORITHM_RING * PROTOCOLS);

void guard_note(struct guard *guard, int algorithm, int protocol, float own_us, float row_us) {
    uint32_t bit = bit_of(algorithm, protocol);
    guard->rows |= bit;
    if (row_us >= CELLS_NEVER_US) {
        return; /* that is no time */
    }
    float ratio = row_us > 0.0f ? own_us / row_us : own_us > 0.0f ? CELLS_NEVER_US : 1.0f;
    if (algorithm != ALGORITHM_RING) {
        guard->others = ratio > guard->others ? ratio : guard->others;
    } else if (!(guard->timed & rings) || ratio < guard->ring) {
        guard->ring = ratio;
    }
    guard->timed |= bit;
}

void guard_apply(const struct guard *guard, struct cost_cells cells) {
    if (!(guard->timed & rings)) {
        return;
    }
    /* A cell without a row keeps NCCL's time, which is the table's as well. */
    bool has_own = cells_runnable(cells) & ~guard->rows & ~rings;
    bool is_alone = !has_own && !(guard->timed & ~rings);
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
