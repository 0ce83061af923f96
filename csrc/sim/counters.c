/* What kernels write for NCCL's profiler: when they began and ended on each channel, here by planted times. NCCL's own
 * proxy is not replaced then where it looks at these counters, so all between a launch and an event of the profiler is
 * libnccl's.
 *
 * The times are in a file, a line each:
 *     time COLLECTIVE ALGORITHM PROTOCOL US US_PER_MIB      NCCL's numbers, -1 for any; the first line that fits
 *     skew US                                               ranks come up to so much before the last one
 *     straggler RANK PERCENT                                which rank comes last, in so many of the calls
 *     noise PERCENT                                         of each time
 *     plain                                                 counters without times: 2.26
 *     plan ...                                              2.31 and later, where NCCL has a thread for its profiler: the
 *                                                           bytes of struct plan
 */
#define _GNU_SOURCE
#include "counters.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "capture.h"
#include "export.h"
#include "oracle.h"
#include "trampoline.h"

enum { SUCCESS = 0, PROFILER_TRANSPORT = 4, MOST_TIMES = 256, MOST_CONNECTORS = 4096, COUNTERS = 64 };

static struct {
    int n, straggler, straggler_percent, plain;
    double skew_us, noise_percent;
    struct {
        int collective, algorithm, protocol;
        double us, us_per_mib;
    } times[MOST_TIMES];
    struct plan {
        int head, arguments;                    /* struct ncclKernelPlan: collTaskQueue.head, kernelArgs */
        int mask, channel;                      /* ncclTaskColl: eActivationMask, channelLo */
        int started, completed, counter;        /* ncclComm: profiler.workStarted, .workCompleted, .workCounter */
        int channels, batches, of_batch, works; /* ncclDevKernelArgs: channelMask, its size; ncclDevWorkBatch: its size,
                                                   offsetBitset */
    } plan;
} planted = {.straggler = -1};

int sim_read_times(const char *path) {
    FILE *file = fopen(path, "r");
    char line[256];
    if (file == NULL) {
        return -1;
    }
    while (fgets(line, sizeof line, file) != NULL && planted.n < MOST_TIMES) {
        int i = planted.n;
        planted.n += sscanf(line, "time %d %d %d %lf %lf", &planted.times[i].collective, &planted.times[i].algorithm,
                            &planted.times[i].protocol, &planted.times[i].us, &planted.times[i].us_per_mib) == 5;
        sscanf(line, "skew %lf", &planted.skew_us);
        sscanf(line, "straggler %d %d", &planted.straggler, &planted.straggler_percent);
        sscanf(line, "noise %lf", &planted.noise_percent);
        struct plan *plan = &planted.plan;
        sscanf(line, "plan %d %d %d %d %d %d %d %d %d %d %d", &plan->head, &plan->arguments, &plan->mask,
               &plan->channel, &plan->started, &plan->completed, &plan->counter, &plan->channels, &plan->batches,
               &plan->of_batch, &plan->works);
        planted.plain |= strncmp(line, "plain", 5) == 0;
    }
    return fclose(file);
}

static uint64_t mixed(uint64_t a, uint64_t b) {
    uint64_t x = a * 0x9e3779b97f4a7c15u + b * 0xbf58476d1ce4e5b9u + 1;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* From 0 to 1. */
static double drawn(uint64_t a, uint64_t b) {
    return (double)(mixed(a, b) >> 11) / (double)((uint64_t)1 << 53);
}

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* struct ncclTaskColl begins with a pointer to the next, the function, two addresses and the count (src/include/comm.h, the
 * same from v2.26.2-1 to 2.32.3). */
enum { FUNCTION = 8, COUNT = 32, TYPE = 44, ALGORITHM = 98, PROTOCOL = 99 };

static size_t count_of(const unsigned char *task) {
    static const unsigned char bytes_of[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    size_t count;
    int type;
    memcpy(&count, task + COUNT, sizeof count);
    memcpy(&type, task + TYPE, sizeof type);
    return count * (type >= 0 && type < (int)sizeof bytes_of ? bytes_of[type] : 1);
}

static double time_us(int collective, int algorithm, int protocol, size_t bytes) {
    for (int i = 0; i < planted.n; i++) {
        if ((planted.times[i].collective < 0 || planted.times[i].collective == collective) &&
            (planted.times[i].algorithm < 0 || planted.times[i].algorithm == algorithm) &&
            (planted.times[i].protocol < 0 || planted.times[i].protocol == protocol)) {
            return planted.times[i].us + planted.times[i].us_per_mib * (double)bytes / (1 << 20);
        }
    }
    return 1.0;
}

static struct sim_operation_layout layout;

/* The ranks of a call agree on how long the transfer takes, and on who comes last, by the call's number. */
static double kernel_us(int collective, int algorithm, int protocol, size_t bytes, uint64_t number, int rank,
                        int ranks) {
    double us = time_us(collective, algorithm, protocol, bytes);
    us *= 1 + planted.noise_percent / 100 * (2 * drawn(number, 1) - 1);
    int last = (int)(mixed(number, 2) % (uint64_t)ranks);
    if (planted.straggler >= 0 && (int)(mixed(number, 3) % 100) < planted.straggler_percent) {
        last = planted.straggler;
    }
    return us + (rank == last ? 0 : planted.skew_us * (0.1 + 0.9 * drawn(number, 4 + (uint64_t)rank)));
}

struct counter {
    uint64_t counter, timestamp_ns;
};

/* Of one channel, in the place that NCCL will look at. */
static void write_counters(struct counter *begin, struct counter *end, int channel, uint64_t counter, uint64_t start_ns,
                           double us) {
    begin += (uint64_t)channel * COUNTERS + counter % COUNTERS;
    end += (uint64_t)channel * COUNTERS + counter % COUNTERS;
    begin->timestamp_ns = start_ns;
    end->timestamp_ns = start_ns + (uint64_t)(us * 1e3);
    __atomic_store_n(&begin->counter, counter, __ATOMIC_RELEASE);
    __atomic_store_n(&end->counter, counter, __ATOMIC_RELEASE);
}

/* What kernels have counted of their works, by communicator and channel; NCCL's host code counts on its own, and the two part
 * where one counts what the other does not. */
enum { CHANNELS = 64, MOST_COUNTED = 64, CONNECTIONS = 2 * CHANNELS };

struct counted {
    const void *comm;
    uint64_t works[CHANNELS], host[CHANNELS];
    uint64_t free_ns; /* when its kernels have ended: they run one after the other */
    int connections;
};

/* When the next one of so many us begins. */
static uint64_t take_turn(struct counted *counted, uint64_t now, double us) {
    uint64_t start_ns = now > counted->free_ns ? now : counted->free_ns;
    counted->free_ns = start_ns + (uint64_t)(us * 1e3);
    return start_ns;
}

static struct counted *counted_of(const void *comm) {
    static struct counted all[MOST_COUNTED];
    static pthread_mutex_t finding = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&finding);
    int at = 0;
    while (at < MOST_COUNTED - 1 && all[at].comm != NULL && all[at].comm != comm) {
        at++;
    }
    all[at].comm = comm;
    pthread_mutex_unlock(&finding);
    return &all[at];
}

/* Another communicator may be where one was. */
static void note_connection(const void *comm) {
    struct counted *counted = counted_of(comm);
    if (counted->connections++ == CONNECTIONS) {
        *counted = (struct counted){.comm = comm, .connections = 1};
    }
}

/* A work that the host does not follow, of one channel. */
struct unseen {
    const void *comm;
    int channel;
};

static void run_unseen(void *work) {
    const struct unseen *unseen = work;
    counted_of(unseen->comm)->works[unseen->channel]++;
}

static void launch_unseen(const void *comm, int channel) {
    struct unseen *unseen = malloc(sizeof *unseen); /* a graph keeps it */
    if (unseen != NULL) {
        *unseen = (struct unseen){comm, channel};
        sim_capture_host_function(run_unseen, unseen);
    }
}

/* One channel of a kernel, as NCCL's proxy is told of it. */
static void run_kernel(const void *comm, const unsigned char *operation, int rank, int ranks) {
    enum { LAST_COLLECTIVE = 4 };
    uint64_t number, counter;
    void *started, *completed;
    unsigned char *task;
    memcpy(&number, operation + layout.number, sizeof number);
    memcpy(&counter, operation + layout.counter, sizeof counter);
    memcpy(&started, operation + layout.started, sizeof started);
    memcpy(&completed, operation + layout.completed, sizeof completed);
    memcpy(&task, operation + layout.task, sizeof task);
    int channel = operation[layout.channel], collective = operation[layout.collective];
    double us = kernel_us(collective, operation[layout.algorithm], operation[layout.protocol], count_of(task), number,
                          rank, ranks);
    uint64_t start_ns = now_ns();
    struct counted *counted = counted_of(comm);
    bool again = collective > LAST_COLLECTIVE && counter == counted->host[channel]; /* a send with its receive */
    counted->host[channel] = counter;
    counter = counted->works[channel] += !again;
    if (planted.plain) {
        __atomic_store_n((uint64_t *)started + channel, counter, __ATOMIC_RELEASE);
        struct timespec length = {0, (long)(us * 1e3)};
        nanosleep(&length, NULL);
        __atomic_store_n((uint64_t *)completed + channel, counter, __ATOMIC_RELEASE);
        return;
    }
    static _Thread_local uint64_t of_number, of_start_ns; /* all channels of a kernel begin together */
    if (of_number != number || channel == 0) {
        of_number = number;
        of_start_ns = take_turn(counted, start_ns, us);
    }
    write_counters(started, completed, channel, counter, of_start_ns, us);
}

/* --- NCCL's thread for the profiler, from 2.31 on --- */

typedef status post(unsigned char *comm, const unsigned char *plan);

static void *own_post;

/* How many works a kernel does on each channel: those of its batches, as it is handed them. */
static void count_works(const unsigned char *plan, uint64_t works[CHANNELS]) {
    enum { NEXT = (1 << 14) - 1 }; /* bits of a batch that say how far on the next one of the channel is; 0: none is */
    const unsigned char *arguments;
    uint64_t mask, bits;
    uint32_t next;
    memcpy(&arguments, plan + planted.plan.arguments, sizeof arguments);
    memcpy(&mask, arguments + planted.plan.channels, sizeof mask);
    const unsigned char *first = arguments + planted.plan.batches;
    for (int channel = 0; channel < CHANNELS; channel++) {
        const unsigned char *batch = first;
        works[channel] = 0;
        for (next = mask >> channel & 1; next != 0; batch += next * (uint32_t)planted.plan.of_batch) {
            memcpy(&bits, batch + planted.plan.works, sizeof bits);
            works[channel] += (uint64_t)__builtin_popcountll(bits);
            memcpy(&next, batch, sizeof next);
            next &= NEXT;
        }
        first += (mask >> channel & 1) * (uint64_t)planted.plan.of_batch;
    }
}

/* At each launch NCCL gives a channel's next number to what is profiled of its works, and its thread waits for them. A
 * kernel counts all that it does: collectives first, then sends and receives, of which each is profiled that NCCL counts. */
static status post_for_profiler(unsigned char *comm, const unsigned char *plan) {
    enum { KERNEL_CHANNEL = 1 << 6 };
    uint64_t before[CHANNELS], *after = (uint64_t *)(void *)(comm + planted.plan.counter), any = 0;
    uint64_t of_kernel[CHANNELS], profiled[CHANNELS] = {0};
    struct counter *started, *completed;
    struct counted *counted = counted_of(comm);
    int rank, ranks;
    post *function;
    unsigned char *task;
    memcpy(before, after, sizeof before);
    for (int channel = 0; channel < CHANNELS; channel++) {
        any |= before[channel];
    }
    if (any == 0) {
        memset(counted->works, 0, sizeof counted->works);
    }
    memcpy(&started, comm + planted.plan.started, sizeof started);
    memcpy(&completed, comm + planted.plan.completed, sizeof completed);
    memcpy(&rank, comm + layout.comm_rank, sizeof rank);
    memcpy(&ranks, comm + layout.comm_ranks, sizeof ranks);
    memcpy(&function, &own_post, sizeof function);
    status result = function(comm, plan);
    uint64_t now = now_ns(), works[CHANNELS] = {0};
    for (memcpy(&task, plan + planted.plan.head, sizeof task); task != NULL; memcpy(&task, task, sizeof task)) {
        int low = task[planted.plan.channel], high = task[planted.plan.channel + 1], mask, collective;
        memcpy(&mask, task + planted.plan.mask, sizeof mask);
        memcpy(&collective, task + FUNCTION, sizeof collective);
        uint64_t number = mixed(counted->works[low], (uint64_t)low);
        double us = kernel_us(collective, task[ALGORITHM], task[PROTOCOL], count_of(task), number, rank, ranks);
        uint64_t start_ns = take_turn(counted, now, us);
        for (int channel = low; channel <= high; channel++, works[channel - 1]++) {
            counted->works[channel]++;
            if (mask & KERNEL_CHANNEL) {
                write_counters(started, completed, channel, counted->works[channel], start_ns, us);
                profiled[channel]++;
            }
        }
    }
    count_works(plan, of_kernel);
    for (int channel = 0; channel < CHANNELS; channel++) {
        for (; works[channel] < of_kernel[channel]; works[channel]++) {
            counted->works[channel]++;
            if (before[channel] + profiled[channel] < after[channel]) {
                write_counters(started, completed, channel, counted->works[channel], now, 1);
                profiled[channel]++;
            }
        }
    }
    return result;
}

/* --- NCCL's proxy, for the profiler alone --- */

typedef status save(void *comm, unsigned char *operation, bool *needed);
typedef status connect(void *comm, int transport, int send, int rank, void *connector);
typedef status call(void *comm, void *connector, int type, void *request, int request_bytes, void *answer,
                    int answer_bytes);

static struct {
    void *save, *connect, *call;
    save *instead_of_save;
    call *instead_of_call;
} own;

static void *connectors[MOST_CONNECTORS]; /* of the profiler */
static int n_connectors;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static status save_for_profiler(void *comm, unsigned char *operation, bool *needed) {
    if (operation[layout.pattern] != layout.profiler) {
        return own.instead_of_save(comm, operation, needed);
    }
    save *function;
    memcpy(&function, &own.save, sizeof function);
    status result = function(comm, operation, needed);
    if (needed == NULL && result == SUCCESS) {
        int rank, ranks;
        memcpy(&rank, (char *)comm + layout.comm_rank, sizeof rank);
        memcpy(&ranks, (char *)comm + layout.comm_ranks, sizeof ranks);
        run_kernel(comm, operation, rank, ranks);
    }
    if (needed != NULL && result == SUCCESS && !*needed) {
        launch_unseen(comm, operation[layout.channel]);
    }
    return result;
}

static status connect_for_profiler(void *comm, int transport, int send, int rank, void *connector) {
    if (transport != PROFILER_TRANSPORT) {
        return SUCCESS;
    }
    note_connection(comm);
    pthread_mutex_lock(&lock);
    connectors[n_connectors++ % MOST_CONNECTORS] = connector;
    pthread_mutex_unlock(&lock);
    connect *function;
    memcpy(&function, &own.connect, sizeof function);
    return function(comm, transport, send, rank, connector);
}

static status call_for_profiler(void *comm, void *connector, int type, void *request, int request_bytes, void *answer,
                                int answer_bytes) {
    bool known = false;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < n_connectors && i < MOST_CONNECTORS && !known; i++) {
        known = connectors[i] == connector;
    }
    pthread_mutex_unlock(&lock);
    call *function = own.instead_of_call;
    if (known) {
        memcpy(&function, &own.call, sizeof function);
    }
    return function(comm, connector, type, request, request_bytes, answer, answer_bytes);
}

enum sim_profiled sim_profile(const char *name, void *function, void *replacement,
                              const struct sim_operation_layout *known) {
    layout = *known;
    if (strcmp(name, "ncclProxyCreate") == 0 || strcmp(name, "ncclProxyStart") == 0) {
        return SIM_KEPT;
    }
    const struct {
        const char *name;
        void *with, **original, *instead;
    } rows[] = {
        {"ncclProxySaveOp", (void *)(uintptr_t)save_for_profiler, &own.save, &own.instead_of_save},
        {"ncclProxyConnect", (void *)(uintptr_t)connect_for_profiler, &own.connect, NULL},
        {"ncclProxyCallBlocking", (void *)(uintptr_t)call_for_profiler, &own.call, &own.instead_of_call},
        {"ncclProfilerPostPlanWork", (void *)(uintptr_t)post_for_profiler, &own_post, NULL},
    };
    for (int i = 0; i < (int)(sizeof rows / sizeof *rows); i++) {
        if (strcmp(name, rows[i].name) == 0) {
            if (*rows[i].original != NULL) {
                return SIM_UNKNOWN; /* a second copy of the function */
            }
            if (rows[i].instead != NULL) {
                memcpy(rows[i].instead, &replacement, sizeof replacement);
            }
            *rows[i].original = sim_redirect_keeping(function, rows[i].with);
            return *rows[i].original == NULL ? SIM_UNKNOWN : SIM_KEPT;
        }
    }
    return SIM_REPLACED;
}
