/* ncclTunerPlugin_v5: looked up by 2.28 and 2.29, and v6 by 2.30 and later, which also asks for chunk sizes. */
#include "interface.h"
#include "tuner.h"

static int init(void **context, uint64_t communicator, size_t ranks, size_t nodes, nccl_logger logger,
                struct domains *domains, struct constants *constants) {
    (void)domains;
    struct opening opening = {.communicator = communicator,
                              .shape = {ranks, nodes, .known = true},
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

const struct plugin_v5 ncclTunerPlugin_v5 = {TUNER_NAME, init, get_coll_info, finalize};

const struct plugin_v6 ncclTunerPlugin_v6 = {{TUNER_NAME, init, get_coll_info, finalize}, get_chunk_size};
