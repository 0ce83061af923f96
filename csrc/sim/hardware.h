/* The simulated machine as the parent describes it. Python reads this header too, which holds no macros. */
#ifndef NCCL_TUNER_SIM_HARDWARE_H
#define NCCL_TUNER_SIM_HARDWARE_H

#include <stdint.h>

enum {
    SIM_MAX_RANKS = 4096,
    SIM_MAX_LOCAL_GPUS = 64,
    SIM_MAX_LOCAL_RANKS = 512,
    SIM_MAX_NETS = 64,
    SIM_BUS_ID_CHARS = 16, /* "0000:1b:00.0" and its end */
    SIM_NET_NAME_CHARS = 64,
    SIM_MAX_KINDS = 16,   /* of hosts that differ */
    SIM_MAX_NVLINKS = 18, /* no release looks at more */
    SIM_PATH_CHARS = 4096,
    SIM_NO_DOMAIN = 0,
    SIM_HOST_HASH = 0x1000,   /* of the first host; the next ones count on from it */
    SIM_HOST_OF_GUID_BIT = 32 /* in a NVLink domain, where the host's number is added to its adapters' guids */
};

struct sim_gpu {
    char bus_id[SIM_BUS_ID_CHARS];
    int compute_capability; /* 90 is 9.0 */
    char nvlinks[SIM_MAX_NVLINKS]
                [SIM_BUS_ID_CHARS]; /* where each NVLink leads; empty: no link, or the topology says it */
    int peer_group;                 /* GPUs of one group reach each other's memory over PCIe */
};

struct sim_net {
    char name[SIM_NET_NAME_CHARS];
    uint64_t guid;
    int speed_mbps;
    int port;
    int max_comms;
    int gdr; /* 1: GPUDirect RDMA */
    float latency_us;
    char pci_path[SIM_PATH_CHARS]; /* below sysfs; empty: the topology names the device */
};

/* One kind of host. */
struct sim_host {
    int gpus_per_host;
    int ranks_per_host;
    int nets_per_host;
    int multicast;              /* 1: the GPUs offer NVLink multicast, which NVLS needs */
    int coll_nets;              /* how many of the nets offer in-network collectives */
    int merges_nets;            /* 1: its network merges devices into virtual ones, as NCCL's own for InfiniBand */
    char sysfs[SIM_PATH_CHARS]; /* a folder per PCI device, by bus id; empty: this host has no sysfs */
    int gpu_of_rank[SIM_MAX_LOCAL_RANKS]; /* which of the gpus each rank is on; several may share one */
    struct sim_gpu gpus[SIM_MAX_LOCAL_GPUS];
    struct sim_net nets[SIM_MAX_NETS];
    char topology[SIM_PATH_CHARS]; /* the file NCCL reads there; in a NVLink domain with the host's number behind it */
};

struct sim_machine {
    int hosts;
    int kinds;
    int driver_version;    /* 12080 is CUDA 12.8 */
    int ranks_per_process; /* neighbours on a host, from its first rank on */
    char net_name[SIM_NET_NAME_CHARS];
    int kind_of_host[SIM_MAX_RANKS];
    int domain_of_host
        [SIM_MAX_RANKS]; /* the NVLink domain that its GPUs are in, numbered from 1; SIM_NO_DOMAIN: none */
    int without_fabric[SIM_MAX_RANKS]; /* 1: the GPU of this rank has not joined the fabric of its domain */
    struct sim_host kind[SIM_MAX_KINDS];
};

#endif
