#define _DEFAULT_SOURCE /* pread, pwrite, fsync, syscall beside plain C11 */

#include "explorer.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "log.h"
#include "table.h"

enum { FIRST_CALL = 512, GROWTH = 4, MOST_ROUNDS = 10, LONGEST_WAIT_S = 600, PATH = 3400 };

/* What a rank says, at its own place in the file of its communicator. */
struct said {
    uint64_t table;
    uint32_t round, rank;
};

static _Atomic(struct explorer *) newest; /* of a list of all, none of which is ever freed */

void explorer_start(struct explorer *explorer, uint64_t communicator, int rank, int ranks, nccl_logger logger) {
    *explorer = (struct explorer){.communicator = communicator, .rank = rank, .ranks = ranks, .logger = logger};
    explorer->round = 1;
    atomic_init(&explorer->bound_at, UINT64_MAX);
    atomic_init(&explorer->from, UINT64_MAX);
    explorer->thread = syscall(SYS_gettid);
    explorer->next = atomic_load(&newest);
    while (!atomic_compare_exchange_weak(&newest, &explorer->next, explorer)) {
    }
}

/* FNV-1a */
static uint64_t hash(uint64_t hash, const char *text) {
    for (; *text; text++) {
        hash = (hash ^ (unsigned char)*text) * 0x100000001b3u;
    }
    return hash;
}

struct explorer *explorer_open(uint64_t communicator, const char *table, const char *build) {
    struct explorer *explorer = atomic_load(&newest);
    while (explorer && (explorer->communicator != communicator || explorer->thread != syscall(SYS_gettid))) {
        explorer = explorer->next;
    }
    if (!explorer) {
        return NULL;
    }
    explorer->table = hash(hash(0xcbf29ce484222325u, table), build);
    atomic_store_explicit(&explorer->wanted, true, memory_order_release);
    return explorer;
}

/* --- counting --- */

static int collective_of(const char *function) {
    static const char *const names[COLLECTIVES] = {"Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce"};
    for (int collective = COLLECTIVES - 1; function && collective >= 0; collective--) {
        if (strcmp(function, names[collective]) == 0) {
            return collective;
        }
    }
    return -1;
}

void explorer_call(struct explorer *explorer, const char *function, const void *group, bool captured) {
    if (captured) {
        atomic_store_explicit(&explorer->captured, true, memory_order_relaxed);
    }
    if (explorer->group != group) { /* what is pending of another one was only estimated, or failed */
        explorer->group = group;
        memset(explorer->pending, 0, sizeof explorer->pending);
    }
    int collective = collective_of(function);
    if (collective >= 0) {
        explorer->pending[collective]++;
    }
}

void explorer_launch(struct explorer *explorer, const void *group) {
    if (explorer->group != group) {
        return;
    }
    uint64_t all = atomic_load_explicit(&explorer->all, memory_order_relaxed);
    for (int collective = 0; collective < COLLECTIVES; collective++) {
        uint64_t calls = atomic_load_explicit(&explorer->calls[collective], memory_order_relaxed);
        atomic_store_explicit(&explorer->calls[collective], calls + explorer->pending[collective],
                              memory_order_relaxed);
        all += explorer->pending[collective];
        explorer->pending[collective] = 0;
    }
    atomic_store(&explorer->all, all); /* before bound_at is looked at: see stand() */
}

/* --- agreeing --- */

static uint64_t call_of_round(uint32_t round) {
    uint64_t call = FIRST_CALL;
    for (uint32_t i = 1; i < round; i++) {
        call *= GROWTH;
    }
    return call;
}

static uint64_t calls_of(const struct explorer *explorer) {
    return atomic_load_explicit(&explorer->all, memory_order_acquire);
}

static void path_of(const struct explorer *explorer, const char *folder, const char *what, char path[PATH]) {
    snprintf(path, PATH, "%s/.explore.%016" PRIx64 ".%s", folder, explorer->communicator, what);
}

static bool say(const struct explorer *explorer, const char *folder) {
    char path[PATH];
    struct said said = {explorer->table, explorer->round, (uint32_t)explorer->rank};
    path_of(explorer, folder, "ranks", path);
    int file = open(path, O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0644);
    bool good = file >= 0 && pwrite(file, &said, sizeof said, explorer->rank * (off_t)sizeof said) == sizeof said &&
                fsync(file) == 0;
    if (file >= 0) {
        close(file);
    }
    return good;
}

/* The first of so many ranks that has not said it; -1: all have. */
static int missing(const struct explorer *explorer, const char *folder, int ranks) {
    char path[PATH];
    struct said said;
    path_of(explorer, folder, "ranks", path);
    int file = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC), rank = 0;
    for (; file >= 0 && rank < ranks; rank++) {
        if (pread(file, &said, sizeof said, rank * (off_t)sizeof said) != sizeof said ||
            said.table != explorer->table || said.round != explorer->round || said.rank != (uint32_t)rank) {
            break;
        }
    }
    if (file >= 0) {
        close(file);
    }
    return rank == ranks ? -1 : rank;
}

static bool decision(const struct explorer *explorer, const char *folder, bool yes, bool make) {
    char path[PATH], what[32];
    snprintf(what, sizeof what, "%" PRIu32 ".%s", explorer->round, yes ? "yes" : "no");
    path_of(explorer, folder, what, path);
    if (!make) {
        return access(path, F_OK) == 0;
    }
    int file = open(path, O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (file >= 0) {
        close(file);
    }
    return file >= 0;
}

static void go_on(struct explorer *explorer) {
    explorer->round++;
    if (explorer->round > MOST_ROUNDS) {
        atomic_store_explicit(&explorer->wanted, false, memory_order_relaxed);
        log_warn(explorer->logger, "ranks have not agreed to explore: every choice there is NCCL's own");
    }
    atomic_store_explicit(&explorer->bound_at, UINT64_MAX, memory_order_release);
}

static void begin(struct explorer *explorer) {
    atomic_store_explicit(&explorer->wanted, false, memory_order_relaxed);
    atomic_store_explicit(&explorer->from, call_of_round(explorer->round), memory_order_release);
    atomic_store_explicit(&explorer->bound_at, UINT64_MAX, memory_order_release);
    log_info(explorer->logger, "all %d ranks explore, from call %" PRIu64 " of the communicator on", explorer->ranks,
             call_of_round(explorer->round));
}

/* Rank 0 decides; a decision that cannot be written is not made, and whoever is bound to it waits. */
static void decide(struct explorer *explorer, const char *folder) {
    bool bound = explorer->said_round == explorer->round;
    int rank = missing(explorer, folder, explorer->ranks);
    if (bound && rank < 0) {
        if (decision(explorer, folder, true, true)) {
            begin(explorer);
        }
    } else if (!bound || calls_of(explorer) >= call_of_round(explorer->round) / 2) {
        if (decision(explorer, folder, false, true)) {
            log_info(explorer->logger, "round %" PRIu32 ": rank %d is not there to explore", explorer->round, rank);
            go_on(explorer);
        }
    }
}

/* What a rank is in a round. */
enum standing { STANDS_OPEN, STANDS_BOUND, STANDS_PAST };

/* It binds itself before others can read that it is, and only where there is a rank 0 that will decide: it has bound itself
 * to the same round. */
static enum standing stand(struct explorer *explorer, const char *folder) {
    uint64_t call = call_of_round(explorer->round);
    if (explorer->said_round == explorer->round) {
        return STANDS_BOUND;
    }
    if (explorer->rank > 0 && calls_of(explorer) < call && missing(explorer, folder, 1) >= 0) {
        return STANDS_OPEN;
    }
    atomic_store(&explorer->bound_at, call);
    if (atomic_load(&explorer->all) >= call) { /* it may be past it already, unbound */
        atomic_store(&explorer->bound_at, UINT64_MAX);
        return STANDS_PAST;
    }
    if (say(explorer, folder)) { /* else others may have seen it, or not: it says it again the next time */
        explorer->said_round = explorer->round;
    }
    return STANDS_BOUND;
}

void explorer_agree(struct explorer *explorer, const char *folder) {
    if (!atomic_load_explicit(&explorer->wanted, memory_order_acquire)) {
        return;
    }
    enum standing standing = stand(explorer, folder);
    if (explorer->rank == 0) {
        decide(explorer, folder);
    } else if (standing == STANDS_PAST) { /* it has not said so: it was, or will be, decided against */
        go_on(explorer);
    } else if (standing == STANDS_OPEN) {
        return;
    } else if (decision(explorer, folder, true, false)) {
        begin(explorer);
    } else if (decision(explorer, folder, false, false)) {
        go_on(explorer);
    }
}

__attribute__((cold, noinline)) void explorer_wait(struct explorer *explorer) {
    const struct timespec pause = {0, 1000000};
    for (long waited_ms = 0; atomic_load_explicit(&explorer->bound_at, memory_order_acquire) <= calls_of(explorer);) {
        if (++waited_ms > LONGEST_WAIT_S * 1000L) {
            log_warn(explorer->logger, "no decision of rank 0 whether to explore can be read: it is taken for no");
            atomic_store(&explorer->bound_at, UINT64_MAX);
            atomic_store(&explorer->wanted, false);
            return;
        }
        nanosleep(&pause, NULL);
    }
}
