#include "names.h"

#include "abi.h"

/* In the order of NCCL's numbers. */
static const char *const collectives[COLLECTIVES] = {"Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce"};
static const char *const algorithms[ALGORITHMS] = {"Tree", "Ring",     "CollNetDirect", "CollNetChain",
                                                   "NVLS", "NVLSTree", "PAT"};
static const char *const protocols[PROTOCOLS] = {"LL", "LL128", "Simple"};

static int by_name(const char *const *names, int count, struct slice name) {
    for (int number = 0; number < count; number++) {
        if (slice_is_any_case(name, names[number])) {
            return number;
        }
    }
    return -1;
}

int collective_by_name(struct slice name) {
    return by_name(collectives, COLLECTIVES, name);
}

int algorithm_by_name(struct slice name) {
    return by_name(algorithms, ALGORITHMS, name);
}

int protocol_by_name(struct slice name) {
    return by_name(protocols, PROTOCOLS, name);
}
