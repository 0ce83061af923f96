/* The words of a decision table. */
#ifndef PLUGIN_NAMES_H
#define PLUGIN_NAMES_H

#include "text.h"

/* NCCL's number for its name, in upper or lower case, or -1. */
int collective_by_name(struct slice name);
int algorithm_by_name(struct slice name);
int protocol_by_name(struct slice name);

/* The names, "?" for what is none of NCCL's numbers. */
const char *collective_name(int collective);
const char *algorithm_name(int algorithm);
const char *protocol_name(int protocol);

/* The table, row or column of NCCL's constants, or -1; lower case, like keys. */
int cap_by_name(struct slice name);
int link_by_name(struct slice name);
int generation_by_name(struct slice name);
int node_count_by_name(struct slice name);

/* For the end of an error message. */
#define VALID_COLLECTIVES "valid: Broadcast, Reduce, AllGather, ReduceScatter, AllReduce"
#define VALID_ALGORITHMS "valid: Tree, Ring, CollNetDirect, CollNetChain, NVLS, NVLSTree, PAT"
#define VALID_PROTOCOLS "valid: LL, LL128, Simple"
#define VALID_LINKS "valid: nvlink, pci, net"
#define VALID_CONSTANTS                                                                                         \
    "valid: base-latency-us, link-latency-us, ll-gbs, ring-ll128-per-channel-gbs, tree-ll128-per-channel-gbs, " \
    "tree-per-channel-gbs, nvlstree-per-channel-gbs"
#define VALID_GENERATIONS "valid: volta, ampere, hopper, blackwell"
#define VALID_NODE_COUNTS "valid: 1, 2, more"

#endif
