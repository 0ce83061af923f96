#include "names.h"

#include "abi.h"

#define COUNT(names) ((int)(sizeof(names) / sizeof *(names)))

/* In the order of NCCL's numbers. */
static const char *const collectives[COLLECTIVES] = {"Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce"};
static const char *const algorithms[ALGORITHMS] = {"Tree", "Ring",     "CollNetDirect", "CollNetChain",
                                                   "NVLS", "NVLSTree", "PAT"};
static const char *const protocols[PROTOCOLS] = {"LL", "LL128", "Simple"};

/* In the order of ncclTunerConstants_v5_t. */
static const char *const links[] = {"nvlink", "pci", "net"};
static const char *const caps[] = {"ll-gbs", "ring-ll128-per-channel-gbs", "tree-ll128-per-channel-gbs",
                                   "tree-per-channel-gbs", "nvlstree-per-channel-gbs"};
static const char *const generations[] = {"volta", "ampere", "hopper", "blackwell"};
static const char *const node_counts[] = {"1", "2", "more"};

static int by_name(const char *const *names, int count, struct slice name) {
    for (int number = 0; number < count; number++) {
        if (slice_is_any_case(name, names[number])) {
            return number;
        }
    }
    return -1;
}

int collective_by_name(struct slice name) {
    return by_name(collectives, COUNT(collectives), name);
}

int algorithm_by_name(struct slice name) {
    return by_name(algorithms, COUNT(algorithms), name);
}

int protocol_by_name(struct slice name) {
    return by_name(protocols, COUNT(protocols), name);
}

int link_by_name(struct slice name) {
    return by_name(links, COUNT(links), name);
}

int cap_by_name(struct slice name) {
    for (int number = 0; number < COUNT(caps); number++) {
        if (slice_is(name, caps[number])) {
            return number;
        }
    }
    return -1;
}

int generation_by_name(struct slice name) {
    return by_name(generations, COUNT(generations), name);
}

int node_count_by_name(struct slice name) {
    return by_name(node_counts, COUNT(node_counts), name);
}
