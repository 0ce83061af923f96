/* The words of a decision table, in NCCL's spelling; upper and lower case are the same. */
#ifndef PLUGIN_NAMES_H
#define PLUGIN_NAMES_H

#include "text.h"

/* NCCL's number for the name, or -1. */
int collective_by_name(struct slice name);
int algorithm_by_name(struct slice name);
int protocol_by_name(struct slice name);

/* For the end of an error message. */
#define VALID_COLLECTIVES "valid: Broadcast, Reduce, AllGather, ReduceScatter, AllReduce"
#define VALID_ALGORITHMS "valid: Tree, Ring, CollNetDirect, CollNetChain, NVLS, NVLSTree, PAT"
#define VALID_PROTOCOLS "valid: LL, LL128, Simple"

#endif
