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

typedef bool (*comparison)(struct slice text, const char *word);

static int by_name(const char *const *names, int count, struct slice name, comparison is) {
    for (int number = 0; number < count; number++) {
        if (is(name, names[number])) {
            return number;
        }
    }
    return -1;
}

int collective_by_name(struct slice name) {
    return by_name(collectives, COUNT(collectives), name, slice_is_any_case);
}

int algorithm_by_name(struct slice name) {
    return by_name(algorithms, COUNT(algorithms), name, slice_is_any_case);
}

int protocol_by_name(struct slice name) {
    return by_name(protocols, COUNT(protocols), name, slice_is_any_case);
}

int cap_by_name(struct slice name) {
    return by_name(caps, COUNT(caps), name, slice_is);
}

int link_by_name(struct slice name) {
    return by_name(links, COUNT(links), name, slice_is);
}

int generation_by_name(struct slice name) {
    return by_name(generations, COUNT(generations), name, slice_is);
}

int node_count_by_name(struct slice name) {
    return by_name(node_counts, COUNT(node_counts), name, slice_is);
}
