/* Loads libnccl and finds its entry points. */
#define _GNU_SOURCE
#include "nccl.h"

#include <dlfcn.h>
#include <string.h>

#include "export.h"
#include "oracle.h"

struct nccl sim_nccl;

static void *library;

void *sim_nccl_library(void) {
    return library;
}

SIM_EXPORT void *sim_nccl_function(const char *name) {
    return library == NULL ? NULL : dlsym(library, name);
}

static void find(void *entry, const char *name) {
    void *function = sim_nccl_function(name);
    memcpy(entry, &function, sizeof function);
}

SIM_EXPORT const char *sim_load_nccl(const char *path) {
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        return dlerror();
    }
    find(&sim_nccl.unique_id, "ncclGetUniqueId");
    find(&sim_nccl.comm_init_rank, "ncclCommInitRank");
    find(&sim_nccl.comm_init_rank_config, "ncclCommInitRankConfig");
    find(&sim_nccl.comm_split, "ncclCommSplit");
    find(&sim_nccl.comm_shrink, "ncclCommShrink");
    find(&sim_nccl.group_start, "ncclGroupStart");
    find(&sim_nccl.group_end, "ncclGroupEnd");
    find(&sim_nccl.simulate_end, "ncclGroupSimulateEnd");
    find(&sim_nccl.broadcast, "ncclBroadcast");
    find(&sim_nccl.reduce, "ncclReduce");
    find(&sim_nccl.all_gather, "ncclAllGather");
    find(&sim_nccl.reduce_scatter, "ncclReduceScatter");
    find(&sim_nccl.all_reduce, "ncclAllReduce");
    find(&sim_nccl.broadcast_config, "ncclBroadcastConfig");
    find(&sim_nccl.reduce_config, "ncclReduceConfig");
    find(&sim_nccl.all_gather_config, "ncclAllGatherConfig");
    find(&sim_nccl.reduce_scatter_config, "ncclReduceScatterConfig");
    find(&sim_nccl.all_reduce_config, "ncclAllReduceConfig");
    find(&sim_nccl.send, "ncclSend");
    find(&sim_nccl.receive, "ncclRecv");
    find(&sim_nccl.all_to_all, "ncclAlltoAll");
    find(&sim_nccl.gather, "ncclGather");
    find(&sim_nccl.scatter, "ncclScatter");
    find(&sim_nccl.comm_register, "ncclCommRegister");
    find(&sim_nccl.comm_deregister, "ncclCommDeregister");
    find(&sim_nccl.window_register, "ncclCommWindowRegister");
    find(&sim_nccl.window_deregister, "ncclCommWindowDeregister");
    return NULL;
}

#ifndef NCCL_TUNER_SOURCES /* not built by setup.py: no Python module belongs to it */
#define NCCL_TUNER_SOURCES "unknown"
#endif

SIM_EXPORT const char *sim_sources(void) {
    return NCCL_TUNER_SOURCES;
}
