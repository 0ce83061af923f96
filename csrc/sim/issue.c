/* Issues collectives on one rank, alone or in groups, and collects what was observed of them. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "buffers.h"
#include "export.h"
#include "machine.h"
#include "nccl.h"
#include "oracle.h"
#include "ranks.h"
#include "record.h"

enum {
    BROADCAST = 0,
    REDUCE = 1,
    ALL_GATHER = 2,
    REDUCE_SCATTER = 3,
    ALL_REDUCE = 4,
    SEND = 6,
    RECEIVE = 7,
    ALL_TO_ALL = 8,
    SCATTER = 9,
    GATHER = 10
};
enum { INTERNAL_ERROR = 3 };

static int stream; /* its address is the stream */

static status issue_configured(void *comm, const struct sim_call *call, struct sim_buffers at) {
    const void *config = (const void *)(uintptr_t)call->config; /* NOLINT(performance-no-int-to-ptr) */
    switch (call->collective) {
    case BROADCAST:
        return sim_nccl.broadcast_config(at.send, at.receive, call->count, call->type, call->root, comm, &stream,
                                         config);
    case REDUCE:
        return sim_nccl.reduce_config(at.send, at.receive, call->count, call->type, call->op, call->root, comm, &stream,
                                      config);
    case ALL_GATHER:
        return sim_nccl.all_gather_config(at.send, at.receive, call->count, call->type, comm, &stream, config);
    case REDUCE_SCATTER:
        return sim_nccl.reduce_scatter_config(at.send, at.receive, call->count, call->type, call->op, comm, &stream,
                                              config);
    case ALL_REDUCE:
        return sim_nccl.all_reduce_config(at.send, at.receive, call->count, call->type, call->op, comm, &stream,
                                          config);
    default:
        return INTERNAL_ERROR;
    }
}

static status issue_one(void *comm, const struct sim_call *call) {
    struct sim_buffers at = sim_buffers();
    if (call->in_place) {
        at.receive = at.send;
    }
    if (call->config != 0) {
        return issue_configured(comm, call, at);
    }
    switch (call->collective) {
    case BROADCAST:
        return sim_nccl.broadcast(at.send, at.receive, call->count, call->type, call->root, comm, &stream);
    case REDUCE:
        return sim_nccl.reduce(at.send, at.receive, call->count, call->type, call->op, call->root, comm, &stream);
    case ALL_GATHER:
        return sim_nccl.all_gather(at.send, at.receive, call->count, call->type, comm, &stream);
    case REDUCE_SCATTER:
        return sim_nccl.reduce_scatter(at.send, at.receive, call->count, call->type, call->op, comm, &stream);
    case ALL_REDUCE:
        return sim_nccl.all_reduce(at.send, at.receive, call->count, call->type, call->op, comm, &stream);
    case SEND:
        return sim_nccl.send(at.send, call->count, call->type, call->root, comm, &stream);
    case RECEIVE:
        return sim_nccl.receive(at.receive, call->count, call->type, call->root, comm, &stream);
    case ALL_TO_ALL:
        return sim_nccl.all_to_all(at.send, at.receive, call->count, call->type, comm, &stream);
    case SCATTER:
        return sim_nccl.scatter(at.send, at.receive, call->count, call->type, call->root, comm, &stream);
    case GATHER:
        return sim_nccl.gather(at.send, at.receive, call->count, call->type, call->root, comm, &stream);
    default:
        return INTERNAL_ERROR;
    }
}

/* ncclSimInfo_t as of 2.22. */
struct simulation {
    size_t bytes;
    unsigned int magic;
    unsigned int version;
    float time_us;
};

static status simulate(void *comm, const struct sim_call *call, float *time_us) {
    struct simulation info = {sizeof info, 0x74685283u, 22200u, 0.0f};
    sim_nccl.group_start();
    status issued = issue_one(comm, call), ended = sim_nccl.simulate_end(&info);
    *time_us = info.time_us;
    return issued != 0 ? issued : ended;
}

static uint64_t log_length(int log_file) {
    struct stat info;
    fflush(NULL);
    return log_file >= 0 && fstat(log_file, &info) == 0 ? (uint64_t)info.st_size : 0;
}

static int begin(const struct sim_issue *issue) {
    sim_set_device(issue->device);
    return sim_buffers().send == NULL || sim_buffers().receive == NULL ? -1 : 0;
}

static void collect(struct sim_answer *answer, int log_file) {
    sim_work_done();
    answer->record = sim_record();
    answer->log_bytes = log_length(log_file);
}

SIM_EXPORT int sim_issue(const struct sim_issue *issue, const struct sim_call *calls, int n,
                         struct sim_answer *answers) {
    if (begin(issue) != 0) {
        return -1;
    }
    for (int i = 0; i < n; i++) {
        struct sim_answer *answer = &answers[i];
        memset(answer, 0, sizeof *answer);
        sim_record_start();
        if (issue->simulated) {
            answer->result = simulate(issue->comm, &calls[i], &answer->simulated_us);
        } else {
            if (issue->captured && sim_capture_begin(&stream) != 0) {
                return -1;
            }
            answer->result = issue_one(issue->comm, &calls[i]);
            if (issue->captured) {
                sim_graph_destroy(sim_capture_end(&stream));
            }
        }
        collect(answer, issue->log_file);
        if (answer->result != 0) {
            return i + 1;
        }
    }
    return n;
}

SIM_EXPORT int sim_issue_group(const struct sim_issue *issue, const struct sim_call *calls, int n,
                               struct sim_answer *answer) {
    if (begin(issue) != 0) {
        return -1;
    }
    memset(answer, 0, sizeof *answer);
    sim_record_start();
    if (issue->captured && sim_capture_begin(&stream) != 0) {
        return -1;
    }
    sim_nccl.group_start();
    for (int i = 0; i < n && answer->result == 0; i++) {
        answer->result = issue_one(issue->comm, &calls[i]);
    }
    status ended = sim_nccl.group_end();
    if (issue->captured) {
        sim_graph_destroy(sim_capture_end(&stream));
    }
    if (answer->result == 0) {
        answer->result = ended;
    }
    collect(answer, issue->log_file);
    return 0;
}

/* The call of every rank, which its thread makes. */
static const struct sim_call *everywhere;

static void issue_own(struct rank *rank) {
    rank->result = issue_one(rank->comm, everywhere);
}

SIM_EXPORT int sim_issue_everywhere(void **comms, int ranks, const struct sim_call *call, int *results, int *blocks) {
    struct rank *all = calloc((size_t)ranks, sizeof *all);
    if (all == NULL) {
        return -1;
    }
    for (int r = 0; r < ranks; r++) {
        all[r] = (struct rank){.rank = r, .ranks = ranks, .comm = comms[r]};
    }
    sim_record_start();
    sim_buffers(); /* made once, before there are threads */
    everywhere = call;
    if (sim_run_ranks(all, ranks, issue_own) != 0) {
        return -1;
    }
    sim_work_done();
    int kernels = sim_record().kernels;
    for (int r = 0; r < ranks; r++) {
        results[r] = all[r].result;
        blocks[r] = 0;
        for (int k = kernels; k-- > 0;) {
            if (sim_kernels()[k].device == r) {
                blocks[r] = (int)sim_kernels()[k].grid_x;
            }
        }
    }
    free(all);
    return 0;
}
