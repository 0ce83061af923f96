/* A communicator of some ranks of the one that there is, made by NCCL on the threads of all of them. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "export.h"
#include "machine.h"
#include "meeting.h"
#include "oracle.h"
#include "ranks.h"

enum { NO_COLOR = -1, COLOR = 0, FLAGS = 0 };

static int is_member[SIM_MAX_RANKS];
static int by_shrinking;

/* NCCL sorts the list that it is given, so every rank has its own. */
static status shrunk(struct rank *rank, void **part) {
    int without[SIM_MAX_RANKS], n = 0;
    for (int r = 0; r < rank->ranks; r++) {
        if (!is_member[r]) {
            without[n++] = r;
        }
    }
    return sim_nccl.comm_shrink(rank->comm, without, n, part, NULL, FLAGS);
}

static void make(struct rank *rank) {
    int member = is_member[rank->rank];
    void *part = NULL;
    if (!by_shrinking) {
        rank->result = sim_nccl.comm_split(rank->comm, member ? COLOR : NO_COLOR, rank->rank, &part, NULL);
    } else if (member) {
        rank->result = shrunk(rank, &part);
    }
    rank->comm = part;
}

SIM_EXPORT int sim_make_part(void **comms, int ranks, const int *members, int n, int by, int *results) {
    struct rank *all = calloc((size_t)ranks, sizeof *all);
    by_shrinking = by == SIM_BY_SHRINK;
    if (all == NULL || (by_shrinking && sim_nccl.comm_shrink == NULL)) {
        return -1;
    }
    memset(is_member, 0, sizeof is_member);
    for (int i = 0; i < n; i++) {
        is_member[members[i]] = 1;
    }
    for (int r = 0; r < ranks; r++) {
        all[r] = (struct rank){.rank = r, .ranks = ranks, .comm = comms[r]};
    }
    sim_keep_members(members, n);
    sim_part(members, n);
    sim_forget_searches();
    sim_forget_systems();
    sim_intercept_again();
    sim_meet_alone(0);
    if (sim_run_ranks(all, ranks, make) != 0) {
        return -1;
    }
    for (int r = 0; r < ranks; r++) {
        results[r] = all[r].result;
    }
    for (int i = 0; i < n; i++) {
        comms[i] = all[members[i]].comm;
    }
    sim_meet_alone(1);
    free(all);
    return 0;
}
