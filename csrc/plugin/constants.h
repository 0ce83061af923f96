/* The numbers of NCCL's model that a tuner may change at init, since 2.28: ncclTunerConstants_v5_t, all doubles.
 * Layout: src/include/plugin/tuner/tuner_v5.h, v2.28.9-1 (the same through 2.32.3). */
#ifndef PLUGIN_CONSTANTS_H
#define PLUGIN_CONSTANTS_H

#include "abi.h"

enum { LINKS = 3, GENERATIONS = 4, NODE_COUNTS = 3 };

struct constants {
    double base_latencies[ALGORITHMS][PROTOCOLS];
    double hw_latencies[LINKS][ALGORITHMS][PROTOCOLS];
    double ll_max_bws[GENERATIONS][NODE_COUNTS];
    double ring_ll128_bws[GENERATIONS][NODE_COUNTS];
    double tree_ll128_bws[GENERATIONS][NODE_COUNTS];
    double tree_bws[GENERATIONS][NODE_COUNTS];
    double nvls_tree_bws[GENERATIONS][NODE_COUNTS];
};

_Static_assert(offsetof(struct constants, base_latencies) == 0, "ncclTunerConstants_v5_t");
_Static_assert(offsetof(struct constants, hw_latencies) == 21 * 8, "ncclTunerConstants_v5_t");
_Static_assert(offsetof(struct constants, ll_max_bws) == 84 * 8, "ncclTunerConstants_v5_t");
_Static_assert(offsetof(struct constants, ring_ll128_bws) == 96 * 8, "ncclTunerConstants_v5_t");
_Static_assert(offsetof(struct constants, tree_ll128_bws) == 108 * 8, "ncclTunerConstants_v5_t");
_Static_assert(offsetof(struct constants, tree_bws) == 120 * 8, "ncclTunerConstants_v5_t");
_Static_assert(offsetof(struct constants, nvls_tree_bws) == 132 * 8, "ncclTunerConstants_v5_t");
_Static_assert(sizeof(struct constants) == 144 * 8, "ncclTunerConstants_v5_t");

/* Where a number lies among the doubles. */
static inline int constant_base_latency(int algorithm, int protocol) {
    return algorithm * PROTOCOLS + protocol;
}

static inline int constant_link_latency(int link, int algorithm, int protocol) {
    return (link + 1) * CELLS + algorithm * PROTOCOLS + protocol;
}

static inline int constant_cap(int cap, int generation, int nodes) {
    return (LINKS + 1) * CELLS + (cap * GENERATIONS + generation) * NODE_COUNTS + nodes;
}

#endif
