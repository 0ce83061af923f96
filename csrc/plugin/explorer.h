/* The calls of a communicator, counted so that all its ranks have the same number, and whether arms of a table may be taken
 * yet.
 *
 * Counted are calls whose kernels were launched: by NCCL's events of its own interface (2.28 and later), in the order in
 * which the program makes the calls. What NCCL only estimates (ncclGroupSimulateEnd) is none, however often it asks a
 * tuner. A call that goes into a CUDA graph ends exploring on its communicator.
 *
 * Ranks have to agree that all of them explore: one may lack the plugin, the profiler, or the table. They do so by files,
 * in rounds, each for a call from which on all explore, or none:
 *  1. Rank 0, and then each other one that sees it, says that it is there, before it comes to that call: it is bound.
 *  2. Rank 0 decides for it once all have said so; it does that before its own half way to the call, or never. At half
 *     way its thread that launches waits only for a write that has begun.
 *  3. Who is bound has to know by that call. A kernel that all ranks have a part in has not ended before rank 0 has
 *     launched it. So a rank that has seen enough of them end, and then reads no decision, knows that there will be none,
 *     whatever became of rank 0: nobody waits for another rank, but only where its own files cannot be read. A call may
 *     be said to have ended as many works early as kernels did that NCCL does not count: so many more have to end. Only
 *     where these turn up in most calls after a rank has bound itself, it waits for the decision.
 * A rank that did not say so knows that it was not decided for. */
#ifndef PLUGIN_EXPLORER_H
#define PLUGIN_EXPLORER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "abi.h"

struct explorer {
    uint64_t communicator;
    int rank, ranks;
    nccl_logger logger;
    /* Of the thread that makes the calls: the group that is open, and calls of it that no kernel was launched for yet. */
    const void *group;
    uint32_t pending[COLLECTIVES];
    _Atomic(uint64_t) calls[COLLECTIVES], all;
    atomic_bool captured;
    _Atomic(uint64_t) miscounted; /* works of kernels that NCCL does not count */
    /* Between it and the thread that writes. */
    atomic_bool wanted;         /* a table explores here */
    uint64_t table;             /* a hash of it, and of the plugin */
    _Atomic(uint64_t) bound_at; /* not past this call without a decision; UINT64_MAX: nothing is open */
    _Atomic(uint64_t)
        closes_at;           /* rank 0: not past this call while a decision is being written; UINT64_MAX: none can be */
    _Atomic(uint64_t) ended; /* calls in which all ranks have a part and whose kernels have ended */
    _Atomic(uint64_t) from;  /* of which call on arms are taken; UINT64_MAX: none */
    atomic_bool writing;     /* a decision, which may or may not be there */
    atomic_bool waiting, gone;  /* a call waits; the communicator is gone */
    uint32_t round, said_round; /* of the thread that writes alone; rounds count from 1 */
    uint32_t tried_round;       /* in which others may have seen what this rank says, if they did not */
    int file;                   /* of the start; -1: not known yet */
    uint64_t number, start;     /* of this rank's explorer, and of rank 0's, which names the file */
    bool again;                 /* this process had a communicator of the same id and rank */
    bool failed;                /* the file could not be made */
    bool agreed, left;          /* all explore; the files are done with */
    long thread;                /* that started it */
    struct explorer *next;
};

void explorer_start(struct explorer *explorer, uint64_t communicator, int rank, int ranks, nccl_logger logger);

/* NCCL's events: a call is made within a group, and a kernel is launched for one; true where explorer_wait() has to come. */
void explorer_call(struct explorer *explorer, const char *function, const void *group, bool captured);
bool explorer_launch(struct explorer *explorer, const void *group);

/* A kernel has ended of a call that all ranks have a part in. */
static inline void explorer_end_call(struct explorer *explorer) {
    atomic_fetch_add_explicit(&explorer->ended, 1, memory_order_release);
}

bool explorer_is_of_all(const char *function);

/* A kernel did a work that NCCL does not count: calls from here on may be said to have ended one work early. */
static inline void explorer_miscount(struct explorer *explorer) {
    atomic_fetch_add_explicit(&explorer->miscounted, 1, memory_order_relaxed);
}

/* Its communicator is gone: a call that waits goes on. */
void explorer_stop(struct explorer *explorer);

/* The same, by the thread that writes, which removes the files. */
void explorer_end(struct explorer *explorer, const char *folder);

/* Now and then, by the thread that writes: says that this rank is there, and looks what the others say. */
void explorer_agree(struct explorer *explorer, const char *folder);

/* For the tuner: the one that this thread has started last for the communicator, whose table explores.
 * NULL where NCCL has made none, or does not say what is asked of it, before 2.28. Ranks explore that have the same
 * hash of the table, and the same build. */
struct explorer *explorer_open(uint64_t communicator, const char *table, const char *build);

/* Until it is known what rank 0 has decided: apart, so that a test can hold the rest of a call to no system call. */
void explorer_wait(struct explorer *explorer);

static inline bool explorer_is_waiting(const struct explorer *explorer) {
    return atomic_load_explicit(&explorer->waiting, memory_order_relaxed);
}

/* How many calls of the collective were launched; false where none is explored. */
static inline bool explorer_counts(struct explorer *explorer, int collective, uint64_t *count) {
    uint64_t all = atomic_load_explicit(&explorer->all, memory_order_relaxed);
    if (atomic_load_explicit(&explorer->captured, memory_order_relaxed) || (unsigned)collective >= COLLECTIVES) {
        return false;
    }
    if (__builtin_expect(all >= atomic_load(&explorer->bound_at), 0)) {
        explorer_wait(explorer);
    }
    if (all < atomic_load_explicit(&explorer->from, memory_order_acquire)) {
        return false;
    }
    *count = atomic_load_explicit(&explorer->calls[collective], memory_order_relaxed);
    return true;
}

#endif
