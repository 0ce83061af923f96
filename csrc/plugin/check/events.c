/* Drives the profiler without NCCL; NCCL_TUNER_JOB names the folder.
 *
 *     events random SEED COUNT     random events of every version, with handles that were never given, or are old
 *     events threads SEED COUNT    communicators come and go; of each one thread launches, another sees kernels end
 *     events rate A_SECOND COUNT   COUNT collectives, so many in a second
 *     events closed LIBRARY...     a call by each library, which is closed before the process ends
 *     events bound PAIRS           three ranks agree on exploring, of which one sends so often to itself after it has bound
 *                                  itself that all its kernels are said to have ended, while rank 0 has launched none;
 *                                  0: not once. Whether each explores
 *     events cost COUNT            COUNT collectives of CHANNELS channels, as NCCL reports them, and nothing else
 *     events launch COUNT          the same without what is seen of their kernels
 *     events nothing COUNT         the same without any: what the loop takes itself
 *     events many COUNT            so many communicators, one after the other
 *     events marks CALLS           calls that follow each other, a letter each: c alone, g two of one group and kernel,
 *                                  k two of one group with a kernel each, x in a CUDA graph, s after a send to itself, l
 *                                  looked at so late that its times are those of 64 calls later
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../explorer.h"
#include "../profiler.h"
#include "checks.h"

enum { CHANNELS = 16, PAIRS = 4, QUEUE = 256, HANDLES = 64 };

static const char *const functions[] = {"AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Reduce", "?"};
static const char *const algorithms[] = {"RING", "TREE", "NVLS_TREE"};

static struct event collective(uint64_t sequence, size_t count, unsigned channels, int which) {
    struct event event = {.type = EVENT_COLLECTIVE};
    event.collective.sequence = sequence;
    event.collective.function = functions[which % 6];
    event.collective.type = "ncclFloat32";
    event.collective.count = count;
    event.collective.channels = (uint8_t)channels;
    event.collective.warps = 17;
    event.collective.algorithm = algorithms[which % 3];
    event.collective.protocol = "SIMPLE";
    return event;
}

static void kernel(void *context, void *parent, unsigned channel, uint64_t start_ns, uint64_t stop_ns) {
    struct event event = {.type = EVENT_KERNEL_CHANNEL, .parent = parent};
    struct event_state state = {stop_ns};
    void *handle = NULL;
    event.kernel.channel = (uint8_t)channel;
    event.kernel.start_ns = start_ns;
    CHECK(ncclProfiler_v6.start(context, &handle, &event) == 0);
    CHECK(ncclProfiler_v6.record(handle, STATE_KERNEL_CHANNEL_STOP, &state) == 0);
    CHECK(ncclProfiler_v6.stop(handle) == 0);
}

static void *launch(void *context, uint64_t sequence, size_t count, int which) {
    struct event group = {.type = EVENT_GROUP_API}, call = {.type = EVENT_COLLECTIVE_API};
    struct event launched = {.type = EVENT_KERNEL_LAUNCH}, event = collective(sequence, count, CHANNELS, which);
    void *of_group = NULL, *of_call = NULL, *handle = NULL;
    ncclProfiler_v6.start(context, &of_group, &group);
    call.parent = launched.parent = of_group;
    call.call.function = event.collective.function;
    ncclProfiler_v6.start(context, &of_call, &call);
    ncclProfiler_v6.start(context, &of_call, &launched);
    ncclProfiler_v6.start(context, &handle, &event);
    ncclProfiler_v6.stop(handle);
    ncclProfiler_v6.stop(of_group);
    return handle;
}

static void *open_of_ranks(uint64_t id, int rank, int ranks) {
    void *context = NULL;
    int mask = -1;
    CHECK(ncclProfiler_v6.init(&context, id, &mask, "a name", 2, ranks, rank, NULL) == 0 && mask >= 0);
    return context;
}

static void *open_context(uint64_t id, int rank) {
    return open_of_ranks(id, rank, 16);
}

/* --- random --- */

struct communicators {
    void *of_v6[3], *of_v3, *handles[HANDLES];
};

static void open_communicators(struct source *source, struct communicators *those) {
    int mask;
    CHECK(ncclProfiler_v3.init(&those->of_v3, &mask) == 0);
    for (int i = 0; i < 3; i++) {
        those->of_v6[i] = open_context(draw(source), i);
    }
}

static void check_event(struct source *source, struct communicators *those) {
    void *context = below(source, 20) == 0 ? NULL : those->of_v6[below(source, 3)];
    void **handle = &those->handles[below(source, HANDLES)], *other = those->handles[below(source, HANDLES)];
    struct event event =
        collective(draw_size(source), draw_size(source), (unsigned)below(source, 65), (int)below(source, 6));
    if (below(source, 30) == 0) {
        other = (void *)(uintptr_t)draw(source);
    }
    event.parent = event.collective.group = other;
    event.type = below(source, 2) ? EVENT_COLLECTIVE : (uint64_t)1 << below(source, 15);
    event.rank = (int)below(source, 3);
    struct event_v3 old = {.type = (uint8_t)event.type, .parent = other, .rank = event.rank};
    if (event.type == EVENT_KERNEL_CHANNEL) {
        event.kernel.channel = (uint8_t)draw(source);
        event.kernel.start_ns = draw(source);
    } else if (event.type == EVENT_P2P) {
        event.p2p.peer = old.p2p.peer = (int)below(source, 8);
        event.p2p.group = other;
    } else if (event.type == EVENT_COLLECTIVE_API || event.type == EVENT_P2P_API) {
        event.call.function = below(source, 9) ? functions[below(source, 6)] : NULL;
        bool captured = below(source, 200) == 1;
        *(event.type == EVENT_P2P_API ? &event.p2p_call.captured : &event.call.captured) = captured;
    } else if (event.type == EVENT_COLLECTIVE) {
        old.collective.function = "AllReduce";
    }
    struct event_state state = {draw(source)};
    switch (below(source, 5)) {
    case 0:
        ncclProfiler_v6.start(context, handle, &event);
        break;
    case 1:
        ncclProfiler_v4.start(context, handle, &event);
        break;
    case 2:
        ncclProfiler_v3.start(those->of_v3, handle, &old);
        break;
    case 3:
        ncclProfiler_v5.record(other, (int)below(source, 32), below(source, 20) ? &state : NULL);
        break;
    default:
        (below(source, 2) ? ncclProfiler_v3.stop : ncclProfiler_v6.stop)(other);
    }
    if (below(source, 1000) == 1) { /* another communicator; handles of the one that is gone are used all the same */
        size_t which = below(source, 3);
        ncclProfiler_v6.finalize(those->of_v6[which]);
        those->of_v6[which] = open_context(draw(source), (int)which);
    }
}

/* --- threads --- */

struct pair {
    pthread_mutex_t lock;
    void *queue[QUEUE];
    size_t put, taken, calls;
    void *context;
    uint64_t seed;
    int rank;
};

/* As NCCL hands its proxy what to look at: by a queue with a lock. */
static void *see_kernels(void *argument) {
    struct pair *pair = argument;
    for (size_t seen = 0; seen < pair->calls;) {
        pthread_mutex_lock(&pair->lock);
        void *handle = pair->taken < pair->put ? pair->queue[pair->taken % QUEUE] : NULL;
        bool there = pair->taken < pair->put;
        pair->taken += there;
        pthread_mutex_unlock(&pair->lock);
        if (there) {
            for (unsigned channel = 0; channel < CHANNELS; channel++) {
                kernel(pair->context, handle, channel, 1000 * seen, 1000 * seen + 500 + channel);
            }
            seen++;
        }
    }
    return NULL;
}

static void *launch_all(void *argument) {
    struct pair *pair = argument;
    struct source source = {.seed = pair->seed};
    struct explorer *explorer = explorer_open((unsigned)pair->rank + 1u, "a table", "a build");
    for (size_t i = 0; i < pair->calls;) {
        pthread_mutex_lock(&pair->lock);
        bool room = pair->put - pair->taken < QUEUE;
        pthread_mutex_unlock(&pair->lock);
        if (room) {
            void *handle = launch(pair->context, i, 1024u << below(&source, 4), (int)below(&source, 6));
            pthread_mutex_lock(&pair->lock);
            pair->queue[pair->put++ % QUEUE] = handle;
            pthread_mutex_unlock(&pair->lock);
            uint64_t counted;
            if (explorer) {
                explorer_counts(explorer, COLLECTIVE_ALL_REDUCE, &counted);
            }
            i++;
        }
    }
    return NULL;
}

static void *live(void *argument) {
    struct pair *pair = argument;
    pthread_t launching, seeing;
    pair->context = open_context((unsigned)pair->rank + 1u, pair->rank);
    CHECK(pthread_create(&launching, NULL, launch_all, pair) == 0);
    CHECK(pthread_create(&seeing, NULL, see_kernels, pair) == 0);
    pthread_join(launching, NULL);
    pthread_join(seeing, NULL);
    ncclProfiler_v6.finalize(pair->context);
    return NULL;
}

static void check_threads(uint64_t seed, size_t count) {
    for (int round = 0; round < 3; round++) {
        struct pair pairs[PAIRS];
        pthread_t threads[PAIRS];
        memset(pairs, 0, sizeof pairs);
        for (int i = 0; i < PAIRS; i++) {
            pthread_mutex_init(&pairs[i].lock, NULL);
            pairs[i].calls = count;
            pairs[i].rank = i;
            pairs[i].seed = seed + (uint64_t)i;
            CHECK(pthread_create(&threads[i], NULL, live, &pairs[i]) == 0);
        }
        for (int i = 0; i < PAIRS; i++) {
            pthread_join(threads[i], NULL);
        }
        usleep(600000); /* the writer takes what ended, and gives its room to the next ones */
    }
    printf("%zu calls\n", 3 * PAIRS * count);
}

/* Calls end as evenly as the clock lets them. */
static void check_rate(void *context, uint64_t a_second, size_t count) {
    struct timespec begin, now;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (size_t i = 0; i < count; i++) {
        void *handle = launch(context, i, 1024, 0);
        for (unsigned channel = 0; channel < CHANNELS; channel++) {
            kernel(context, handle, channel, 1000, 2000);
        }
        do {
            clock_gettime(CLOCK_MONOTONIC, &now);
        } while ((double)(now.tv_sec - begin.tv_sec) + 1e-9 * (double)(now.tv_nsec - begin.tv_nsec) <
                 (double)i / (double)a_second);
    }
    printf("%zu calls\n", count);
}

static void log_line(int level, unsigned long flags, const char *file, int line, const char *format, ...) {
    va_list values;
    (void)level, (void)flags, (void)file, (void)line;
    va_start(values, format);
    vprintf(format, values);
    va_end(values);
    puts("");
}

static void check_many(size_t count) {
    for (size_t i = 0; i < count; i++) {
        void *context = NULL;
        int mask;
        CHECK(ncclProfiler_v6.init(&context, i, &mask, "a name", 2, 16, 0, log_line) == 0 && mask > 0);
        void *handle = launch(context, 0, 1024u << i % 7, (int)i);
        for (unsigned channel = 0; channel < CHANNELS; channel++) {
            kernel(context, handle, channel, 1000, 2000);
        }
        ncclProfiler_v6.finalize(context);
        usleep(1000);
    }
}

static void check_closed(const char *path) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL), *symbol = library ? dlsym(library, "call") : NULL;
    int (*call)(const struct profiler_v5 *profiler) = NULL;
    memcpy(&call, &symbol, sizeof call);
    CHECK(call && call(&ncclProfiler_v6) == 0);
    CHECK(dlclose(library) == 0);
}

__attribute__((noinline)) static void check_cost(void *context, size_t count, bool events, bool kernels) {

    for (size_t i = 0; i < count; i++) {
        void *handle = events ? launch(context, i, 1 << 20, 0) : NULL;
        for (unsigned channel = 0; kernels && channel < CHANNELS; channel++) {
            kernel(context, handle, channel, 1000, 2000);
        }
    }
    printf("%zu calls\n", count);
}

/* --- marks --- */

/* Ends when it has run from 1,000 ns times its number on for 500. */
static void run_calls(void *context, uint64_t first, int count, const void *const *handles, bool late) {
    for (int i = 0; i < count; i++) {
        uint64_t at_ns = 1000 * (first + (uint64_t)i + 1 + (late ? 64 : 0));
        for (unsigned channel = 0; channel < CHANNELS; channel++) {
            kernel(context, (void *)(uintptr_t)handles[i], channel, at_ns, at_ns + 500);
        }
    }
}

static void check_marks(void *context, const char *calls) {
    uint64_t sequence = 0;
    for (; *calls; calls++) {
        struct event group = {.type = EVENT_GROUP_API}, call = {.type = EVENT_COLLECTIVE_API},
                     of_plan = {.type = EVENT_GROUP};
        struct event p2p = {.type = EVENT_P2P};
        void *of_group = NULL, *plan = NULL, *none = NULL, *handles[2] = {NULL, NULL};
        int count = *calls == 'g' || *calls == 'k' ? 2 : 1;
        ncclProfiler_v6.start(context, &of_group, &group);
        call.parent = of_group;
        call.call.function = "AllReduce";
        call.call.captured = *calls == 'x';
        for (int i = 0; i < count; i++) {
            ncclProfiler_v6.start(context, &none, &call);
        }
        ncclProfiler_v6.start(context, &plan, &of_plan);
        if (*calls == 's') {
            p2p.p2p.group = plan;
            ncclProfiler_v6.start(context, &none, &p2p);
            ncclProfiler_v6.start(context, &plan, &of_plan);
        }
        for (int i = 0; i < count; i++) {
            if (i > 0 && *calls == 'k') {
                ncclProfiler_v6.start(context, &plan, &of_plan);
            }
            struct event event = collective(sequence + (uint64_t)i, 1024, CHANNELS, 0);
            event.collective.group = plan;
            ncclProfiler_v6.start(context, &handles[i], &event);
        }
        run_calls(context, sequence, count, (const void *const *)handles, *calls == 'l');
        sequence += (uint64_t)count;
    }
    printf("%llu calls\n", (unsigned long long)sequence);
}

/* --- bound --- */

/* Until a rank has that number: the writer looks four times a second, or once in a while on a busy computer. */
static void wait_for_number(const _Atomic(uint64_t) *number) {
    enum { LOOKS_MS = 10, MOST_MS = 120000 };
    for (int ms = 0; atomic_load(number) == UINT64_MAX && ms < MOST_MS; ms += LOOKS_MS) {
        usleep(LOOKS_MS * 1000);
    }
}

static void check_bound(unsigned pairs) {
    enum { RANKS = 3, SENDS = 1, LAST = 2, BEFORE = 400, CALLS = 600, WAIT_US = 900000 };
    void *contexts[RANKS], *none = NULL;
    struct explorer *explorers[RANKS];
    struct event to_itself = {.type = EVENT_P2P, .rank = SENDS, .p2p = {.peer = SENDS}};
    for (int rank = 0; rank < RANKS; rank++) {
        contexts[rank] = open_of_ranks(7, rank, RANKS);
        explorers[rank] = rank == LAST ? NULL : explorer_open(7, "a table", "a build");
    }
    wait_for_number(&explorers[SENDS]->bound_at);
    for (unsigned i = 0; i < 2 * pairs; i++) {
        ncclProfiler_v6.start(contexts[SENDS], &none, &to_itself);
    }
    for (uint64_t i = 0; i < BEFORE; i++) {
        void *handle = launch(contexts[SENDS], i, 1024, 0);
        for (unsigned channel = 0; pairs > 0 && channel < CHANNELS; channel++) {
            kernel(contexts[SENDS], handle, channel, 1000, 2000);
        }
    }
    usleep(WAIT_US); /* in which the second would take it that rank 0 is past the round */
    explorers[LAST] = explorer_open(7, "a table", "a build");
    for (int rank = 0; rank < RANKS; rank++) {
        wait_for_number(&explorers[rank]->from);
    }
    for (int rank = 0; rank < RANKS; rank++) {
        uint64_t counted;
        for (uint64_t i = rank == SENDS ? BEFORE : 0; i < CALLS; i++) {
            launch(contexts[rank], i, 1024, 0);
        }
        puts(explorer_counts(explorers[rank], COLLECTIVE_ALL_REDUCE, &counted) ? "explores" : "does not");
    }
}

int main(int argc, char **argv) {
    CHECK(argc >= 3);
    const char *what = argv[1];
    struct source source = {.seed = strtoull(argv[2], NULL, 10)};
    if (strcmp(what, "random") == 0) {
        struct communicators those = {0};
        size_t count = strtoul(argv[3], NULL, 10);
        open_communicators(&source, &those);
        for (size_t i = 0; i < count; i++) {
            check_event(&source, &those);
        }
        printf("%zu events\n", count);
    } else if (strcmp(what, "threads") == 0) {
        check_threads(source.seed, strtoul(argv[3], NULL, 10));
    } else if (strcmp(what, "closed") == 0) {
        for (int i = 2; i < argc; i++) {
            check_closed(argv[i]);
        }
        puts("closed");
    } else if (strcmp(what, "many") == 0) {
        check_many(source.seed);
    } else if (strcmp(what, "rate") == 0) {
        check_rate(open_context(1, 0), source.seed, strtoul(argv[3], NULL, 10));
    } else if (strcmp(what, "bound") == 0) {
        check_bound((unsigned)source.seed);
    } else if (strcmp(what, "marks") == 0) {
        check_marks(open_context(1, 0), argv[2]);
    } else {
        bool kernels = strcmp(what, "cost") == 0, events = kernels || strcmp(what, "launch") == 0;
        CHECK(events || strcmp(what, "nothing") == 0);
        check_cost(open_context(1, 0), source.seed, events, kernels);
    }
    return 0;
}
