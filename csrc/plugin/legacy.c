#include "legacy.h"

#include "cells.h"

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
