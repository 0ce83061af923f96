/* The network devices of the calling thread's host, in the form that all interfaces of the network have in common. */
#ifndef NCCL_TUNER_SIM_NET_H
#define NCCL_TUNER_SIM_NET_H

#include <stddef.h>
#include <stdint.h>

#include "export.h"

struct sim_net;

enum { SUCCESS = 0, INTERNAL_ERROR = 3, INVALID_ARGUMENT = 4, INVALID_USAGE = 5 };
enum { POINTER_HOST = 1, POINTER_CUDA = 2 };

#define FUNCTION(f) (void *)(uintptr_t)(f)

/* What a network hands out where it only has to be something, and what it does of which only the result counts. */
status sim_net_hand_out(void **handle);
status sim_net_succeed(void);
status sim_net_refuse(void);
status sim_net_listen(int index, void *handle, void **comm);
status sim_net_connect(int index, void *handle, void **comm);
status sim_net_accept(void *listening, void **comm);

/* In a NVLink domain every host has adapters of its own. */
uint64_t sim_net_guid(const struct sim_net *net);

/* A device as newer interfaces describe it, which NCCL may have merged of several. */
enum { SIM_MOST_MERGED = 8 };

struct sim_merged {
    int devices;
    int device[SIM_MOST_MERGED];
};

/* What all these interfaces begin with. */
struct sim_net_properties {
    const char *name;
    char *pci_path;
    uint64_t guid;
    int pointer_support;
    int registered_globally;
    int force_flush;
    int speed_mbps;
    int port;
    float latency_us;
    int max_comms;
    int max_receives;
    int device_type; /* 0: the host, no offload */
    int device_version;
};

struct sim_net_properties_v9 {
    struct sim_net_properties common;
    struct {
        int devices;
        int device[4];
    } merged;
    size_t max_p2p_bytes;
    size_t max_coll_bytes;
};

struct sim_net_properties_v11 {
    struct sim_net_properties_v9 known;
    int max_requests_in_one;
};

struct sim_net_properties_v12 {
    struct sim_net_properties common;
    struct sim_merged merged;
    size_t max_p2p_bytes;
    size_t max_coll_bytes;
    int max_requests_in_one;
    int16_t rail; /* -1: unknown */
    int16_t plane;
};

status sim_net_properties_v9(int index, struct sim_net_properties_v9 *properties);
status sim_net_properties_v12(int index, struct sim_net_properties_v12 *properties);

#endif
