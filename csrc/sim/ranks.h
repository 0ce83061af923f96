/* One thread for each rank. */
#ifndef NCCL_TUNER_SIM_RANKS_H
#define NCCL_TUNER_SIM_RANKS_H

#include "nccl.h"

struct rank {
    int rank;
    int ranks;
    struct unique_id id;
    void *comm;
    status result;
};

/* Runs what all ranks do together, in a thread for each. 0, or -1 when one could not be started: the others wait for it
 * and never return, so `all` has to be left where it is. */
int sim_run_ranks(struct rank *all, int ranks, void (*act)(struct rank *rank));

#endif
