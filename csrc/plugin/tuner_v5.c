/* ncclTunerPlugin_v5: looked up by 2.28 and 2.29, and by later releases in a plugin that has no newer one.
 * Layout: src/include/plugin/tuner/tuner_v5.h, v2.28.9-1 (the same through v2.29.7-1). */
#include <stdint.h>

#include "abi.h"
#include "tuner.h"

enum { LINKS = 3, COMPUTE_CAPABILITIES = 4, SCALES = 3 };

struct domains_v5 {
    int count, fewest_ranks, most_ranks;
};

/* NCCL's own constants, there to be edited before its model runs. This plugin does not: it only keeps their shape. */
struct constants_v5 {
    double base_latencies[ALGORITHMS][PROTOCOLS];
    double hw_latencies[LINKS][ALGORITHMS][PROTOCOLS];
    double ll_max_bws[COMPUTE_CAPABILITIES][SCALES];
    double ring_ll128_bws[COMPUTE_CAPABILITIES][SCALES];
    double tree_ll128_bws[COMPUTE_CAPABILITIES][SCALES];
    double tree_bws[COMPUTE_CAPABILITIES][SCALES];
    double nvls_tree_bws[COMPUTE_CAPABILITIES][SCALES];
};

struct plugin_v5 {
    const char *name;
    int (*init)(void **context, uint64_t communicator, size_t ranks, size_t nodes, nccl_logger logger,
                struct domains_v5 *domains, struct constants_v5 *constants);
    int (*get_coll_info)(void *context, int collective, size_t bytes, int pipelined, float **costs, int algorithms,
                         int protocols, int registered, int *channels);
    int (*finalize)(void *context);
};

_Static_assert(sizeof(struct domains_v5) == 12, "ncclNvlDomainInfo_v5_t");
_Static_assert(offsetof(struct constants_v5, base_latencies) == 0, "ncclTunerConstants_v5_t");
_Static_assert(offsetof(struct constants_v5, hw_latencies) == 21 * 8, "ncclTunerConstants_v5_t");
_Static_assert(offsetof(struct constants_v5, ll_max_bws) == 84 * 8, "ncclTunerConstants_v5_t");
_Static_assert(offsetof(struct constants_v5, ring_ll128_bws) == 96 * 8, "ncclTunerConstants_v5_t");
_Static_assert(offsetof(struct constants_v5, tree_ll128_bws) == 108 * 8, "ncclTunerConstants_v5_t");
_Static_assert(offsetof(struct constants_v5, tree_bws) == 120 * 8, "ncclTunerConstants_v5_t");
_Static_assert(offsetof(struct constants_v5, nvls_tree_bws) == 132 * 8, "ncclTunerConstants_v5_t");
_Static_assert(sizeof(struct constants_v5) == 144 * 8, "ncclTunerConstants_v5_t");
_Static_assert(offsetof(struct plugin_v5, name) == 0, "ncclTuner_v5_t");
_Static_assert(offsetof(struct plugin_v5, init) == 8, "ncclTuner_v5_t");
_Static_assert(offsetof(struct plugin_v5, get_coll_info) == 16, "ncclTuner_v5_t");
_Static_assert(offsetof(struct plugin_v5, finalize) == 24, "ncclTuner_v5_t");
_Static_assert(sizeof(struct plugin_v5) == 32, "ncclTuner_v5_t");

static int init(void **context, uint64_t communicator, size_t ranks, size_t nodes, nccl_logger logger,
                struct domains_v5 *domains, struct constants_v5 *constants) {
    (void)communicator, (void)domains, (void)constants;
    *context = tuner_open(ranks, nodes, logger);
    return RESULT_SUCCESS;
}

static int get_coll_info(void *context, int collective, size_t bytes, int pipelined, float **costs, int algorithms,
                         int protocols, int registered, int *channels) {
    (void)pipelined, (void)registered;
    /* Declared as pointers to rows, but what NCCL passes is one float[algorithms][protocols]. */
    tuner_decide(context, collective, bytes, (float *)costs, algorithms, protocols, channels);
    return RESULT_SUCCESS;
}

static int finalize(void *context) {
    tuner_close(context);
    return RESULT_SUCCESS;
}

__attribute__((visibility("default"))) extern const struct plugin_v5 ncclTunerPlugin_v5;
const struct plugin_v5 ncclTunerPlugin_v5 = {TUNER_NAME, init, get_coll_info, finalize};
