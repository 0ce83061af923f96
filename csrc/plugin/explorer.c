#define _DEFAULT_SOURCE /* pread, pwrite, fsync, syscall beside plain C11 */

#include "explorer.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "file.h"
#include "log.h"
#include "table.h"

enum { FIRST_CALL = 512, GROWTH = 4, MOST_ROUNDS = 10, SAYS_AFTER_MS = 10000, PATH = 3400 };

/* Calls that have to end beyond half way before a rank takes it that rank 0 is past it; one would do. */
enum { MARGIN = 64, MISCOUNTS_SHARE = 8 /* of the calls: one in so many, or nobody binds itself */ };

_Static_assert(FIRST_CALL / 2 - FIRST_CALL / MISCOUNTS_SHARE > MARGIN, "they end before the call itself");

static _Atomic(struct explorer *) newest; /* of a list of all, none of which is ever freed */

/* FNV-1a */
static uint64_t hash(uint64_t hash, const char *text) {
    for (; *text; text++) {
        hash = (hash ^ (unsigned char)*text) * 0x100000001b3u;
    }
    return hash;
}

/* Told from that of any other start, rank and communicator. */
static uint64_t number_of(const struct explorer *explorer) {
    struct timespec now;
    char host[65] = "", text[160];
    gethostname(host, sizeof host - 1);
    clock_gettime(CLOCK_REALTIME, &now);
    snprintf(text, sizeof text, "%.64s %ld %lld %ld %d %p", host, (long)getpid(), (long long)now.tv_sec, now.tv_nsec,
             explorer->rank, (const void *)explorer);
    return hash(0xcbf29ce484222325u, text);
}

void explorer_start(struct explorer *explorer, uint64_t communicator, int rank, int ranks, nccl_logger logger) {
    *explorer = (struct explorer){.communicator = communicator, .rank = rank, .ranks = ranks, .logger = logger};
    explorer->round = 1;
    atomic_init(&explorer->bound_at, UINT64_MAX);
    atomic_init(&explorer->closes_at, UINT64_MAX);
    atomic_init(&explorer->from, UINT64_MAX);
    explorer->thread = syscall(SYS_gettid);
    explorer->file = -1;
    explorer->number = number_of(explorer);
    explorer->next = atomic_load(&newest);
    for (const struct explorer *each = explorer->next; each && !explorer->again; each = each->next) {
        explorer->again = each->communicator == communicator && each->rank == rank;
    }
    while (!atomic_compare_exchange_weak(&newest, &explorer->next, explorer)) {
    }
}

struct explorer *explorer_open(uint64_t communicator, const char *table, const char *build) {
    struct explorer *explorer = atomic_load(&newest);
    while (explorer && (explorer->communicator != communicator || explorer->thread != syscall(SYS_gettid))) {
        explorer = explorer->next;
    }
    if (!explorer) {
        return NULL;
    }
    if (explorer->again) {
        log_info(explorer->logger,
                 "this process had a communicator of the same id, whose words could be taken for those of "
                 "this one: it does not explore");
        return explorer;
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

bool explorer_is_of_all(const char *function) {
    int collective = collective_of(function);
    return collective == COLLECTIVE_ALL_REDUCE || collective == COLLECTIVE_ALL_GATHER ||
           collective == COLLECTIVE_REDUCE_SCATTER;
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

bool explorer_launch(struct explorer *explorer, const void *group) {
    if (explorer->group != group) {
        return false;
    }
    uint64_t all = atomic_load_explicit(&explorer->all, memory_order_relaxed);
    for (int collective = 0; collective < COLLECTIVES; collective++) {
        uint64_t calls = atomic_load_explicit(&explorer->calls[collective], memory_order_relaxed);
        atomic_store_explicit(&explorer->calls[collective], calls + explorer->pending[collective],
                              memory_order_relaxed);
        all += explorer->pending[collective];
        explorer->pending[collective] = 0;
    }
    atomic_store(&explorer->all, all); /* before bound_at and writing are looked at: see stand() and write_yes() */
    return __builtin_expect(all >= atomic_load(&explorer->closes_at), 0) && atomic_load(&explorer->writing);
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

/* --- files --- */

/* In `.explore.ID` each rank leaves a number of its own that no other start has; rank 0's names the file of its start,
 * `.explore.ID.NUMBER`. There it repeats the numbers that it has read, so a rank that finds its own one knows that this
 * rank 0 is of the same start. Nothing of another start is ever believed: the id can be the same (NCCL_COMM_ID). */
struct arrival {
    uint64_t number, table;
};

enum { NO = 1, YES = 2, ARRIVALS = 256 };
enum { AGREED = UINT16_MAX }; /* what a rank says of rounds once it explores: it needs the files no more */

/* What the file of a start begins with: its rounds' decisions. Then a struct said of each rank. */
struct decisions {
    uint64_t of_round[MOST_ROUNDS + 1];
};

/* `number` is what rank 0 repeats, the rest the rank's own. */
struct said {
    uint64_t number, table;
    uint32_t round, rank;
};

static off_t place_of(int rank) {
    return (off_t)(sizeof(struct decisions) + (size_t)rank * sizeof(struct said));
}

/* A regular file, or none: a pipe would hold the thread. Clients of NFS keep what they have read: it is forgotten, so that
 * the file is looked at anew, and O_DSYNC has a write be of its own bytes alone, not of the page around them, which would
 * undo what others have written there since (nfs_can_extend_write(), fs/nfs/write.c of Linux 6.1). */
static int open_regular(const char *path, int flags) {
    int file = open(path, O_RDWR | O_DSYNC | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC | flags, 0644);
    if (file >= 0 && !file_is_regular(file)) {
        close(file);
        file = -1;
        errno = EINVAL;
    }
    if (file >= 0) {
        posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    }
    return file;
}

static bool put(int file, const void *bytes, size_t count, off_t at) {
    return pwrite(file, bytes, count, at) == (ssize_t)count && fsync(file) == 0;
}

static int open_meeting(const struct explorer *explorer, const char *folder, int flags) {
    char path[PATH];
    snprintf(path, PATH, "%s/.explore.%016" PRIx64, folder, explorer->communicator);
    return open_regular(path, flags);
}

static void start_path(const struct explorer *explorer, const char *folder, uint64_t start, char path[PATH]) {
    snprintf(path, PATH, "%s/.explore.%016" PRIx64 ".%016" PRIx64, folder, explorer->communicator, start);
}

static int open_start(const struct explorer *explorer, const char *folder, uint64_t start, int flags) {
    char path[PATH];
    start_path(explorer, folder, start, path);
    return open_regular(path, flags);
}

/* Opened again, so that a file system of several hosts looks at it anew; the file itself where its name is gone. */
static bool get(const struct explorer *explorer, const char *folder, void *bytes, size_t count, off_t at) {
    int file = open_start(explorer, folder, explorer->start, 0);
    bool good = pread(file >= 0 ? file : explorer->file, bytes, count, at) == (ssize_t)count;
    if (file >= 0) {
        close(file);
    }
    return good;
}

static bool arrive(const struct explorer *explorer, const char *folder) {
    struct arrival arrival = {explorer->number, explorer->table};
    int meeting = open_meeting(explorer, folder, O_CREAT);
    bool good = meeting >= 0 && put(meeting, &arrival, sizeof arrival, explorer->rank * (off_t)sizeof arrival);
    if (meeting >= 0) {
        close(meeting);
    }
    return good;
}

/* Rank 0 makes the file of its start with room for all that will be said and decided, before anyone can bind itself: a
 * file system that is full afterwards takes nothing from it. */
static bool make_start(struct explorer *explorer, const char *folder) {
    unsigned char room[4096];
    off_t end = place_of(explorer->ranks);
    memset(room, 0xff, sizeof room);
    mkdir(folder, 0755);
    int file = open_start(explorer, folder, explorer->number, O_CREAT | O_EXCL);
    bool good = file >= 0;
    for (off_t at = 0; good && at < end; at += (off_t)sizeof room) {
        size_t count = end - at < (off_t)sizeof room ? (size_t)(end - at) : sizeof room;
        good = pwrite(file, room, count, at) == (ssize_t)count;
    }
    good = good && fsync(file) == 0 && arrive(explorer, folder);
    if (good) {
        explorer->file = file;
        explorer->start = explorer->number;
        return true;
    }
    if (!explorer->failed) {
        log_warn(explorer->logger, "no room to agree on exploring in %.512s: errno %d", folder, errno);
        explorer->failed = true;
    }
    if (file >= 0) {
        char path[PATH];
        start_path(explorer, folder, explorer->number, path);
        unlink(path);
        close(file);
    }
    return false;
}

/* Rank 0 repeats the numbers of those that have come since. */
static void repeat(const struct explorer *explorer, const char *folder) {
    struct arrival arrivals[ARRIVALS];
    struct said said;
    int meeting = open_meeting(explorer, folder, 0);
    bool there = false; /* another start may have removed it */
    for (int first = 0; meeting >= 0 && first < explorer->ranks; first += ARRIVALS) {
        ssize_t got = pread(meeting, arrivals, sizeof arrivals, first * (off_t)sizeof *arrivals);
        int count = got > 0 ? (int)((size_t)got / sizeof *arrivals) : 0;
        there = there || (first == 0 && count > 0 && arrivals[0].number == explorer->number);
        for (int i = first == 0; i < count && first + i < explorer->ranks; i++) {
            off_t at = place_of(first + i);
            if (pread(explorer->file, &said, sizeof said, at) == sizeof said && said.number != arrivals[i].number) {
                put(explorer->file, &arrivals[i].number, sizeof arrivals[i].number, at);
            }
        }
    }
    if (meeting >= 0) {
        close(meeting);
    }
    if (!there) {
        arrive(explorer, folder);
    }
}

/* Another rank looks for the file of the rank 0 that repeats its number. */
static bool find_start(struct explorer *explorer, const char *folder) {
    struct arrival first, own;
    struct said said;
    int meeting = open_meeting(explorer, folder, 0);
    bool good = meeting >= 0 && pread(meeting, &first, sizeof first, 0) == sizeof first;
    bool there = good && pread(meeting, &own, sizeof own, explorer->rank * (off_t)sizeof own) == sizeof own &&
                 own.number == explorer->number;
    if (meeting >= 0) {
        close(meeting);
    }
    if (!there) {
        arrive(explorer, folder);
    }
    int file = good && there && first.number != 0 ? open_start(explorer, folder, first.number, 0) : -1;
    if (file >= 0 && pread(file, &said, sizeof said, place_of(explorer->rank)) == sizeof said &&
        said.number == explorer->number) {
        explorer->file = file;
        explorer->start = first.number;
        return true;
    }
    if (file >= 0) {
        close(file);
    }
    return false;
}

static bool say(const struct explorer *explorer) {
    struct said said = {explorer->number, explorer->table, explorer->round, (uint32_t)explorer->rank};
    off_t own = (off_t)offsetof(struct said, table);
    return put(explorer->file, (const char *)&said + own, sizeof said - (size_t)own, place_of(explorer->rank) + own);
}

/* The first of so many ranks that has not said it; -1: all have. */
static int missing(const struct explorer *explorer, const char *folder, int ranks) {
    int file = open_start(explorer, folder, explorer->start, 0), rank = 0;
    struct said said;
    for (; rank < ranks; rank++) {
        if (pread(file >= 0 ? file : explorer->file, &said, sizeof said, place_of(rank)) != sizeof said ||
            said.table != explorer->table || said.round != explorer->round || said.rank != (uint32_t)rank) {
            break;
        }
    }
    if (file >= 0) {
        close(file);
    }
    return rank == ranks ? -1 : rank;
}

static off_t place_of_decision(const struct explorer *explorer) {
    return (off_t)(explorer->round * sizeof(uint64_t));
}

static bool write_decision(const struct explorer *explorer, uint64_t decided) {
    return put(explorer->file, &decided, sizeof decided, place_of_decision(explorer));
}

static void close_files(struct explorer *explorer) {
    atomic_store_explicit(&explorer->wanted, false, memory_order_relaxed);
    if (explorer->file >= 0) {
        close(explorer->file);
        explorer->file = -1;
    }
}

/* Whoever misses itself where ranks meet says that it is there once more: so any rank may remove that, and rank 0 the file
 * of its start, in which nobody who is left still has to read. */
static void remove_files(struct explorer *explorer, const char *folder) {
    struct arrival own;
    char path[PATH];
    int meeting = open_meeting(explorer, folder, 0);
    if (meeting >= 0 && pread(meeting, &own, sizeof own, explorer->rank * (off_t)sizeof own) == sizeof own &&
        own.number == explorer->number) {
        snprintf(path, PATH, "%s/.explore.%016" PRIx64, folder, explorer->communicator);
        unlink(path);
    }
    if (meeting >= 0) {
        close(meeting);
    }
    if (explorer->rank == 0) {
        start_path(explorer, folder, explorer->number, path);
        unlink(path);
    }
}

static void go_on(struct explorer *explorer) {
    explorer->round++;
    if (explorer->round > MOST_ROUNDS) {
        atomic_store_explicit(&explorer->wanted, false, memory_order_relaxed);
        log_warn(explorer->logger, "ranks have not agreed to explore: every choice there is NCCL's own");
    }
    atomic_store_explicit(&explorer->closes_at, UINT64_MAX, memory_order_release);
    atomic_store_explicit(&explorer->bound_at, UINT64_MAX, memory_order_release);
}

static void begin(struct explorer *explorer) {
    uint64_t call = call_of_round(explorer->round);
    atomic_store_explicit(&explorer->from, call, memory_order_release);
    atomic_store_explicit(&explorer->closes_at, UINT64_MAX, memory_order_release);
    atomic_store_explicit(&explorer->bound_at, UINT64_MAX, memory_order_release);
    log_info(explorer->logger, "all %d ranks explore, from call %" PRIu64 " of the communicator on", explorer->ranks,
             call);
    explorer->agreed = true;
    explorer->round = AGREED;
    say(explorer); /* else the files stay, which nobody waits for */
    if (explorer->rank > 0) {
        close_files(explorer);
    }
}

static bool is_closed(struct explorer *explorer) {
    return atomic_load(&explorer->all) >= atomic_load(&explorer->closes_at);
}

static bool reads_yes(const struct explorer *explorer) {
    uint64_t decided = 0;
    return pread(explorer->file, &decided, sizeof decided, place_of_decision(explorer)) != sizeof decided ||
           decided == YES;
}

/* Never once this rank is half way; from there on it waits until others can surely read a yes that they may be able to
 * read: an error of input and output may come after it was written. False: none of them ever will. */
static bool write_yes(struct explorer *explorer) {
    atomic_store(&explorer->closes_at, call_of_round(explorer->round) / 2);
    atomic_store(&explorer->writing, true);
    errno = 0;
    if (is_closed(explorer) ||
        (!write_decision(explorer, YES) && (errno == ENOSPC || errno == EDQUOT) && !reads_yes(explorer))) {
        atomic_store(&explorer->closes_at, 0);
        atomic_store(&explorer->writing, false);
        return false;
    }
    return true;
}

/* Rank 0 decides. */
static void decide(struct explorer *explorer, const char *folder) {
    bool bound = explorer->said_round == explorer->round, written = atomic_load(&explorer->writing);
    int rank = written ? -1 : missing(explorer, folder, explorer->ranks);
    if (written || (bound && rank < 0 && !is_closed(explorer) && write_yes(explorer))) {
        if (write_decision(explorer, YES)) {
            atomic_store(&explorer->writing, false);
            begin(explorer);
        }
    } else if (!bound || is_closed(explorer) || calls_of(explorer) >= call_of_round(explorer->round) / 2) {
        if (write_decision(explorer, NO)) {
            log_info(explorer->logger, "round %" PRIu32 ": %s", explorer->round,
                     rank < 0 ? "too late, or it cannot be written" : "not all ranks are there to explore");
            go_on(explorer);
        }
    }
}

/* What a rank is in a round. */
enum standing { STANDS_OPEN, STANDS_BOUND, STANDS_PAST };

/* So often that the kernels that surely ended might not be enough by the call of the round. */
static bool miscounts_often(const struct explorer *explorer) {
    return MISCOUNTS_SHARE * atomic_load_explicit(&explorer->miscounted, memory_order_relaxed) > calls_of(explorer);
}

/* It binds itself before others can read that it is, and only where there is a rank 0 that will decide: it has bound itself
 * to the same round. Rank 0 is not bound: it is the one that decides. */
static enum standing stand(struct explorer *explorer, const char *folder) {
    uint64_t call = call_of_round(explorer->round);
    if (explorer->said_round == explorer->round) {
        return STANDS_BOUND;
    }
    if (explorer->tried_round != explorer->round) {
        if (explorer->rank > 0 && calls_of(explorer) < call &&
            (explorer->file < 0 || miscounts_often(explorer) || missing(explorer, folder, 1) >= 0)) {
            return STANDS_OPEN;
        }
        atomic_store(&explorer->bound_at, explorer->rank > 0 ? call : UINT64_MAX);
        if (atomic_load(&explorer->all) >= call) { /* it may be past it already, unbound */
            atomic_store(&explorer->bound_at, UINT64_MAX);
            return STANDS_PAST;
        }
    }
    if (explorer->file >= 0) { /* where it fails others may have seen it, or not: it is bound, and says it again */
        explorer->tried_round = explorer->round;
        if (say(explorer)) {
            explorer->said_round = explorer->round;
        }
    }
    return STANDS_BOUND;
}

void explorer_stop(struct explorer *explorer) {
    atomic_store_explicit(&explorer->gone, true, memory_order_release);
}

void explorer_end(struct explorer *explorer, const char *folder) {
    if (explorer->left) {
        return;
    }
    if (atomic_load_explicit(&explorer->wanted, memory_order_acquire) || explorer->file >= 0) {
        remove_files(explorer, folder);
    }
    explorer->left = true;
    close_files(explorer);
}

/* What a rank that is bound to a round learns of it: a decision, or that there will be none. What is read counts only where
 * it was read after enough kernels have ended. */
static void learn(struct explorer *explorer, const char *folder) {
    uint64_t ended = atomic_load_explicit(&explorer->ended, memory_order_acquire), decided;
    uint64_t enough = call_of_round(explorer->round) / 2 + MARGIN + atomic_load(&explorer->miscounted);
    if (!get(explorer, folder, &decided, sizeof decided, place_of_decision(explorer))) {
        return;
    }
    if (decided == YES) {
        begin(explorer);
    } else if (decided == NO || ended >= enough) {
        go_on(explorer);
    }
}

void explorer_agree(struct explorer *explorer, const char *folder) {
    if (explorer->agreed && explorer->rank == 0 && !explorer->left && missing(explorer, folder, explorer->ranks) < 0) {
        explorer_end(explorer, folder);
    }
    if (explorer->agreed || !atomic_load_explicit(&explorer->wanted, memory_order_acquire)) {
        return;
    }
    bool joined = explorer->file >= 0 || (explorer->rank == 0 ? make_start : find_start)(explorer, folder);
    if (explorer->rank == 0 && !joined) { /* nobody can be bound to it */
        if (calls_of(explorer) >= call_of_round(explorer->round)) {
            go_on(explorer);
        }
        return;
    }
    if (explorer->rank == 0) {
        repeat(explorer, folder);
    }
    enum standing standing = stand(explorer, folder);
    if (explorer->rank == 0) {
        decide(explorer, folder);
    } else if (standing == STANDS_PAST) { /* it has not said so: it was, or will be, decided against */
        go_on(explorer);
    } else if (standing == STANDS_BOUND) {
        learn(explorer, folder);
    }
}

static bool is_held(struct explorer *explorer) {
    uint64_t all = atomic_load(&explorer->all);
    return atomic_load(&explorer->bound_at) <= all ||
           (atomic_load(&explorer->closes_at) <= all && atomic_load(&explorer->writing));
}

__attribute__((cold, noinline)) void explorer_wait(struct explorer *explorer) {
    const struct timespec pause = {0, 1000000};
    atomic_store(&explorer->waiting, true);
    for (long waited_ms = 0; is_held(explorer) && !atomic_load(&explorer->gone); waited_ms++) {
        if (waited_ms == SAYS_AFTER_MS) {
            log_warn(explorer->logger, "a call waits until the files of NCCL_TUNER_JOB say whether all ranks explore");
        }
        nanosleep(&pause, NULL);
    }
    atomic_store(&explorer->waiting, false);
}
