/* The network: the topology file's <net> devices as a plugin that moves no data.
 *
 * Interface v6 (NCCL 2.13 on) is the oldest every supported release accepts; from 2.24 on NCCL takes the one of merge.c.
 * Collectives in the network have v8 (NCCL 2.20 on) as well, the first that gathers and scatters; older releases look for
 * v6.
 */
#include <stddef.h>

#include "export.h"
#include "machine.h"
#include "net.h"

enum { SUM = 0, PRODUCT = 1, MAX = 2, MIN = 3 }; /* ncclRedOp_t */
enum { BFLOAT16 = 9 };                           /* ncclDataType_t; the ones after it are fp8 */

struct properties {
    char *name;
    char *pci_path;
    uint64_t guid;
    int pointer_support;
    int speed_mbps;
    int port;
    float latency_us;
    int max_comms;
    int max_receives;
};

/* As v8 has it. */
struct coll_properties {
    char *name;
    char *pci_path;
    uint64_t guid;
    int pointer_support;
    int registered_globally;
    int speed_mbps;
    int port;
    float latency_us;
    int max_comms;
    int max_receives;
    int device_type; /* 0: the host, no offload */
    int device_version;
};

static int token; /* what every handle points to */

static status init(void *log SIM_UNUSED) {
    return SUCCESS;
}

/* NCCL asks once per process, so the answer is the most that a host has. */
static status devices(int *count) {
    *count = 0;
    for (int k = 0; k < sim_machine.kinds; k++) {
        if (sim_machine.kind[k].nets_per_host > *count) {
            *count = sim_machine.kind[k].nets_per_host;
        }
    }
    return SUCCESS;
}

static status coll_devices(int *count) {
    *count = 0;
    for (int k = 0; k < sim_machine.kinds; k++) {
        if (sim_machine.kind[k].coll_nets > *count) {
            *count = sim_machine.kind[k].coll_nets;
        }
    }
    return SUCCESS;
}

uint64_t sim_net_guid(const struct sim_net *net) {
    int apart = sim_domain_of(sim_device()) != SIM_NO_DOMAIN;
    return net->guid + (apart ? (uint64_t)sim_host_of(sim_device()) << SIM_HOST_OF_GUID_BIT : 0);
}

/* Where a host has fewer, its first device stands for the surplus too: NCCL knows devices by name, so it finds one. */
static status get_properties(int index, struct properties *properties) {
    const struct sim_host *host = sim_own_host();
    int most;
    devices(&most);
    if (index < 0 || index >= most) {
        return INVALID_ARGUMENT;
    }
    int surplus = most - host->nets_per_host;
    const struct sim_net *net = &host->nets[index < surplus ? 0 : index - surplus];
    /* Without a path NCCL finds the device in the topology file by its name. */
    const char *pci_path = net->pci_path[0] == '\0' ? NULL : net->pci_path;
    *properties = (struct properties){(char *)(uintptr_t)net->name,
                                      (char *)(uintptr_t)pci_path,
                                      sim_net_guid(net),
                                      POINTER_HOST | (net->gdr ? POINTER_CUDA : 0),
                                      net->speed_mbps,
                                      net->port,
                                      net->latency_us,
                                      net->max_comms,
                                      1};
    return SUCCESS;
}

status sim_net_hand_out(void **handle) {
    *handle = &token;
    return SUCCESS;
}

status sim_net_listen(int index SIM_UNUSED, void *handle SIM_UNUSED, void **comm) {
    return sim_net_hand_out(comm);
}
status sim_net_connect(int index SIM_UNUSED, void *handle SIM_UNUSED, void **comm) {
    return sim_net_hand_out(comm);
}
status sim_net_accept(void *listening SIM_UNUSED, void **comm) {
    return sim_net_hand_out(comm);
}
static status register_memory(void *comm SIM_UNUSED, void *data SIM_UNUSED, int bytes SIM_UNUSED, int kind SIM_UNUSED,
                              void **handle) {
    return sim_net_hand_out(handle);
}
status sim_net_succeed(void) {
    return SUCCESS;
}
status sim_net_refuse(void) {
    return INTERNAL_ERROR;
}

/* ncclNet_v6_t: the name and 16 functions. Only set-up can be asked for; a transfer is an error. */
SIM_EXPORT struct {
    const char *name;
    void *functions[16];
} ncclNetPlugin_v6 = {
    sim_machine.net_name,
    {FUNCTION(init), FUNCTION(devices), FUNCTION(get_properties), FUNCTION(sim_net_listen), FUNCTION(sim_net_connect),
     FUNCTION(sim_net_accept), FUNCTION(register_memory), NULL, FUNCTION(sim_net_succeed), FUNCTION(sim_net_refuse),
     FUNCTION(sim_net_refuse), FUNCTION(sim_net_refuse), FUNCTION(sim_net_refuse), FUNCTION(sim_net_succeed),
     FUNCTION(sim_net_succeed), FUNCTION(sim_net_succeed)},
};

static status coll_properties(int index, struct coll_properties *properties) {
    struct properties old;
    status result = get_properties(index, &old);
    if (result != SUCCESS) {
        return result;
    }
    *properties =
        (struct coll_properties){old.name, old.pci_path,   old.guid,      old.pointer_support, 0, old.speed_mbps,
                                 old.port, old.latency_us, old.max_comms, old.max_receives,    0, 0};
    return SUCCESS;
}

/* As SHARP v3 does: no products, no fp8. */
static status reduce_support(int type, int op, int *supported) {
    *supported = type <= BFLOAT16 && (op == SUM || op == MAX || op == MIN);
    return SUCCESS;
}

static status coll_connect(void *handles[] SIM_UNUSED, int ranks SIM_UNUSED, int rank SIM_UNUSED,
                           void *listening SIM_UNUSED, void **comm) {
    return sim_net_hand_out(comm);
}

/* ncclCollNet_v6_t: the name and 14 functions. */
SIM_EXPORT struct {
    const char *name;
    void *functions[14];
} ncclCollNetPlugin_v6 = {
    sim_machine.net_name,
    {FUNCTION(init), FUNCTION(coll_devices), FUNCTION(get_properties), FUNCTION(sim_net_listen), FUNCTION(coll_connect),
     FUNCTION(reduce_support), FUNCTION(register_memory), NULL, FUNCTION(sim_net_succeed), FUNCTION(sim_net_refuse),
     FUNCTION(sim_net_refuse), FUNCTION(sim_net_refuse), FUNCTION(sim_net_succeed), FUNCTION(sim_net_succeed)},
};

/* ncclCollNet_v8_t: the name and 16 functions. */
SIM_EXPORT struct {
    const char *name;
    void *functions[16];
} ncclCollNetPlugin_v8 = {
    sim_machine.net_name,
    {FUNCTION(init), FUNCTION(coll_devices), FUNCTION(coll_properties), FUNCTION(sim_net_listen),
     FUNCTION(coll_connect), FUNCTION(reduce_support), FUNCTION(register_memory), NULL, FUNCTION(sim_net_succeed),
     FUNCTION(sim_net_refuse), FUNCTION(sim_net_refuse), FUNCTION(sim_net_refuse), FUNCTION(sim_net_refuse),
     FUNCTION(sim_net_refuse), FUNCTION(sim_net_succeed), FUNCTION(sim_net_succeed)},
};
