/* The numbers of NCCL's model that a tuner may change at init, since 2.28: ncclTunerConstants_v5_t, all doubles.
 * Layout: src/include/plugin/tuner/tuner_v5.h, v2.28.9-1 (the same through 2.32.3). */
#ifndef PLUGIN_INTERFACE_H
#define PLUGIN_INTERFACE_H

#include "abi.h"
#include "table.h"

enum { LINKS = 3, GENERATIONS = 4, NODE_COUNTS = 3, CAPS = 5 };
enum { CONSTANTS = (LINKS + 1) * CELLS + CAPS * GENERATIONS * NODE_COUNTS };

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
_Static_assert(sizeof(struct constants) == CONSTANTS * 8, "ncclTunerConstants_v5_t");

/* Version 7 hands over the same with a fifth row of compute capability, Rubin's, in each cap: ncclTunerConstants_v7_t,
 * src/include/plugin/tuner/tuner_v7.h of NCCL 2.32.6. */
enum { MOST_GENERATIONS = 5, MOST_CONSTANTS = (LINKS + 1) * CELLS + CAPS * MOST_GENERATIONS * NODE_COUNTS };

struct constants_v7 {
    double base_latencies[ALGORITHMS][PROTOCOLS];
    double hw_latencies[LINKS][ALGORITHMS][PROTOCOLS];
    double ll_max_bws[MOST_GENERATIONS][NODE_COUNTS];
    double ring_ll128_bws[MOST_GENERATIONS][NODE_COUNTS];
    double tree_ll128_bws[MOST_GENERATIONS][NODE_COUNTS];
    double tree_bws[MOST_GENERATIONS][NODE_COUNTS];
    double nvls_tree_bws[MOST_GENERATIONS][NODE_COUNTS];
};

_Static_assert(offsetof(struct constants_v7, ll_max_bws) == 84 * 8, "ncclTunerConstants_v7_t");
_Static_assert(offsetof(struct constants_v7, ring_ll128_bws) == 99 * 8, "ncclTunerConstants_v7_t");
_Static_assert(offsetof(struct constants_v7, tree_ll128_bws) == 114 * 8, "ncclTunerConstants_v7_t");
_Static_assert(offsetof(struct constants_v7, tree_bws) == 129 * 8, "ncclTunerConstants_v7_t");
_Static_assert(offsetof(struct constants_v7, nvls_tree_bws) == 144 * 8, "ncclTunerConstants_v7_t");
_Static_assert(sizeof(struct constants_v7) == MOST_CONSTANTS * 8, "ncclTunerConstants_v7_t");

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

/* Where the number that lies at `number` in struct constants lies among as many generations. */
static inline int constant_among(int generations, int number) {
    int first = (LINKS + 1) * CELLS, cap = (number - first) / (GENERATIONS * NODE_COUNTS);
    return number < first ? number : number + cap * (generations - GENERATIONS) * NODE_COUNTS;
}

/* What the plugin exports: ncclTuner_v1_t to v7_t, one structure for each version of NCCL's tuner interface.
 * Layouts: src/include/nccl_tuner.h, v2.19.3-1 (v1), v2.21.5-1 (v2), v2.22.3-1 (v3), and
 * src/include/plugin/tuner/tuner_v{3,4}.h, v2.27.7-1, tuner_v5.h, v2.28.9-1 (the same through v2.29.7-1), and
 * tuner_v6.h, v2.30.3-1; tuner_v7.h, NCCL 2.32.6. */

/* 2.19 and 2.20: no context. */
struct plugin_v1 {
    const char *name;
    int (*init)(size_t ranks, size_t nodes, nccl_logger logger);
    int (*get_coll_info)(int collective, size_t bytes, int collnet, int nvls, int pipelined, int *algorithm,
                         int *protocol, int *channels);
    int (*destroy)(void);
};

/* 2.21 */
struct plugin_v2 {
    const char *name;
    int (*init)(size_t ranks, size_t nodes, nccl_logger logger, void **context);
    int (*get_coll_info)(void *context, int collective, size_t bytes, int collnet, int nvls, int pipelined,
                         int *algorithm, int *protocol, int *channels);
    int (*destroy)(void *context);
};

/* 2.22 and 2.23: the cost table, declared as pointers to rows; what NCCL passes is one float[algorithms][protocols]. */
struct plugin_v3 {
    const char *name;
    int (*init)(size_t ranks, size_t nodes, nccl_logger logger, void **context);
    int (*get_coll_info)(void *context, int collective, size_t bytes, int pipelined, float **costs, int algorithms,
                         int protocols, int *channels);
    int (*destroy)(void *context);
};

typedef int coll_info_v4(void *context, int collective, size_t bytes, int pipelined, float **costs, int algorithms,
                         int protocols, int registered, int *channels);

/* 2.24 to 2.27: whether buffers are registered. */
struct plugin_v4 {
    const char *name;
    int (*init)(size_t ranks, size_t nodes, nccl_logger logger, void **context);
    coll_info_v4 *get_coll_info;
    int (*destroy)(void *context);
};

struct domains {
    int count, fewest_ranks, most_ranks;
};

/* 2.28 and 2.29: NVLink domains and the constants of NCCL's model. */
struct plugin_v5 {
    const char *name;
    int (*init)(void **context, uint64_t communicator, size_t ranks, size_t nodes, nccl_logger logger,
                struct domains *domains, struct constants *constants);
    coll_info_v4 *get_coll_info;
    int (*finalize)(void *context);
};

typedef int chunk_size_v6(void *context, int collective, size_t bytes, int algorithm, int protocol, int channels,
                          size_t *chunk_bytes);

/* 2.30 and later: sizes of chunks. */
struct plugin_v6 {
    struct plugin_v5 base;
    chunk_size_v6 *get_chunk_size;
};

/* 2.32.6 and later: constants of five generations. */
struct plugin_v7 {
    const char *name;
    int (*init)(void **context, uint64_t communicator, size_t ranks, size_t nodes, nccl_logger logger,
                struct domains *domains, struct constants_v7 *constants);
    coll_info_v4 *get_coll_info;
    int (*finalize)(void *context);
    chunk_size_v6 *get_chunk_size;
};

_Static_assert(offsetof(struct plugin_v1, name) == 0, "ncclTuner_v1_t");
_Static_assert(offsetof(struct plugin_v1, init) == 8, "ncclTuner_v1_t");
_Static_assert(offsetof(struct plugin_v1, get_coll_info) == 16, "ncclTuner_v1_t");
_Static_assert(offsetof(struct plugin_v1, destroy) == 24, "ncclTuner_v1_t");
_Static_assert(sizeof(struct plugin_v1) == 32, "ncclTuner_v1_t");

_Static_assert(offsetof(struct plugin_v2, name) == 0, "ncclTuner_v2_t");
_Static_assert(offsetof(struct plugin_v2, init) == 8, "ncclTuner_v2_t");
_Static_assert(offsetof(struct plugin_v2, get_coll_info) == 16, "ncclTuner_v2_t");
_Static_assert(offsetof(struct plugin_v2, destroy) == 24, "ncclTuner_v2_t");
_Static_assert(sizeof(struct plugin_v2) == 32, "ncclTuner_v2_t");

_Static_assert(offsetof(struct plugin_v3, name) == 0, "ncclTuner_v3_t");
_Static_assert(offsetof(struct plugin_v3, init) == 8, "ncclTuner_v3_t");
_Static_assert(offsetof(struct plugin_v3, get_coll_info) == 16, "ncclTuner_v3_t");
_Static_assert(offsetof(struct plugin_v3, destroy) == 24, "ncclTuner_v3_t");
_Static_assert(sizeof(struct plugin_v3) == 32, "ncclTuner_v3_t");

_Static_assert(offsetof(struct plugin_v4, name) == 0, "ncclTuner_v4_t");
_Static_assert(offsetof(struct plugin_v4, init) == 8, "ncclTuner_v4_t");
_Static_assert(offsetof(struct plugin_v4, get_coll_info) == 16, "ncclTuner_v4_t");
_Static_assert(offsetof(struct plugin_v4, destroy) == 24, "ncclTuner_v4_t");
_Static_assert(sizeof(struct plugin_v4) == 32, "ncclTuner_v4_t");

_Static_assert(sizeof(struct domains) == 12, "ncclNvlDomainInfo_v5_t");
_Static_assert(offsetof(struct plugin_v5, name) == 0, "ncclTuner_v5_t");
_Static_assert(offsetof(struct plugin_v5, init) == 8, "ncclTuner_v5_t");
_Static_assert(offsetof(struct plugin_v5, get_coll_info) == 16, "ncclTuner_v5_t");
_Static_assert(offsetof(struct plugin_v5, finalize) == 24, "ncclTuner_v5_t");
_Static_assert(sizeof(struct plugin_v5) == 32, "ncclTuner_v5_t");

_Static_assert(offsetof(struct plugin_v6, base) == 0, "ncclTuner_v6_t begins as ncclTuner_v5_t");
_Static_assert(offsetof(struct plugin_v6, get_chunk_size) == 32, "ncclTuner_v6_t");
_Static_assert(sizeof(struct plugin_v6) == 40, "ncclTuner_v6_t");

_Static_assert(offsetof(struct plugin_v7, name) == 0, "ncclTuner_v7_t");
_Static_assert(offsetof(struct plugin_v7, init) == 8, "ncclTuner_v7_t");
_Static_assert(offsetof(struct plugin_v7, get_coll_info) == 16, "ncclTuner_v7_t");
_Static_assert(offsetof(struct plugin_v7, finalize) == 24, "ncclTuner_v7_t");
_Static_assert(offsetof(struct plugin_v7, get_chunk_size) == 32, "ncclTuner_v7_t");
_Static_assert(sizeof(struct plugin_v7) == 40, "ncclTuner_v7_t");

/* For whoever tries a table without NCCL. It lies behind what NCCL reads of version 6, so that the object exports no
 * symbol but those NCCL looks for. */
struct trial {
    /* Which rows decide a call by a plugin of `version` with this context; it is neither counted nor answered. Versions
     * 1 and 2 hand over no cells; those of the others are written as the plugin would. */
    void (*explain)(int version, const void *context, const struct call *call, struct cost_cells cells,
                    struct explanation *explanation);
    /* Has a table that is named again read again. No communicator may be left, and none in the making. */
    void (*forget_tables)(void);
};

struct plugin_v6_and_trial {
    struct plugin_v6 nccl;
    const struct trial *trial; /* without functions in the plugin that forces */
};

/* A new communicator, and what NCCL says of it. */
#define TUNER_NAME "nccl-tuner"

struct opening {
    struct shape shape;      /* where it is not known whose calls will come, that of the first who might */
    int version;             /* of the interface, that NCCL calls by */
    bool hands_cells;        /* NCCL hands over its cost table, in which what it cannot run is ignored: 2.22 on */
    bool chained;            /* another tuner is asked where the table leaves a call */
    double *constants;       /* of NCCL's model, which may be changed; NULL where it does not hand them over */
    int generations;         /* of GPUs in the constants: 4, and 5 in version 7 */
    uint64_t communicator;   /* from version 5 on */
    struct domains *domains; /* from version 5 on */
    int nccl;                /* 22809 for 2.28.9; 0 where it is not known */
    nccl_logger logger;
};

#define EXPORTED __attribute__((visibility("default"))) extern const

EXPORTED struct plugin_v1 ncclTunerPlugin_v1;
EXPORTED struct plugin_v2 ncclTunerPlugin_v2;
EXPORTED struct plugin_v3 ncclTunerPlugin_v3;
EXPORTED struct plugin_v4 ncclTunerPlugin_v4;
EXPORTED struct plugin_v5 ncclTunerPlugin_v5;

/* Its get_chunk_size is NULL until a communicator needs it: NCCL cuts what is answered to the size of a buffer's step,
 * even its own size (calcCollChunking, src/enqueue.cc, v2.30.3-1). NCCL looks at it before each call. */
__attribute__((visibility("default"))) extern struct plugin_v6_and_trial ncclTunerPlugin_v6;
__attribute__((visibility("default"))) extern struct plugin_v7 ncclTunerPlugin_v7;

#endif
