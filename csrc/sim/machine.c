/* The machine: hosts, their GPUs, and which of them the calling thread is on. */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "double.h"
#include "export.h"
#include "machine.h"
#include "oracle.h"

struct sim_machine sim_machine;

enum { NEVER_SET = -1, NO_MEMBER = -1 };

static int first_device_of_process;
static _Thread_local int current_device = NEVER_SET;

static int devices;
static int first_device[SIM_MAX_RANKS + 1]; /* of each host */
static int host_of[SIM_MAX_RANKS];          /* of each device */

/* Of the communicator that is being made. */
static int first_of_host[SIM_MAX_RANKS + 1], ranks_of_host[SIM_MAX_RANKS + 1];
static int first_of_domain[SIM_MAX_RANKS + 1], ranks_of_domain[SIM_MAX_RANKS + 1];
static int rank_of[SIM_MAX_RANKS]; /* of each device, NO_MEMBER where it is not of the communicator */

static void forget_members(void) {
    memset(ranks_of_host, 0, sizeof ranks_of_host);
    memset(ranks_of_domain, 0, sizeof ranks_of_domain);
    for (int device = 0; device < SIM_MAX_RANKS; device++) {
        rank_of[device] = NO_MEMBER;
    }
}

static void count_member(int device, int rank) {
    int host = host_of[device], domain = sim_machine.domain_of_host[host];
    rank_of[device] = rank;
    if (ranks_of_host[host]++ == 0) {
        first_of_host[host] = device;
    }
    if (domain != SIM_NO_DOMAIN && ranks_of_domain[domain]++ == 0) {
        first_of_domain[domain] = device;
    }
}

void sim_keep_members(const int *members, int n) {
    forget_members();
    for (int rank = 0; rank < n; rank++) {
        count_member(members[rank], rank);
    }
}

int sim_host_ranks(int host) {
    return ranks_of_host[host];
}

SIM_EXPORT int sim_configure(const struct sim_machine *machine) {
    if (machine->hosts < 1 || machine->hosts > SIM_MAX_RANKS || machine->kinds < 1 || machine->kinds > SIM_MAX_KINDS ||
        machine->ranks_per_process < 1) {
        return -1;
    }
    for (int k = 0; k < machine->kinds; k++) {
        const struct sim_host *kind = &machine->kind[k];
        if (kind->gpus_per_host < 1 || kind->gpus_per_host > SIM_MAX_LOCAL_GPUS || kind->nets_per_host < 1 ||
            kind->nets_per_host > SIM_MAX_NETS || kind->ranks_per_host < 1 ||
            kind->ranks_per_host > SIM_MAX_LOCAL_RANKS) {
            return -1;
        }
        for (int rank = 0; rank < kind->ranks_per_host; rank++) {
            if (kind->gpu_of_rank[rank] < 0 || kind->gpu_of_rank[rank] >= kind->gpus_per_host) {
                return -1;
            }
        }
    }
    devices = 0;
    for (int host = 0; host < machine->hosts; host++) {
        int kind = machine->kind_of_host[host];
        if (kind < 0 || kind >= machine->kinds || devices + machine->kind[kind].ranks_per_host > SIM_MAX_RANKS) {
            return -1;
        }
        first_device[host] = devices;
        int domain = machine->domain_of_host[host];
        if (domain != SIM_NO_DOMAIN && (domain < 0 || domain > machine->hosts)) {
            return -1;
        }
        for (int i = 0; i < machine->kind[kind].ranks_per_host; i++) {
            host_of[devices++] = host;
        }
    }
    sim_machine = *machine;
    forget_members();
    for (int device = 0; device < devices; device++) {
        count_member(device, device);
    }
    sim_configure_merging();
    return 0;
}

const struct sim_host *sim_host(int host) {
    return &sim_machine.kind[sim_machine.kind_of_host[host]];
}

const struct sim_host *sim_own_host(void) {
    return sim_host(sim_host_of(sim_device()));
}

int sim_devices(void) {
    return devices;
}

static int seen[SIM_MAX_LOCAL_RANKS], n_seen; /* none: all devices, by their own numbers */

int sim_seen_devices(void) {
    return n_seen > 0 ? n_seen : devices;
}

int sim_number_of(int device) {
    if (n_seen == 0) {
        return device;
    }
    for (int number = 0; number < n_seen; number++) {
        if (seen[number] == device) {
            return number;
        }
    }
    return -1;
}

int sim_device_numbered(int number) {
    if (number < 0 || number >= sim_seen_devices()) {
        return -1;
    }
    return n_seen > 0 ? seen[number] : number;
}

void sim_see_devices(const int *of, int n) {
    memcpy(seen, of, (size_t)n * sizeof *of);
    n_seen = n;
    sim_start_on(seen[0]);
}

int sim_device(void) {
    return current_device == NEVER_SET ? first_device_of_process : current_device;
}

SIM_EXPORT int sim_start_on(int device) {
    if (device < 0 || device >= sim_devices()) {
        return -1;
    }
    first_device_of_process = device;
    return 0;
}

int sim_set_device(int device) {
    if (device < 0 || device >= sim_devices()) {
        return -1;
    }
    current_device = device;
    return 0;
}

int sim_host_of(int device) {
    return host_of[device];
}

int sim_domain_of(int device) {
    return sim_machine.domain_of_host[host_of[device]];
}

int sim_domain_ranks(int domain) {
    return ranks_of_domain[domain];
}

int sim_first_of_domain(int domain) {
    return first_of_domain[domain];
}

int sim_first_of_system(int device, int gpus) {
    int host = host_of[device], domain = sim_domain_of(device);
    if (gpus == ranks_of_host[host]) {
        return first_of_host[host];
    }
    return domain != SIM_NO_DOMAIN && gpus == ranks_of_domain[domain] ? first_of_domain[domain] : -1;
}

/* Whether the GPUs of one host have the ranks of the other's, all of them later by the same number. */
static int alike(int one, int other) {
    if (sim_machine.kind_of_host[one] != sim_machine.kind_of_host[other] ||
        ranks_of_host[one] != ranks_of_host[other] || sim_machine.domain_of_host[one] != SIM_NO_DOMAIN ||
        sim_machine.domain_of_host[other] != SIM_NO_DOMAIN) {
        return 0;
    }
    int later = rank_of[first_of_host[other]] - rank_of[first_of_host[one]];
    for (int i = 0; i < sim_host(one)->ranks_per_host; i++) {
        int rank = rank_of[first_device[one] + i], same = rank_of[first_device[other] + i];
        if ((rank == NO_MEMBER) != (same == NO_MEMBER) || (rank != NO_MEMBER && same - rank != later)) {
            return 0;
        }
    }
    return 1;
}

int sim_first_alike(int device, int *ranks_before) {
    int own = host_of[device], host = 0;
    while (host < own && (ranks_of_host[host] == 0 || !alike(host, own))) {
        host++;
    }
    *ranks_before = rank_of[first_of_host[own]] - rank_of[first_of_host[host]];
    return first_of_host[host];
}

int sim_first_device(int host) {
    return first_device[host];
}

int sim_local_rank(int device) {
    return device - first_device[host_of[device]];
}

int sim_gpu_of(int device) {
    return sim_host(host_of[device])->gpu_of_rank[sim_local_rank(device)];
}

/* The calling thread's own device where that is the GPU, else the first: as a process that sees each GPU once. */
static int device_of_gpu(int gpu, int host) {
    const struct sim_host *kind = sim_host(host);
    int device = sim_device();
    if (host_of[device] == host && sim_gpu_of(device) == gpu) {
        return device;
    }
    for (int rank = 0; rank < kind->ranks_per_host; rank++) {
        if (kind->gpu_of_rank[rank] == gpu) {
            return first_device[host] + rank;
        }
    }
    return -1;
}

int sim_device_of_bus_id(const char *bus_id, int host) {
    const struct sim_host *kind = sim_host(host);
    for (int i = 0; i < kind->gpus_per_host; i++) {
        /* NCCL and CUDA print the domain with 4 or with 8 digits; the rest is the same. */
        const char *own = kind->gpus[i].bus_id;
        size_t own_chars = strlen(own), chars = strlen(bus_id);
        const char *tail = chars > own_chars ? bus_id + (chars - own_chars) : bus_id;
        if (strcasecmp(own, tail) == 0) {
            return device_of_gpu(i, host);
        }
    }
    return -1;
}

int sim_peers(int a, int b) {
    const struct sim_host *host = sim_own_host();
    return host->gpus[a].peer_group == host->gpus[b].peer_group;
}

/* Shared memory a block may opt in to, in bytes (CUDA C programming guide, table of compute capabilities). */
static int shared_memory_optin_bytes(int compute_capability) {
    switch (compute_capability) {
    case 60:
    case 61:
    case 62:
        return 48 << 10;
    case 70:
    case 72:
        return 96 << 10;
    case 75:
        return 64 << 10;
    case 80:
    case 87:
        return 163 << 10;
    case 86:
    case 89:
    case 120:
    case 121:
        return 99 << 10;
    default:
        return 227 << 10;
    }
}

int sim_device_attribute(int attribute, int device) {
    const struct sim_host *kind = sim_host(sim_host_of(device));
    int capability = kind->gpus[sim_gpu_of(device)].compute_capability;
    switch (attribute) {
    case 10:
        return 32; /* warp size */
    case 16:
        return 132; /* multiprocessors */
    case 41:
        return 1; /* unified addressing */
    case 75:
        return capability / 10;
    case 76:
        return capability % 10;
    case 95:
        return 1; /* cooperative launch */
    case 97:
        return shared_memory_optin_bytes(capability);
    case 102:
        return 1; /* virtual memory management */
    case 103:
        return 1; /* allocations can be shared as file descriptors */
    case 110:
        return 1; /* GPUDirect RDMA for such allocations */
    case 115:
        return 1; /* memory pools */
    case 116:
        return 1; /* GPUDirect RDMA */
    case 124:
        return 1; /* DMA-BUF */
    case 128:
        return sim_domain_of(device) != SIM_NO_DOMAIN; /* fabric handles: memory for the other hosts of its domain */
    case 132:
        return kind->multicast;
    case 134:
        return 0; /* NUMA node */
    default:
        return 0;
    }
}
