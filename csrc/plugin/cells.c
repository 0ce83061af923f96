#include "cells.h"

#include <float.h>
#include <stdint.h>
#include <string.h>

#include "abi.h"

/* An hour in microseconds: through 2.28 NCCL takes no cell from here on, so raising others above one would leave it
 * without any (topoGetAlgoInfo, src/enqueue.cc, v2.28.9-1). */
static const float too_slow = 3600000000.0f;

/* -1 is "ignored"; other negative times and NaN, which NCCL does not take either, fail here as well. */
static bool can_be_taken(float time) {
    return time >= 0.0f && time < too_slow;
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
