/* NVML of a host: which GPUs there are, and where their NVLinks lead. A GPU whose links the topology file says has none
 * here: link queries are then "not supported".
 *
 * NCCL asks how many GPUs there are, and for each by its number, once per process: so every host has as many as the one
 * with the most. Only those that a host has are found by their bus id.
 */
#include <string.h>

#include "export.h"
#include "machine.h"

typedef void *device;

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6 };

static device handle_of(int index) {
    return (device)(uintptr_t)(index + 1);
}
static int index_of(device handle) {
    return (int)(uintptr_t)handle - 1;
}

SIM_EXPORT status nvmlInit(void) {
    return SUCCESS;
}
SIM_EXPORT status nvmlInit_v2(void) {
    return SUCCESS;
}
SIM_EXPORT status nvmlShutdown(void) {
    return SUCCESS;
}

SIM_EXPORT const char *nvmlErrorString(status result) {
    return result == SUCCESS ? "success" : result == NOT_SUPPORTED ? "not supported" : "simulated NVML error";
}

SIM_EXPORT status nvmlDeviceGetCount_v2(unsigned int *count) {
    *count = 0;
    for (int k = 0; k < sim_machine.kinds; k++) {
        if (sim_machine.kind[k].gpus_per_host > (int)*count) {
            *count = (unsigned int)sim_machine.kind[k].gpus_per_host;
        }
    }
    return SUCCESS;
}

SIM_EXPORT status nvmlDeviceGetCount(unsigned int *count) {
    return nvmlDeviceGetCount_v2(count);
}

SIM_EXPORT status nvmlDeviceGetHandleByIndex(unsigned int index, device *handle) {
    unsigned int count;
    nvmlDeviceGetCount_v2(&count);
    if (index >= count) {
        return INVALID_ARGUMENT;
    }
    *handle = handle_of((int)index);
    return SUCCESS;
}

SIM_EXPORT status nvmlDeviceGetHandleByPciBusId(const char *bus_id, device *handle) {
    int device = sim_device_of_bus_id(bus_id, sim_host_of(sim_device()));
    if (device < 0) {
        return NOT_FOUND;
    }
    *handle = handle_of(sim_gpu_of(device));
    return SUCCESS;
}

SIM_EXPORT status nvmlDeviceGetIndex(device handle, unsigned int *index) {
    *index = (unsigned int)index_of(handle);
    return SUCCESS;
}

SIM_EXPORT status nvmlDeviceGetCudaComputeCapability(device handle, int *major, int *minor) {
    const struct sim_host *host = sim_own_host();
    int index = index_of(handle) < host->gpus_per_host ? index_of(handle) : 0;
    *major = host->gpus[index].compute_capability / 10;
    *minor = host->gpus[index].compute_capability % 10;
    return SUCCESS;
}

SIM_EXPORT status nvmlDeviceGetP2PStatus(device a, device b, int capability SIM_UNUSED, int *peer_status) {
    *peer_status = sim_peers(index_of(a), index_of(b)) ? 0 : 1; /* usable; the chipset does not support it */
    return SUCCESS;
}

/* Bus id of what an NVLink leads to, NULL where there is no such link. */
static const char *far_end(device handle, unsigned int link) {
    if (link >= SIM_MAX_NVLINKS) {
        return NULL;
    }
    const struct sim_host *host = sim_own_host();
    if (index_of(handle) >= host->gpus_per_host) {
        return NULL;
    }
    const char *bus_id = host->gpus[index_of(handle)].nvlinks[link];
    return bus_id[0] == '\0' ? NULL : bus_id;
}

SIM_EXPORT status nvmlDeviceGetNvLinkState(device handle, unsigned int link, int *active) {
    if (far_end(handle, link) == NULL) {
        return NOT_SUPPORTED;
    }
    *active = 1;
    return SUCCESS;
}

/* nvmlPciInfo_t begins with the bus id; NCCL reads nothing else of it. */
SIM_EXPORT status nvmlDeviceGetNvLinkRemotePciInfo(device handle, unsigned int link, char *bus_id) {
    const char *end = far_end(handle, link);
    if (end == NULL) {
        return NOT_SUPPORTED;
    }
    memcpy(bus_id, end, SIM_BUS_ID_CHARS);
    return SUCCESS;
}

/* 2.31 asks for the kind of the far end. */
SIM_EXPORT status nvmlDeviceGetNvLinkRemoteDeviceType(device handle, unsigned int link, int *kind) {
    enum { GPU = 0, SWITCH = 2 };
    const char *end = far_end(handle, link);
    if (end == NULL) {
        return NOT_SUPPORTED;
    }
    *kind = sim_device_of_bus_id(end, sim_host_of(sim_device())) >= 0 ? GPU : SWITCH;
    return SUCCESS;
}

SIM_EXPORT status nvmlDeviceGetNvLinkCapability(device handle, unsigned int link, int capability,
                                                unsigned int *result) {
    enum { P2P_SUPPORTED = 0 };
    if (far_end(handle, link) == NULL || capability != P2P_SUPPORTED) {
        return NOT_SUPPORTED;
    }
    *result = 1;
    return SUCCESS;
}

struct field { /* nvmlFieldValue_t */
    unsigned int id;
    unsigned int scope;
    int64_t timestamp_us;
    int64_t latency_us;
    int type;
    status result;
    union {
        double real;
        unsigned int integer;
    } value;
};

/* From Hopper on, NCCL asks here for the state of a link. */
SIM_EXPORT status nvmlDeviceGetFieldValues(device handle, int count, struct field *fields) {
    enum { NVLINK_STATE = 165 };
    for (int i = 0; i < count; i++) {
        int active = fields[i].id == NVLINK_STATE && far_end(handle, fields[i].scope) != NULL;
        fields[i].result = active ? SUCCESS : NOT_SUPPORTED;
        if (active) {
            fields[i].value.integer = 1;
        }
    }
    return SUCCESS;
}

struct fabric_info { /* nvmlGpuFabricInfo_v2_t */
    unsigned int version;
    unsigned char cluster[16];
    status status;
    unsigned int clique;
    unsigned char state;
    unsigned int health_mask;
};

/* Every domain is a cluster of its own, with one clique. NCCL asks each rank for its own GPU only. */
SIM_EXPORT status nvmlDeviceGetGpuFabricInfoV(device handle SIM_UNUSED, struct fabric_info *info) {
    enum { IN_PROGRESS = 2, COMPLETED = 3 };
    int domain = sim_domain_of(sim_device());
    if (domain == SIM_NO_DOMAIN) {
        return NOT_SUPPORTED;
    }
    *info = (struct fabric_info){.version = info->version, .status = SUCCESS};
    info->state = sim_machine.without_fabric[sim_device()] ? IN_PROGRESS : COMPLETED;
    memcpy(info->cluster, &domain, sizeof domain);
    return SUCCESS;
}

/* NCCL 2.30 asks for what the topology file does not say, without looking whether NVML has the function. */
SIM_EXPORT status nvmlDeviceGetPciInfo_v3(device handle SIM_UNUSED, void *info SIM_UNUSED) {
    return NOT_SUPPORTED;
}
SIM_EXPORT status nvmlDeviceGetPciInfoExt(device handle SIM_UNUSED, void *info SIM_UNUSED) {
    return NOT_SUPPORTED;
}

SIM_EXPORT status nvmlDeviceGetCurrPcieLinkGeneration(device handle SIM_UNUSED, unsigned int *generation SIM_UNUSED) {
    return NOT_SUPPORTED;
}

SIM_EXPORT status nvmlDeviceGetCurrPcieLinkWidth(device handle SIM_UNUSED, unsigned int *width SIM_UNUSED) {
    return NOT_SUPPORTED;
}

SIM_EXPORT status nvmlDeviceGetPcieLinkMaxSpeed(device handle SIM_UNUSED, unsigned int *speed SIM_UNUSED) {
    return NOT_SUPPORTED;
}

SIM_EXPORT status nvmlDeviceGetMemoryErrorCounter(device handle SIM_UNUSED, int error SIM_UNUSED,
                                                  int counter SIM_UNUSED, int location SIM_UNUSED,
                                                  unsigned long long *count SIM_UNUSED) {
    return NOT_SUPPORTED;
}

SIM_EXPORT status nvmlDeviceGetName(device handle SIM_UNUSED, char *name SIM_UNUSED, unsigned int chars SIM_UNUSED) {
    return NOT_SUPPORTED;
}

SIM_EXPORT status nvmlSystemGetDriverVersion(char *version SIM_UNUSED, unsigned int chars SIM_UNUSED) {
    return NOT_SUPPORTED;
}

struct platform_info { /* nvmlPlatformInfo_v2_t */
    unsigned int version;
    unsigned char ib_guid[16];
    unsigned char chassis_serial_number[16];
    unsigned char slot, tray, host, peer_type, module;
};

/* A domain is one chassis. */
SIM_EXPORT status nvmlDeviceGetPlatformInfo(device handle SIM_UNUSED, struct platform_info *info) {
    int domain = sim_domain_of(sim_device());
    if (domain == SIM_NO_DOMAIN) {
        return NOT_SUPPORTED;
    }
    *info = (struct platform_info){.version = info->version};
    memcpy(info->chassis_serial_number, &domain, sizeof domain);
    return SUCCESS;
}
SIM_EXPORT status nvmlSystemGetConfComputeState(void *state SIM_UNUSED) {
    return NOT_SUPPORTED;
}
SIM_EXPORT status nvmlSystemGetConfComputeSettings(void *settings SIM_UNUSED) {
    return NOT_SUPPORTED;
}
