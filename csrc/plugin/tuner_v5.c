/* ncclTunerPlugin_v5: looked up by 2.28 and 2.29, and v6 by 2.30 and later, which also asks for chunk sizes where one
 * may be said. */
#include "interface.h"
#include "tuner.h"

static int get_chunk_size(void *context, int collective, size_t bytes, int algorithm, int protocol, int channels,
                          size_t *chunk_bytes) {
    struct chunk_call call = {bytes, collective, algorithm, protocol, channels};
    tuner_chunk(context, &call, chunk_bytes);
    return RESULT_SUCCESS;
}

static int init(struct opening *opening, struct constants *constants, void **context) {
    opening->hands_cells = true;
    opening->constants = (double *)constants;
    if (opening->domains && opening->domains->count > 0) {
        opening->shape.domains = (size_t)opening->domains->count;
    }
    struct tuner *tuner;
    int result = tuner_open(opening, &tuner);
    *context = tuner;
    return result;
}

static int init_v5(void **context, uint64_t communicator, size_t ranks, size_t nodes, nccl_logger logger,
                   struct domains *domains, struct constants *constants) {
    struct opening opening = {{ranks, nodes, .known = true}, .version = 5, .logger = logger};
    opening.communicator = communicator;
    opening.domains = domains;
    return init(&opening, constants, context);
}

static int init_v6(void **context, uint64_t communicator, size_t ranks, size_t nodes, nccl_logger logger,
                   struct domains *domains, struct constants *constants) {
    struct opening opening = {{ranks, nodes, .known = true}, .version = 6, .logger = logger};
    opening.communicator = communicator;
    opening.domains = domains;
    int result = init(&opening, constants, context);
    if (tuner_sets_chunks(*context)) {
        __atomic_store_n(&ncclTunerPlugin_v6.get_chunk_size, get_chunk_size, __ATOMIC_RELEASE);
    }
    return result;
}

/* The costs are declared as pointers to rows, but what NCCL passes is one float[algorithms][protocols]. */
static int get_coll_info(void *context, int collective, size_t bytes, int pipelined, float **costs, int algorithms,
                         int protocols, int registered, int *channels) {
    struct call call = {.bytes = bytes, .collective = collective, .pipelined = pipelined, .registered = registered};
    tuner_decide(context, &call, (struct cost_cells){(float *)costs, algorithms, protocols}, channels);
    return RESULT_SUCCESS;
}

static int finalize(void *context) {
    tuner_close(context);
    return RESULT_SUCCESS;
}

const struct plugin_v5 ncclTunerPlugin_v5 = {TUNER_NAME, init_v5, get_coll_info, finalize};

struct plugin_v6 ncclTunerPlugin_v6 = {{TUNER_NAME, init_v6, get_coll_info, finalize}, NULL};
