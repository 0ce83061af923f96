/* ncclTunerPlugin_v3: looked up by 2.22 and 2.23, and v4 by 2.24 to 2.27, which also says whether buffers are
 * registered. */
#include "interface.h"
#include "tuner.h"

static int init(size_t ranks, size_t nodes, nccl_logger logger, void **context, int version) {
    struct opening opening = {
        .shape = {ranks, nodes, .known = true}, .version = version, .hands_cells = true, .logger = logger};
    struct tuner *tuner;
    int result = tuner_open(&opening, &tuner);
    *context = tuner;
    return result;
}

static int init_v3(size_t ranks, size_t nodes, nccl_logger logger, void **context) {
    return init(ranks, nodes, logger, context, 3);
}

static int init_v4(size_t ranks, size_t nodes, nccl_logger logger, void **context) {
    return init(ranks, nodes, logger, context, 4);
}

/* The costs are declared as pointers to rows, but what NCCL passes is one float[algorithms][protocols]. */
static int get_coll_info_v3(void *context, int collective, size_t bytes, int pipelined, float **costs, int algorithms,
                            int protocols, int *channels) {
    struct call call = {.bytes = bytes, .collective = collective, .pipelined = pipelined};
    tuner_decide(context, &call, (struct cost_cells){(float *)costs, algorithms, protocols}, channels);
    return RESULT_SUCCESS;
}

static int get_coll_info_v4(void *context, int collective, size_t bytes, int pipelined, float **costs, int algorithms,
                            int protocols, int registered, int *channels) {
    struct call call = {.bytes = bytes, .collective = collective, .pipelined = pipelined, .registered = registered};
    tuner_decide(context, &call, (struct cost_cells){(float *)costs, algorithms, protocols}, channels);
    return RESULT_SUCCESS;
}

static int destroy(void *context) {
    tuner_close(context);
    return RESULT_SUCCESS;
}

const struct plugin_v3 ncclTunerPlugin_v3 = {TUNER_NAME, init_v3, get_coll_info_v3, destroy};

const struct plugin_v4 ncclTunerPlugin_v4 = {TUNER_NAME, init_v4, get_coll_info_v4, destroy};
