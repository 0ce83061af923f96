/* Observes what a process calls of libnccl, which it does itself, and gives it memory and devices. */
#include "double.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "export.h"
#include "machine.h"
#include "meeting.h"
#include "memory.h"
#include "nccl.h"
#include "oracle.h"
#include "record.h"
#include "redirect.h"

enum { BROADCAST = 0, REDUCE = 1, ALL_GATHER = 2, REDUCE_SCATTER = 3, ALL_REDUCE = 4, INIT_RANK = 5, OBSERVED = 6 };

static struct sim_hook hooks[OBSERVED];
static struct sim_joined *joined;
static struct sim_called *called;
static int n_joined, n_called;

/* Room for one more item behind n. */
static void *room(void *items, int n, size_t bytes) {
    void *moved = realloc(items, ((size_t)n + 1) * bytes);
    if (moved == NULL) {
        abort();
    }
    return moved;
}

static void note(int collective, const struct sim_called *call) {
    called = room(called, n_called, sizeof *called);
    struct sim_called *now = &called[n_called++];
    struct sim_record record = sim_record();
    *now = *call;
    now->collective = collective;
    now->kernels = record.kernels;
    now->operations = record.operations;
    sim_record_next_collective();
}

/* Calls the function itself. */
#define WHOLE(number, call)          \
    sim_hook_set(&hooks[number], 0); \
    status result = sim_nccl.call;   \
    sim_hook_set(&hooks[number], 1); \
    return result

static status broadcast(const void *send, void *receive, size_t count, int type, int root, void *comm, void *stream) {
    note(BROADCAST, &(struct sim_called){0, type, 0, root, count, send, receive, comm, stream, 0, 0});
    WHOLE(BROADCAST, broadcast(send, receive, count, type, root, comm, stream));
}

static status reduce(const void *send, void *receive, size_t count, int type, int op, int root, void *comm,
                     void *stream) {
    note(REDUCE, &(struct sim_called){0, type, op, root, count, send, receive, comm, stream, 0, 0});
    WHOLE(REDUCE, reduce(send, receive, count, type, op, root, comm, stream));
}

static status all_gather(const void *send, void *receive, size_t count, int type, void *comm, void *stream) {
    note(ALL_GATHER, &(struct sim_called){0, type, 0, 0, count, send, receive, comm, stream, 0, 0});
    WHOLE(ALL_GATHER, all_gather(send, receive, count, type, comm, stream));
}

static status reduce_scatter(const void *send, void *receive, size_t count, int type, int op, void *comm,
                             void *stream) {
    note(REDUCE_SCATTER, &(struct sim_called){0, type, op, 0, count, send, receive, comm, stream, 0, 0});
    WHOLE(REDUCE_SCATTER, reduce_scatter(send, receive, count, type, op, comm, stream));
}

static status all_reduce(const void *send, void *receive, size_t count, int type, int op, void *comm, void *stream) {
    note(ALL_REDUCE, &(struct sim_called){0, type, op, 0, count, send, receive, comm, stream, 0, 0});
    WHOLE(ALL_REDUCE, all_reduce(send, receive, count, type, op, comm, stream));
}

/* Ranks that share a GPU have a device each, of which the process only sees the first: its next one without a rank of
 * this communicator. */
static int own_device(const struct unique_id *id) {
    static struct unique_id last;
    static unsigned char taken[SIM_MAX_RANKS];
    if (memcmp(&last, id, sizeof last) != 0) {
        memset(taken, 0, sizeof taken);
        last = *id;
    }
    int device = sim_device(), gpu = sim_gpu_of(device), host = sim_host_of(device);
    while (taken[device] && device + 1 < sim_devices() && sim_host_of(device + 1) == host &&
           sim_gpu_of(device + 1) == gpu) {
        device++;
    }
    taken[device] = 1;
    return device;
}

static status init_rank(void **comm, int ranks, struct unique_id id, int rank) {
    int device = sim_device();
    sim_set_device(own_device(&id));
    sim_join(sim_device(), rank, ranks);
    sim_hook_set(&hooks[INIT_RANK], 0);
    status result = sim_nccl.comm_init_rank(comm, ranks, id, rank);
    sim_hook_set(&hooks[INIT_RANK], 1);
    if (result == 0) {
        joined = room(joined, n_joined, sizeof *joined);
        struct sim_joined *now = &joined[n_joined++];
        *now = (struct sim_joined){.comm = *comm, .rank = rank, .ranks = ranks, .device = sim_device()};
        memcpy(now->id, &id, sizeof now->id);
    }
    sim_set_device(device);
    return result;
}

SIM_EXPORT int sim_observe_calls(void) {
    const struct {
        const char *name;
        void *replacement;
    } rows[OBSERVED] = {
        [BROADCAST] = {"ncclBroadcast", (void *)(uintptr_t)broadcast},
        [REDUCE] = {"ncclReduce", (void *)(uintptr_t)reduce},
        [ALL_GATHER] = {"ncclAllGather", (void *)(uintptr_t)all_gather},
        [REDUCE_SCATTER] = {"ncclReduceScatter", (void *)(uintptr_t)reduce_scatter},
        [ALL_REDUCE] = {"ncclAllReduce", (void *)(uintptr_t)all_reduce},
        [INIT_RANK] = {"ncclCommInitRank", (void *)(uintptr_t)init_rank},
    };
    int error = 0;
    for (int i = 0; i < OBSERVED && error == 0; i++) {
        void *function = sim_nccl_function(rows[i].name);
        error = function == NULL ? ENOENT : sim_hook(&hooks[i], function, rows[i].replacement);
    }
    return error;
}

SIM_EXPORT struct sim_seen sim_seen(void) {
    struct sim_record record = sim_record();
    return (struct sim_seen){n_joined, n_called, record.kernels, record.operations};
}

SIM_EXPORT void sim_forget_seen(void) {
    n_joined = n_called = 0;
    sim_record_start();
}

SIM_EXPORT const struct sim_joined *sim_joined(void) {
    return joined;
}

SIM_EXPORT const struct sim_called *sim_called(void) {
    return called;
}

SIM_EXPORT void *sim_allocate(uint64_t bytes) {
    return sim_map(bytes, 0);
}

SIM_EXPORT int sim_release(void *address) {
    return sim_unmap(address);
}

SIM_EXPORT int sim_current_device(void) {
    return sim_device();
}

SIM_EXPORT int sim_select_device(int device) {
    return sim_set_device(device);
}
