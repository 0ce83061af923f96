/* ncclTunerPlugin_v5: looked up by 2.28 and 2.29, and v6 by 2.30 and later, which also asks for chunk sizes.
 * Layouts: src/include/plugin/tuner/tuner_v5.h, v2.28.9-1 (the same through v2.29.7-1), and tuner_v6.h, v2.30.3-1. */
#include <stdint.h>

#include "abi.h"
#include "constants.h"
#include "tuner.h"

struct domains {
    int count, fewest_ranks, most_ranks;
};

struct plugin_v5 {
    const char *name;
    int (*init)(void **context, uint64_t communicator, size_t ranks, size_t nodes, nccl_logger logger,
                struct domains *domains, struct constants *constants);
    int (*get_coll_info)(void *context, int collective, size_t bytes, int pipelined, float **costs, int algorithms,
                         int protocols, int registered, int *channels);
    int (*finalize)(void *context);
};

struct plugin_v6 {
    struct plugin_v5 base;
    int (*get_chunk_size)(void *context, int collective, size_t bytes, int algorithm, int protocol, int channels,
                          size_t *chunk_bytes);
};

_Static_assert(sizeof(struct domains) == 12, "ncclNvlDomainInfo_v5_t");
_Static_assert(offsetof(struct plugin_v5, name) == 0, "ncclTuner_v5_t");
_Static_assert(offsetof(struct plugin_v5, init) == 8, "ncclTuner_v5_t");
_Static_assert(offsetof(struct plugin_v5, get_coll_info) == 16, "ncclTuner_v5_t");
_Static_assert(offsetof(struct plugin_v5, finalize) == 24, "ncclTuner_v5_t");
_Static_assert(sizeof(struct plugin_v5) == 32, "ncclTuner_v5_t");
_Static_assert(offsetof(struct plugin_v6, base) == 0, "ncclTuner_v6_t begins as ncclTuner_v5_t");
_Static_assert(offsetof(struct plugin_v6, get_chunk_size) == 32, "ncclTuner_v6_t");
_Static_assert(sizeof(struct plugin_v6) == 40, "ncclTuner_v6_t");

static int init(void **context, uint64_t communicator, size_t ranks, size_t nodes, nccl_logger logger,
                struct domains *domains, struct constants *constants) {
    (void)communicator, (void)domains;
    struct opening opening = {.shape = {ranks, nodes, .known = true},
                              .hands_cells = true,
                              .constants = (double *)constants,
                              .logger = logger};
    struct tuner *tuner;
    int result = tuner_open(&opening, &tuner);
    *context = tuner;
    return result;
}

/* The costs are declared as pointers to rows, but what NCCL passes is one float[algorithms][protocols]. */
static int get_coll_info(void *context, int collective, size_t bytes, int pipelined, float **costs, int algorithms,
                         int protocols, int registered, int *channels) {
    tuner_decide(context, collective, bytes, pipelined, registered, (float *)costs, algorithms, protocols, channels);
    return RESULT_SUCCESS;
}

static int get_chunk_size(void *context, int collective, size_t bytes, int algorithm, int protocol, int channels,
                          size_t *chunk_bytes) {
    (void)bytes, (void)channels; /* of a part of the operation, mostly one channel's */
    tuner_chunk(context, collective, algorithm, protocol, chunk_bytes);
    return RESULT_SUCCESS;
}

static int finalize(void *context) {
    tuner_close(context);
    return RESULT_SUCCESS;
}

__attribute__((visibility("default"))) extern const struct plugin_v5 ncclTunerPlugin_v5;
const struct plugin_v5 ncclTunerPlugin_v5 = {TUNER_NAME, init, get_coll_info, finalize};

__attribute__((visibility("default"))) extern const struct plugin_v6 ncclTunerPlugin_v6;
const struct plugin_v6 ncclTunerPlugin_v6 = {{TUNER_NAME, init, get_coll_info, finalize}, get_chunk_size};
