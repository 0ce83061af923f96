/* Initialises a communicator: what all ranks do together, each in a thread of its own. */
#define _GNU_SOURCE
#include "ranks.h"

#include <pthread.h>
#include <stdlib.h>

#include "export.h"
#include "machine.h"
#include "meeting.h"
#include "oracle.h"

struct work {
    pthread_t thread;
    struct rank *rank;
    void (*act)(struct rank *rank);
};

static void *run(void *argument) {
    struct work *work = argument;
    sim_set_device(work->rank->rank);
    work->act(work->rank);
    if (work->rank->result != 0) {
        sim_abandon_meetings();
        sim_release_searchers();
        sim_release_systems();
    }
    return NULL;
}

int sim_run_ranks(struct rank *all, int ranks, void (*act)(struct rank *rank)) {
    struct work *work = calloc((size_t)ranks, sizeof *work);
    if (work == NULL) {
        return -1;
    }
    for (int r = 0; r < ranks; r++) {
        work[r].rank = &all[r];
        work[r].act = act;
        if (pthread_create(&work[r].thread, NULL, run, &work[r]) != 0) {
            return -1;
        }
    }
    for (int r = 0; r < ranks; r++) {
        pthread_join(work[r].thread, NULL);
    }
    free(work);
    return 0;
}

static const void *configuration; /* of every rank */

static void initialise(struct rank *rank) {
    if (configuration != NULL) {
        rank->result = sim_nccl.comm_init_rank_config(&rank->comm, rank->ranks, rank->id, rank->rank, configuration);
        return;
    }
    rank->result = sim_nccl.comm_init_rank(&rank->comm, rank->ranks, rank->id, rank->rank);
}

SIM_EXPORT int sim_init_ranks(int ranks, const void *config, void **comms, int *results) {
    configuration = config;
    struct rank *all = calloc((size_t)ranks, sizeof *all);
    struct unique_id id;
    if (all == NULL) {
        return -1;
    }
    sim_forget_searches();
    sim_forget_systems();
    sim_intercept_again();
    sim_meet_alone(0);
    sim_set_device(0);
    status identified = sim_nccl.unique_id(&id);
    for (int r = 0; r < ranks; r++) {
        all[r] = (struct rank){.rank = r, .ranks = ranks, .id = id, .result = identified};
    }
    if (identified == 0 && sim_run_ranks(all, ranks, initialise) != 0) {
        return -1;
    }
    for (int r = 0; r < ranks; r++) {
        comms[r] = all[r].comm;
        results[r] = all[r].result;
    }
    free(all);
    sim_meet_alone(1);
    return 0;
}
