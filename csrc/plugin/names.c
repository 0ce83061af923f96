#include "names.h"

#include "abi.h"

#define COUNT(names) ((int)(sizeof(names) / sizeof *(names)))

/* In the order of NCCL's numbers. */
static const char *const collectives[COLLECTIVES] = {"Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce"};
static const char *const algorithms[ALGORITHMS] = {"Tree",     "Ring", "CollNetDirect", "CollNetChain", "NVLS",
                                                   "NVLSTree", "PAT"};
static const char *const protocols[PROTOCOLS] = {"LL", "LL128", "Simple"};

/* In the order of ncclTunerConstants_v5_t. */
static const char *const links[] = {"nvlink", "pci", "net"};
static const char *const caps[] = {"ll-gbs", "ring-ll128-per-channel-gbs", "tree-ll128-per-channel-gbs",
                                   "tree-per-channel-gbs", "nvlstree-per-channel-gbs"};
static const char *const generations[] = {"volta", "ampere", "hopper", "blackwell"};
static const char *const node_counts[] = {"1", "2", "more"};

int collective_by_name(struct slice name) {
    return slice_among(name, collectives, COUNT(collectives), slice_is_any_case);
}

int algorithm_by_name(struct slice name) {
    return slice_among(name, algorithms, COUNT(algorithms), slice_is_any_case);
}

int protocol_by_name(struct slice name) {
    return slice_among(name, protocols, COUNT(protocols), slice_is_any_case);
}

int cap_by_name(struct slice name) {
    return slice_among(name, caps, COUNT(caps), slice_is);
}

int link_by_name(struct slice name) {
    return slice_among(name, links, COUNT(links), slice_is);
}

int generation_by_name(struct slice name) {
    return slice_among(name, generations, COUNT(generations), slice_is);
}

int node_count_by_name(struct slice name) {
    return slice_among(name, node_counts, COUNT(node_counts), slice_is);
}

const char *collective_name(int collective) {
    return collective >= 0 && collective < COLLECTIVES ? collectives[collective] : "?";
}

const char *algorithm_name(int algorithm) {
    return algorithm >= 0 && algorithm < ALGORITHMS ? algorithms[algorithm] : "?";
}

const char *protocol_name(int protocol) {
    return protocol >= 0 && protocol < PROTOCOLS ? protocols[protocol] : "?";
}
