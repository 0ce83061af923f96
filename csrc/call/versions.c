#include "versions.h"

#include <string.h>

#include "../plugin/interface.h"

int call_init(int version, const struct call_communicator *communicator, nccl_logger logger, double *constants,
              void **context) {
    size_t ranks = communicator->ranks, nodes = communicator->nodes;
    int each = communicator->domains > 0 ? (int)ranks / communicator->domains : 0;
    struct domains counted = {communicator->domains, each, each};
    struct domains *domains = communicator->domains > 0 ? &counted : NULL;
    switch (version) {
    case 1:
        return ncclTunerPlugin_v1.init(ranks, nodes, logger);
    case 2:
        return ncclTunerPlugin_v2.init(ranks, nodes, logger, context);
    case 3:
        return ncclTunerPlugin_v3.init(ranks, nodes, logger, context);
    case 4:
        return ncclTunerPlugin_v4.init(ranks, nodes, logger, context);
    case 5:
        return ncclTunerPlugin_v5.init(context, 1, ranks, nodes, logger, domains, (struct constants *)constants);
    case 7:
        return ncclTunerPlugin_v7.init(context, 1, ranks, nodes, logger, domains, (struct constants_v7 *)constants);
    default:
        return ncclTunerPlugin_v6.nccl.base.init(context, 1, ranks, nodes, logger, domains,
                                                 (struct constants *)constants);
    }
}

int call_finalize(int version, void *context) {
    switch (version) {
    case 1:
        return ncclTunerPlugin_v1.destroy();
    case 2:
        return ncclTunerPlugin_v2.destroy(context);
    case 3:
        return ncclTunerPlugin_v3.destroy(context);
    case 4:
        return ncclTunerPlugin_v4.destroy(context);
    case 5:
        return ncclTunerPlugin_v5.finalize(context);
    case 7:
        return ncclTunerPlugin_v7.finalize(context);
    default:
        return ncclTunerPlugin_v6.nccl.base.finalize(context);
    }
}

int call_with_costs(int version, void *context, const struct call *call, struct cost_cells cells, int *channels) {
    float **costs = (float **)(void *)cells.us; /* what NCCL does, too */
    if (version == 3) {
        return ncclTunerPlugin_v3.get_coll_info(context, call->collective, call->bytes, call->pipelined, costs,
                                                cells.algorithms, cells.protocols, channels);
    }
    coll_info_v4 *get_coll_info = version == 4   ? ncclTunerPlugin_v4.get_coll_info
                                  : version == 5 ? ncclTunerPlugin_v5.get_coll_info
                                  : version == 7 ? ncclTunerPlugin_v7.get_coll_info
                                                 : ncclTunerPlugin_v6.nccl.base.get_coll_info;
    return get_coll_info(context, call->collective, call->bytes, call->pipelined, costs, cells.algorithms,
                         cells.protocols, call->registered, channels);
}

int call_by_name(int version, void *context, const struct call *call, int *algorithm, int *protocol, int *channels) {
    if (version == 1) {
        return ncclTunerPlugin_v1.get_coll_info(call->collective, call->bytes, call->collnet, call->nvls,
                                                call->pipelined, algorithm, protocol, channels);
    }
    return ncclTunerPlugin_v2.get_coll_info(context, call->collective, call->bytes, call->collnet, call->nvls,
                                            call->pipelined, algorithm, protocol, channels);
}

int call_chunk_size(int version, void *context, const struct chunk_call *call, size_t *chunk_bytes) {
    chunk_size_v6 **function =
        version == 7 ? &ncclTunerPlugin_v7.get_chunk_size : &ncclTunerPlugin_v6.nccl.get_chunk_size;
    chunk_size_v6 *get_chunk_size = __atomic_load_n(function, __ATOMIC_ACQUIRE);
    return get_chunk_size ? get_chunk_size(context, call->collective, call->bytes, call->algorithm, call->protocol,
                                           call->channels, chunk_bytes)
                          : RESULT_SUCCESS;
}

/* NULL where a tuner that the process has loaded for all its libraries stands under this plugin's symbol. */
static const struct trial *own_trial(void) {
    return strcmp(ncclTunerPlugin_v6.nccl.base.name, TUNER_NAME) == 0 ? ncclTunerPlugin_v6.trial : NULL;
}

bool call_explain(int version, const void *context, const struct call *call, struct cost_cells cells,
                  struct explanation *explanation) {
    const struct trial *trial = own_trial();
    bool says = trial && trial->explain;
    if (says) {
        trial->explain(version, context, call, cells, explanation);
    }
    return says;
}

void call_forget_tables(void) {
    const struct trial *trial = own_trial();
    if (trial && trial->forget_tables) {
        trial->forget_tables();
    }
}
