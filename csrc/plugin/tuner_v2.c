/* ncclTunerPlugin_v2: looked up by 2.21. */
#include "interface.h"
#include "tuner.h"

static int init(size_t ranks, size_t nodes, nccl_logger logger, void **context) {
    struct opening opening = {.shape = {ranks, nodes, .known = true}, .version = 2, .logger = logger};
    struct tuner *tuner;
    int result = tuner_open(&opening, &tuner);
    *context = tuner;
    return result;
}

static int get_coll_info(void *context, int collective, size_t bytes, int collnet, int nvls, int pipelined,
                         int *algorithm, int *protocol, int *channels) {
    struct call call = {bytes, collective, pipelined, .collnet = collnet, .nvls = nvls};
    tuner_choose(context, &call, algorithm, protocol, channels);
    return RESULT_SUCCESS;
}

static int destroy(void *context) {
    tuner_close(context);
    return RESULT_SUCCESS;
}

const struct plugin_v2 ncclTunerPlugin_v2 = {TUNER_NAME, init, get_coll_info, destroy};
