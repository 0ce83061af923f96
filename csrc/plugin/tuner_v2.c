/* ncclTunerPlugin_v2: looked up by 2.21. Layout: src/include/nccl_tuner.h, v2.21.5-1. */
#include "abi.h"
#include "tuner.h"

struct plugin_v2 {
    const char *name;
    int (*init)(size_t ranks, size_t nodes, nccl_logger logger, void **context);
    int (*get_coll_info)(void *context, int collective, size_t bytes, int collnet, int nvls, int pipelined,
                         int *algorithm, int *protocol, int *channels);
    int (*destroy)(void *context);
};

_Static_assert(offsetof(struct plugin_v2, name) == 0, "ncclTuner_v2_t");
_Static_assert(offsetof(struct plugin_v2, init) == 8, "ncclTuner_v2_t");
_Static_assert(offsetof(struct plugin_v2, get_coll_info) == 16, "ncclTuner_v2_t");
_Static_assert(offsetof(struct plugin_v2, destroy) == 24, "ncclTuner_v2_t");
_Static_assert(sizeof(struct plugin_v2) == 32, "ncclTuner_v2_t");

static int init(size_t ranks, size_t nodes, nccl_logger logger, void **context) {
    struct opening opening = {.shape = {ranks, nodes, .known = true}, .logger = logger};
    struct tuner *tuner;
    int result = tuner_open(&opening, &tuner);
    *context = tuner;
    return result;
}

static int get_coll_info(void *context, int collective, size_t bytes, int collnet, int nvls, int pipelined,
                         int *algorithm, int *protocol, int *channels) {
    tuner_choose(context, collective, bytes, pipelined, collnet, nvls, algorithm, protocol, channels);
    return RESULT_SUCCESS;
}

static int destroy(void *context) {
    tuner_close(context);
    return RESULT_SUCCESS;
}

__attribute__((visibility("default"))) extern const struct plugin_v2 ncclTunerPlugin_v2;
const struct plugin_v2 ncclTunerPlugin_v2 = {TUNER_NAME, init, get_coll_info, destroy};
