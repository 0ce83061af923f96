/* What the plugin exports: ncclTuner_v1_t to v6_t, one structure for each version of NCCL's tuner interface.
 * Layouts: src/include/nccl_tuner.h, v2.19.3-1 (v1), v2.21.5-1 (v2), v2.22.3-1 (v3), and
 * src/include/plugin/tuner/tuner_v{3,4}.h, v2.27.7-1, tuner_v5.h, v2.28.9-1 (the same through v2.29.7-1), and
 * tuner_v6.h, v2.30.3-1. */
#ifndef PLUGIN_INTERFACE_H
#define PLUGIN_INTERFACE_H

#include "abi.h"
#include "constants.h"

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

#define EXPORTED __attribute__((visibility("default"))) extern const

EXPORTED struct plugin_v1 ncclTunerPlugin_v1;
EXPORTED struct plugin_v2 ncclTunerPlugin_v2;
EXPORTED struct plugin_v3 ncclTunerPlugin_v3;
EXPORTED struct plugin_v4 ncclTunerPlugin_v4;
EXPORTED struct plugin_v5 ncclTunerPlugin_v5;

/* Its get_chunk_size is NULL until a communicator needs it: NCCL cuts what is answered to the size of a buffer's step,
 * even its own size (calcCollChunking, src/enqueue.cc, v2.30.3-1). NCCL looks at it before each call. */
__attribute__((visibility("default"))) extern struct plugin_v6 ncclTunerPlugin_v6;

#endif
