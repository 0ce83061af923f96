/* The network that merges its devices into virtual ones, as NCCL's own for InfiniBand does: NCCL asks for it, 2.24 on.
 *
 * Interfaces v9 (2.24 on) and v12 (2.30 on), with which NCCL merges up to 4 and up to 8. In a job every rank has a
 * process of its own, or shares one with neighbours, and a process makes virtual devices once; here all ranks are threads
 * of one, so NCCL's counts of devices are answered for each process that there would be. What its first communicator
 * made the second one finds.
 */
#define _GNU_SOURCE
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "export.h"
#include "machine.h"
#include "net.h"
#include "redirect.h"
#include "trampoline.h"

enum { MOST_VIRTUAL = 256, UNKNOWN_COUNT = -1 };

/* All ranks of a host make the same ones, in the same order. */
static struct virtual {
    struct sim_merged of;
    char name[SIM_MOST_MERGED * SIM_NET_NAME_CHARS];
}
virtual[SIM_MAX_KINDS][MOST_VIRTUAL];

static int made_by_process[SIM_MAX_RANKS]; /* by its first rank */
static char *forced;                       /* NCCL_NET_FORCE_MERGE */

static int process(void) {
    return sim_device() - sim_local_rank(sim_device()) % sim_machine.ranks_per_process;
}

static int *made(void) {
    return &made_by_process[process()];
}

static struct virtual *own_virtual(void) {
    return virtual[sim_machine.kind_of_host[sim_host_of(sim_device())]];
}

static status init(void) {
    const char *asked = getenv("NCCL_NET_FORCE_MERGE");
    if (asked != NULL && forced == NULL) {
        forced = strdup(asked);
    }
    return SUCCESS;
}

static status init_context(void **context) {
    init();
    return sim_net_hand_out(context);
}

static status devices(int *count) {
    *count = sim_own_host()->nets_per_host + *made();
    if (forced != NULL) {
        setenv("NCCL_NET_FORCE_MERGE", forced, 1); /* 2.24.3 cuts it to pieces where it lies */
    }
    return SUCCESS;
}

status sim_net_properties_v12(int index, struct sim_net_properties_v12 *properties) {
    const struct sim_host *host = sim_own_host();
    int physical = host->nets_per_host;
    if (index < 0 || index >= physical + MOST_VIRTUAL) {
        return INVALID_ARGUMENT;
    }
    struct sim_merged of = {1, {index}};
    const char *name = host->nets[index < physical ? index : 0].name;
    if (index >= physical) {
        of = own_virtual()[index - physical].of;
        name = own_virtual()[index - physical].name;
    }
    const struct sim_net *first = &host->nets[of.device[0]];
    int speed_mbps = 0;
    for (int i = 0; i < of.devices; i++) {
        speed_mbps += host->nets[of.device[i]].speed_mbps;
    }
    /* Without a path NCCL finds the device in the topology file by its name. */
    const char *pci_path = first->pci_path[0] == '\0' ? NULL : first->pci_path;
    *properties = (struct sim_net_properties_v12){
        .common = {.name = name,
                   .pci_path = (char *)(uintptr_t)pci_path,
                   .guid = sim_net_guid(first),
                   .pointer_support = POINTER_HOST | (first->gdr ? POINTER_CUDA : 0),
                   .speed_mbps = speed_mbps,
                   .port = first->port,
                   .latency_us = first->latency_us,
                   .max_comms = first->max_comms,
                   .max_receives = 1},
        .merged = of,
        .max_p2p_bytes = (size_t)1 << 30, /* what NCCL takes for older interfaces */
        .max_coll_bytes = (size_t)512 << 20,
        .max_requests_in_one = 1,
        .rail = -1,
        .plane = -1,
    };
    return SUCCESS;
}

status sim_net_properties_v9(int index, struct sim_net_properties_v9 *properties) {
    struct sim_net_properties_v12 all;
    status result = sim_net_properties_v12(index, &all);
    if (result != SUCCESS) {
        return result;
    }
    properties->common = all.common;
    properties->merged.devices = all.merged.devices;
    memcpy(properties->merged.device, all.merged.device, sizeof properties->merged.device);
    properties->max_p2p_bytes = all.max_p2p_bytes;
    properties->max_coll_bytes = all.max_coll_bytes;
    return SUCCESS;
}

static status make_virtual(int *index, const struct sim_merged *of) {
    const char *merge = getenv("NCCL_IB_MERGE_NICS");
    const struct sim_host *host = sim_own_host();
    if (of->devices > 1 && merge != NULL && merge[0] != '\0' && strtoll(merge, NULL, 0) == 0) {
        return INVALID_USAGE;
    }
    if (*made() == MOST_VIRTUAL) {
        return INVALID_USAGE;
    }
    struct virtual *new = &own_virtual()[*made()];
    new->of.devices = of->devices;
    memcpy(new->of.device, of->device, (size_t)of->devices * sizeof of->device[0]);
    size_t chars = 0;
    for (int i = 0; i < of->devices; i++) {
        chars += (size_t)snprintf(new->name + chars, sizeof new->name - chars, i > 0 ? "+%s" : "%s",
                                  host->nets[of->device[i]].name);
    }
    *index = host->nets_per_host + (*made())++;
    return SUCCESS;
}

static status listen_in(void *context SIM_UNUSED, int index SIM_UNUSED, void *handle SIM_UNUSED, void **comm) {
    return sim_net_hand_out(comm);
}
static status connect_in(void *context SIM_UNUSED, int index SIM_UNUSED, void *handle SIM_UNUSED, void **comm) {
    return sim_net_hand_out(comm);
}
static status register_memory(void *comm SIM_UNUSED, void *data SIM_UNUSED, size_t bytes SIM_UNUSED,
                              int kind SIM_UNUSED, void **handle) {
    return sim_net_hand_out(handle);
}

enum { MAKE_VIRTUAL = 18 };

/* ncclNet_v9_t and ncclNet_v12_t: the name and their functions. Only set-up can be asked for; a transfer is an error. */
SIM_EXPORT struct {
    const char *name;
    void *functions[19];
} ncclNetPlugin_v9 = {
    sim_machine.net_name,
    {FUNCTION(init), FUNCTION(devices), FUNCTION(sim_net_properties_v9), FUNCTION(sim_net_listen),
     FUNCTION(sim_net_connect), FUNCTION(sim_net_accept), FUNCTION(register_memory), NULL, FUNCTION(sim_net_succeed),
     FUNCTION(sim_net_refuse), FUNCTION(sim_net_refuse), FUNCTION(sim_net_refuse), FUNCTION(sim_net_refuse),
     FUNCTION(sim_net_succeed), FUNCTION(sim_net_succeed), FUNCTION(sim_net_succeed), NULL, NULL},
};

SIM_EXPORT struct {
    const char *name;
    void *functions[21];
} ncclNetPlugin_v12 = {
    sim_machine.net_name,
    {FUNCTION(init_context),
     FUNCTION(devices),
     FUNCTION(sim_net_properties_v12),
     FUNCTION(listen_in),
     FUNCTION(connect_in),
     FUNCTION(sim_net_accept),
     FUNCTION(register_memory),
     NULL,
     FUNCTION(sim_net_succeed),
     FUNCTION(sim_net_refuse),
     FUNCTION(sim_net_refuse),
     FUNCTION(sim_net_refuse),
     FUNCTION(sim_net_refuse),
     FUNCTION(sim_net_succeed),
     FUNCTION(sim_net_succeed),
     FUNCTION(sim_net_succeed),
     NULL,
     NULL,
     NULL,
     FUNCTION(sim_net_succeed),
     FUNCTION(sim_net_succeed)},
};

void sim_configure_merging(void) {
    void *function = NULL;
    for (int kind = 0; kind < sim_machine.kinds; kind++) {
        if (sim_machine.kind[kind].merges_nets) {
            function = FUNCTION(make_virtual);
        }
    }
    ncclNetPlugin_v9.functions[MAKE_VIRTUAL] = function;
    ncclNetPlugin_v12.functions[MAKE_VIRTUAL] = function;
}

/* --- hosts whose network merges nothing beside others whose network does: in a process there is one network --- */

/* What NCCL makes of any interface, as far as the function that merges: the same place in all that have it. */
struct network {
    const char *name;
    void *functions[MAKE_VIRTUAL + 1];
    void *later[4]; /* not called while a system is made */
};

typedef status get_system(void *comm, void **system, const char *file);

static get_system *make_system;
static size_t network_at;

static status make_system_of_host(void *comm, void **system, const char *file) {
    if (sim_own_host()->merges_nets) {
        return make_system(comm, system, file);
    }
    struct network *merging, own = {0};
    memcpy(&merging, (char *)comm + network_at, sizeof merging);
    memcpy(&own, merging, offsetof(struct network, later));
    own.functions[MAKE_VIRTUAL] = NULL;
    void *replaced = &own;
    memcpy((char *)comm + network_at, &replaced, sizeof replaced);
    status result = make_system(comm, system, file);
    memcpy((char *)comm + network_at, &merging, sizeof merging);
    return result;
}

SIM_EXPORT int sim_merge_by_host(void *function, uint64_t net) {
    network_at = net;
    void *kept = sim_redirect_keeping(function, (void *)(uintptr_t)make_system_of_host);
    if (kept == NULL) {
        return 0;
    }
    memcpy(&make_system, &kept, sizeof kept);
    return 1;
}

/* --- counts of devices, which NCCL keeps by process --- */

struct counts {
    int virtual_devices;
    int physical_devices;
    const char *name;
};

enum { NETWORK = 0, COLLECTIVE = 1, KINDS_OF_NETWORK = 2 };

static struct counts counts_by_process[SIM_MAX_RANKS][KINDS_OF_NETWORK];
static const void *known_by_process[SIM_MAX_RANKS][KINDS_OF_NETWORK]; /* NCCL's own lists of them: one for each kind */

/* 2.24 to 2.27. */
static status counts_of(struct counts **found, const char *name, const void *all) {
    struct counts *counts = counts_by_process[process()];
    const void **known = known_by_process[process()];
    int kind = 0;
    while (kind < KINDS_OF_NETWORK && known[kind] != NULL && known[kind] != all) {
        kind++;
    }
    if (kind == KINDS_OF_NETWORK) {
        return INTERNAL_ERROR;
    }
    if (known[kind] == NULL) {
        known[kind] = all;
        counts[kind] = (struct counts){UNKNOWN_COUNT, UNKNOWN_COUNT, name};
    }
    *found = &counts[kind];
    return SUCCESS;
}

/* From 2.28 on. */
static status get_count(int plugin SIM_UNUSED, int *physical, int *virtual_devices) {
    *physical = sim_own_host()->nets_per_host;
    *virtual_devices = *made() == 0 ? UNKNOWN_COUNT : *made();
    return SUCCESS;
}

static status set_count(int plugin SIM_UNUSED, int virtual_devices SIM_UNUSED) {
    return SUCCESS;
}

const struct sim_redirect sim_merging_redirects[] = {
    SIM_ROW("ncclTopoGetSharedState", counts_of),
    SIM_ROW("ncclNetGetDevCount", get_count),
    SIM_ROW("ncclNetSetVirtDevCount", set_count),
    {NULL, NULL, 0},
};
