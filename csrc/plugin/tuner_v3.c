/* ncclTunerPlugin_v3: looked up by 2.22 and 2.23, and v4 by 2.24 to 2.27, which also says whether buffers are
 * registered. Layouts: src/include/nccl_tuner.h, v2.22.3-1, and src/include/plugin/tuner/tuner_v{3,4}.h, v2.27.7-1. */
#include "abi.h"
#include "tuner.h"

struct plugin_v3 {
    const char *name;
    int (*init)(size_t ranks, size_t nodes, nccl_logger logger, void **context);
    int (*get_coll_info)(void *context, int collective, size_t bytes, int pipelined, float **costs, int algorithms,
                         int protocols, int *channels);
    int (*destroy)(void *context);
};

struct plugin_v4 {
    const char *name;
    int (*init)(size_t ranks, size_t nodes, nccl_logger logger, void **context);
    int (*get_coll_info)(void *context, int collective, size_t bytes, int pipelined, float **costs, int algorithms,
                         int protocols, int registered, int *channels);
    int (*destroy)(void *context);
};

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

static int init(size_t ranks, size_t nodes, nccl_logger logger, void **context) {
    struct opening opening = {.shape = {ranks, nodes, .known = true}, .hands_cells = true, .logger = logger};
    struct tuner *tuner;
    int result = tuner_open(&opening, &tuner);
    *context = tuner;
    return result;
}

/* The costs are declared as pointers to rows, but what NCCL passes is one float[algorithms][protocols]. */
static int get_coll_info_v3(void *context, int collective, size_t bytes, int pipelined, float **costs, int algorithms,
                            int protocols, int *channels) {
    tuner_decide(context, collective, bytes, pipelined, 0, (float *)costs, algorithms, protocols, channels);
    return RESULT_SUCCESS;
}

static int get_coll_info_v4(void *context, int collective, size_t bytes, int pipelined, float **costs, int algorithms,
                            int protocols, int registered, int *channels) {
    tuner_decide(context, collective, bytes, pipelined, registered, (float *)costs, algorithms, protocols, channels);
    return RESULT_SUCCESS;
}

static int destroy(void *context) {
    tuner_close(context);
    return RESULT_SUCCESS;
}

__attribute__((visibility("default"))) extern const struct plugin_v3 ncclTunerPlugin_v3;
const struct plugin_v3 ncclTunerPlugin_v3 = {TUNER_NAME, init, get_coll_info_v3, destroy};

__attribute__((visibility("default"))) extern const struct plugin_v4 ncclTunerPlugin_v4;
const struct plugin_v4 ncclTunerPlugin_v4 = {TUNER_NAME, init, get_coll_info_v4, destroy};
