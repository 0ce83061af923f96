/* The buffers of collectives: address space without memory, registered with NCCL in several ways. */
#include "buffers.h"

#include <stdlib.h>

#include "export.h"
#include "machine.h"
#include "meeting.h"
#include "memory.h"
#include "oracle.h"
#include "ranks.h"

#define PLAIN_BYTES ((size_t)1 << 42)
#define REGISTERED_BYTES ((size_t)1 << 34) /* 2.32 keeps all of a communicator's in an arena, and 64 GiB do not fit */

static struct sim_buffers buffers[SIM_BUFFER_KINDS];
static int used = SIM_PLAIN;

static size_t bytes_of(int kind) {
    return kind == SIM_PLAIN ? PLAIN_BYTES : REGISTERED_BYTES;
}

SIM_EXPORT uint64_t sim_buffer_bytes(int kind) {
    return bytes_of(kind);
}

static int prepare(int kind) {
    if (buffers[kind].send == NULL)
        buffers[kind].send = sim_map_untouchable(bytes_of(kind));
    if (buffers[kind].receive == NULL)
        buffers[kind].receive = sim_map_untouchable(bytes_of(kind));
    return buffers[kind].send == NULL || buffers[kind].receive == NULL ? -1 : 0;
}

struct sim_buffers sim_buffers(void) {
    prepare(used);
    return buffers[used];
}

static status register_pair(void *comm) {
    const struct sim_buffers *pair = &buffers[SIM_REGISTERED];
    void *handle;
    status registered = sim_nccl.comm_register(comm, pair->send, REGISTERED_BYTES, &handle);
    if (registered != 0)
        return registered;
    return sim_nccl.comm_register(comm, pair->receive, REGISTERED_BYTES, &handle);
}

/* All ranks register a window together, each the same buffers: their memory is never looked at. */
static void register_windows(struct rank *rank) {
    enum { COLL_SYMMETRIC = 1 };
    const struct sim_buffers *pair = &buffers[SIM_WINDOW];
    void *window;
    rank->result = sim_nccl.window_register(rank->comm, pair->send, REGISTERED_BYTES, &window, COLL_SYMMETRIC);
    if (rank->result == 0)
        rank->result = sim_nccl.window_register(rank->comm, pair->receive, REGISTERED_BYTES, &window, COLL_SYMMETRIC);
}

static status register_all_windows(void **comms, int ranks) {
    struct rank *all = calloc((size_t)ranks, sizeof *all);
    if (all == NULL)
        return -1;
    for (int r = 0; r < ranks; r++)
        all[r] = (struct rank){.rank = r, .comm = comms[r]};
    sim_meet_alone(0);
    if (sim_run_ranks(all, ranks, register_windows) != 0)
        return -1;
    status result = 0;
    for (int r = 0; r < ranks && result == 0; r++)
        result = all[r].result;
    sim_meet_alone(1);
    free(all);
    return result;
}

SIM_EXPORT int sim_use_buffers(void **comms, int ranks, int kind) {
    if (kind < 0 || kind >= SIM_BUFFER_KINDS)
        return -1;
    int known = buffers[kind].send != NULL && buffers[kind].receive != NULL;
    if (prepare(kind) != 0)
        return -1;
    used = kind;
    sim_set_device(0);
    if (known)
        return 0;
    if (kind == SIM_REGISTERED)
        return register_pair(comms[0]);
    return kind == SIM_WINDOW ? register_all_windows(comms, ranks) : 0;
}
