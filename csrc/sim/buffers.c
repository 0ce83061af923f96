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

/* How the pair of each kind is known to NCCL now; without sides not at all. */
static struct sim_registration known[SIM_BUFFER_KINDS];

/* What NCCL gave for each side, of every rank: rank by rank. */
static void **handles[SIM_BUFFER_KINDS];

static size_t bytes_of(int kind) {
    return kind == SIM_PLAIN ? PLAIN_BYTES : REGISTERED_BYTES;
}

SIM_EXPORT uint64_t sim_buffer_bytes(int kind) {
    return bytes_of(kind);
}

static int prepare(int kind) {
    if (buffers[kind].send == NULL) {
        buffers[kind].send = sim_map_untouchable(bytes_of(kind));
    }
    if (buffers[kind].receive == NULL) {
        buffers[kind].receive = sim_map_untouchable(bytes_of(kind));
    }
    return buffers[kind].send == NULL || buffers[kind].receive == NULL ? -1 : 0;
}

struct sim_buffers sim_buffers(void) {
    prepare(used);
    return buffers[used];
}

/* A side's buffer and what it is registered as, of one rank. */
struct side {
    int bit;
    void *buffer;
    void **handle;
};

static struct side side_of(int kind, int rank, int which) {
    int bit = which == 0 ? SIM_SEND : SIM_RECEIVE;
    void *buffer = which == 0 ? buffers[kind].send : buffers[kind].receive;
    return (struct side){bit, buffer, &handles[kind][2 * rank + which]};
}

/* All ranks register a window together, each the same buffers: their memory is never looked at. */
static void register_sides(struct rank *rank) {
    for (int which = 0; which < 2 && rank->result == 0; which++) {
        struct side side = side_of(used, rank->rank, which);
        if ((known[used].sides & side.bit) == 0) {
            continue;
        }
        if (used == SIM_REGISTERED) {
            rank->result = sim_nccl.comm_register(rank->comm, side.buffer, REGISTERED_BYTES, side.handle);
        } else {
            rank->result =
                sim_nccl.window_register(rank->comm, side.buffer, REGISTERED_BYTES, side.handle, known[used].flags);
        }
    }
}

/* A window of NULL is one that NCCL did not make. */
static void deregister_sides(struct rank *rank) {
    status (*deregister)(void *, void *) =
        used == SIM_REGISTERED ? sim_nccl.comm_deregister : sim_nccl.window_deregister;
    for (int which = 0; which < 2 && rank->result == 0; which++) {
        struct side side = side_of(used, rank->rank, which);
        if (*side.handle != NULL) {
            rank->result = deregister(rank->comm, *side.handle);
        }
        *side.handle = NULL;
    }
}

/* One after the other, where ranks do it for themselves. */
static status of_all_ranks(void **comms, int ranks, void (*act)(struct rank *rank)) {
    if (used == SIM_REGISTERED) {
        struct rank each = {.result = 0};
        for (int r = 0; r < ranks && each.result == 0; r++) {
            each = (struct rank){.rank = r, .comm = comms[r]};
            sim_set_device(r);
            act(&each);
        }
        sim_set_device(0);
        return each.result;
    }
    struct rank *all = calloc((size_t)ranks, sizeof *all);
    if (all == NULL) {
        return -1;
    }
    for (int r = 0; r < ranks; r++) {
        all[r] = (struct rank){.rank = r, .comm = comms[r]};
    }
    sim_meet_alone(0);
    if (sim_run_ranks(all, ranks, act) != 0) {
        return -1;
    }
    status result = 0;
    for (int r = 0; r < ranks && result == 0; r++) {
        result = all[r].result;
    }
    sim_meet_alone(1);
    free(all);
    return result;
}

SIM_EXPORT int sim_use_buffers(void **comms, int ranks, const struct sim_registration *wanted) {
    int kind = wanted->kind;
    if (kind < 0 || kind >= SIM_BUFFER_KINDS || prepare(kind) != 0) {
        return -1;
    }
    used = kind;
    sim_set_device(0);
    if (kind != SIM_REGISTERED && kind != SIM_WINDOW) {
        return 0;
    }
    if (known[kind].sides == wanted->sides && known[kind].flags == wanted->flags) {
        return 0;
    }
    if (handles[kind] == NULL) {
        handles[kind] = calloc(2 * (size_t)ranks, sizeof(void *));
    }
    if (handles[kind] == NULL) {
        return -1;
    }
    status result = known[kind].sides == 0 ? 0 : of_all_ranks(comms, ranks, deregister_sides);
    known[kind] = *wanted;
    return result == 0 ? of_all_ranks(comms, ranks, register_sides) : result;
}
