#define _GNU_SOURCE /* CLOCK_REALTIME_COARSE, pthread's versions beside plain C11 */

#include "profiler.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "explorer.h"
#include "hardware.h"
#include "jobfile.h"
#include "log.h"

/* It moved from libpthread to libc in glibc 2.34: as with libdl (libdl.h), the object loads on older systems too. */
#if defined(__GLIBC__)
#pragma weak pthread_create
#if __GLIBC_PREREQ(2, 34) && defined(__x86_64__)
__asm__(".symver pthread_create,pthread_create@GLIBC_2.2.5");
#elif __GLIBC_PREREQ(2, 34) && defined(__aarch64__)
__asm__(".symver pthread_create,pthread_create@GLIBC_2.17");
#endif
#endif

/* Calls under way of a communicator, and calls that ended and wait for the writer. What is more than these is counted as
 * lost. NCCL's thread may wake nobody, so the writer looks so often that 4,096 are enough for what one GPU can end: calls
 * of 8 B came at 30,000 a second on an H200, 300 between two looks. */
enum { CONTEXT_BITS = 10, SLOT_BITS = 10, SLOTS = 1 << SLOT_BITS, RING = 4096 };
enum {
    LOOK_NS = 10000000,
    LOOKS = 25 /* until it goes on to files and to other ranks, where no call waits for these */
};
enum { SECONDS = 60 };
enum { COUNTS_EACH_LAUNCH = 23100 }; /* from that release on NCCL does: enum untimed */
/* 10 s: a file system may hold its writer for ever, and never the end of a process. */
enum { MOST_LOOKS_AT_END = 1000 };

_Static_assert(1 << CONTEXT_BITS == MOST_COMMUNICATORS, "a handle has room for each");

/* A collective from its launch to its end. `state` is its number on the communicator, times two, and one while it is
 * under way: events that come later than another call has the slot are told by it. NCCL's thread that launches writes
 * all but what its thread of the proxy sees of the kernels. */
struct slot {
    _Atomic(uint64_t) state;
    uint64_t sequence;
    uint32_t kind; /* NO_KIND: there are too many, and it is only seen to end */
    uint32_t channels, begun, ended;
    uint32_t plan; /* number of its kernel, from 1; 0: NCCL does not say it */
    uint8_t untimed;
    bool of_all; /* ranks */
    uint64_t first_ns, last_ns;
};

enum { NO_KIND = UINT32_MAX };

struct ended {
    uint64_t number, first_ns, last_ns, at_ns;
    uint32_t sequence, kind, plan;
    uint32_t untimed; /* enum untimed */
};

/* What is looked at late has times of so many works later (MAX_PROFILER_EVENTS_PER_CHANNEL, src/include/device.h,
 * v2.27.3-1): until as many more calls have ended it is not known of a call. */
enum { HELD = 64, RESTS_NS = 200000000 };

/* The room of a communicator, for the next one when it is gone. */
struct room {
    _Atomic(uint64_t) pushed, taken; /* of the ring */
    struct room *next;
    struct slot slots[SLOTS];
    _Atomic(uint32_t) works[SLOTS]; /* of each of the last plans: calls, sends and receives in it */
    struct ended ring[RING];
    /* of the writer alone: those that are not written yet, the oldest at `held_from` */
    struct ended held[HELD];
    uint32_t held_from, n_held;
};

/* Whose calls they are. */
struct identity {
    uint32_t version;
    uint32_t ranks, nodes;
    int32_t rank;
    uint64_t id;
    const char *name;
};

struct context {
    uint32_t number;
    struct identity is;
    bool counts_each_launch; /* NCCL does: what is in a graph, and what a rank sends to itself (enum untimed) */
    char name[48];
    _Atomic(uint64_t) started, finished, lost;
    _Atomic(uint32_t) plans;
    _Atomic(uint32_t) untimed;   /* enum untimed: of calls from here on */
    _Atomic(struct room *) room; /* NULL once the communicator is gone and all is written */
    atomic_bool gone;
    struct explorer explorer; /* of version 5 and later */
};

/* A kind of call as NCCL says it: its words are constants of its own, told apart by their addresses. */
struct key {
    const char *function, *type, *algorithm, *protocol;
    uint64_t count;
    uint32_t communicator, shape; /* channels and warps */
};

enum { FREE, TAKEN, READY };

struct kind {
    _Atomic(uint32_t) state;
    bool of_all;
    struct key key;
};

static struct {
    _Atomic(struct context *) contexts[MOST_COMMUNICATORS]; /* never freed: an event may still be about one */
    _Atomic(uint32_t) made;                                 /* no number below is free */
    atomic_bool full;                                       /* the log says that there are too many */
    struct kind kinds[MOST_KINDS];
    _Atomic(uint32_t) writer;  /* FREE, TAKEN while one is made, READY */
    _Atomic(uint32_t) end;     /* TAKEN once the process ends, READY when all is written */
    _Atomic(uint64_t) groups;  /* that were begun */
    _Atomic(uint32_t) pooling; /* 1 while somebody takes one of the rooms that nobody has */
    _Atomic(struct room *) pool;
    pid_t process; /* whose thread it is */
    struct job_file file;
    struct timespec wrote;
} job;

/* --- handles: what NCCL keeps of an event, and never looks into --- */

/* Up to 2.27 NCCL tells nothing of the collectives of a group that has none (src/plugin/profiler.cc, v2.27.7-1). */
enum { HANDLE_COLLECTIVE = 1, HANDLE_KERNEL = 2, HANDLE_GROUP = 3 };

static void *handle_of(int what, const struct context *context, uint64_t number) {
    uint64_t bits = (number << CONTEXT_BITS | context->number) << 2 | (unsigned)what;
    return (void *)(uintptr_t)bits;
}

/* The slot of a handle, as long as its call has it. */
static struct slot *slot_of(const void *handle, int what, struct context **context, struct room **room,
                            uint64_t *number) {
    uint64_t bits = (uint64_t)(uintptr_t)handle;
    if ((bits & 3) != (unsigned)what) {
        return NULL;
    }
    bits >>= 2;
    *context = atomic_load_explicit(&job.contexts[bits & (MOST_COMMUNICATORS - 1)], memory_order_acquire);
    *number = bits >> CONTEXT_BITS;
    *room = *context ? atomic_load_explicit(&(*context)->room, memory_order_acquire) : NULL;
    if (!*room) {
        return NULL;
    }
    struct slot *slot = &(*room)->slots[*number & (SLOTS - 1)];
    return atomic_load_explicit(&slot->state, memory_order_acquire) == (*number << 1 | 1) ? slot : NULL;
}

static void lose(struct context *context) {
    atomic_fetch_add_explicit(&context->lost, 1, memory_order_relaxed);
}

/* --- kinds --- */

static bool same(const struct key *a, const struct key *b) {
    return a->count == b->count && a->function == b->function && a->algorithm == b->algorithm &&
           a->protocol == b->protocol && a->type == b->type && a->communicator == b->communicator &&
           a->shape == b->shape;
}

static uint64_t hash(const struct key *key) {
    uint64_t mixed = key->count * 0x9e3779b97f4a7c15u ^ (uint64_t)(uintptr_t)key->algorithm ^
                     (uint64_t)(uintptr_t)key->protocol << 7 ^ (uint64_t)(uintptr_t)key->function << 17 ^
                     (uint64_t)(uintptr_t)key->type << 29 ^ (uint64_t)key->shape << 40 ^
                     (uint64_t)key->communicator << 52;
    return (mixed ^ mixed >> 29) * 0xbf58476d1ce4e5b9u >> 20;
}

/* The number of a kind, which is given to it when it is first seen; -1 where there are too many. */
static int64_t kind_of(const struct key *key) {
    uint64_t at = hash(key);
    for (int probe = 0; probe < 64; probe++, at++) {
        struct kind *kind = &job.kinds[at & (MOST_KINDS - 1)];
        uint32_t state = atomic_load_explicit(&kind->state, memory_order_acquire);
        if (state == FREE && atomic_compare_exchange_strong(&kind->state, &state, TAKEN)) {
            kind->key = *key;
            kind->of_all = explorer_is_of_all(key->function);
            atomic_store_explicit(&kind->state, READY, memory_order_release);
            return kind - job.kinds;
        }
        if (state == READY && same(&kind->key, key)) {
            return kind - job.kinds;
        }
    }
    return -1;
}

/* --- events --- */

/* In order, by one thread at a time: the one of the proxy. */
static void push(struct context *context, struct room *room, const struct slot *slot, uint64_t number) {
    uint64_t pushed = atomic_load_explicit(&room->pushed, memory_order_relaxed);
    if (pushed - atomic_load_explicit(&room->taken, memory_order_acquire) == RING) {
        lose(context);
        return;
    }
    struct timespec now;
    clock_gettime(CLOCK_REALTIME_COARSE, &now);
    bool shared = slot->plan && atomic_load_explicit(&room->works[slot->plan & (SLOTS - 1)], memory_order_relaxed) > 1;
    room->ring[pushed & (RING - 1)] = (struct ended){
        .number = number,
        .first_ns = slot->first_ns,
        .last_ns = slot->last_ns,
        .at_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec,
        .sequence = (uint32_t)slot->sequence,
        .kind = slot->kind,
        .plan = slot->plan,
        .untimed = slot->untimed == TIMED && shared ? UNTIMED_GROUP : slot->untimed,
    };
    atomic_store_explicit(&room->pushed, pushed + 1, memory_order_release);
    atomic_fetch_add_explicit(&context->finished, 1, memory_order_relaxed);
}

/* A plan is what NCCL makes one kernel of. */
static void *begin_plan(struct context *context) {
    struct room *room = atomic_load_explicit(&context->room, memory_order_acquire);
    uint32_t plan = atomic_fetch_add_explicit(&context->plans, 1, memory_order_relaxed) + 1;
    if (room) {
        atomic_store_explicit(&room->works[plan & (SLOTS - 1)], 0, memory_order_relaxed);
    }
    return handle_of(HANDLE_GROUP, context, plan);
}

/* Its number, when one more work is in it. */
static uint32_t add_to_plan(struct room *room, const void *handle) {
    uint64_t bits = (uint64_t)(uintptr_t)handle;
    uint32_t plan = (bits & 3) == HANDLE_GROUP ? (uint32_t)(bits >> (CONTEXT_BITS + 2)) : 0;
    if (plan) {
        atomic_fetch_add_explicit(&room->works[plan & (SLOTS - 1)], 1, memory_order_relaxed);
    }
    return plan;
}

static void begin_p2p(struct context *context, const void *plan, int rank, int peer) {
    struct room *room = atomic_load_explicit(&context->room, memory_order_acquire);
    if (room) {
        add_to_plan(room, plan);
    }
    if (peer == rank && !context->counts_each_launch) {
        uint32_t timed = TIMED;
        atomic_compare_exchange_strong(&context->untimed, &timed, UNTIMED_SELF_SENDS);
        explorer_miscount(&context->explorer);
    }
}

/* A call of the program; `function`: NULL for a send or receive. */
static void note_call(struct context *context, const char *function, const void *group, bool captured) {
    explorer_call(&context->explorer, function, group, captured);
    if (captured && !context->counts_each_launch) {
        atomic_store_explicit(&context->untimed, UNTIMED_GRAPHS, memory_order_relaxed);
    }
}

static void *begin(struct context *context, uint64_t sequence, const struct key *key, const void *plan) {
    struct room *room = atomic_load_explicit(&context->room, memory_order_acquire);
    uint64_t number = atomic_fetch_add_explicit(&context->started, 1, memory_order_relaxed);
    if (!room) {
        return NULL;
    }
    struct slot *slot = &room->slots[number & (SLOTS - 1)];
    uint64_t state = atomic_load_explicit(&slot->state, memory_order_acquire);
    int64_t kind = kind_of(key);
    if (key->shape >> 8 == 0) {
        lose(context);
        return NULL;
    }
    if (state & 1) { /* a call that never ended; its events find another number here from now on */
        lose(context);
    }
    slot->sequence = sequence;
    slot->plan = add_to_plan(room, plan);
    slot->untimed = (uint8_t)atomic_load_explicit(&context->untimed, memory_order_relaxed);
    slot->kind = kind < 0 ? NO_KIND : (uint32_t)kind;
    slot->of_all = kind < 0 ? explorer_is_of_all(key->function) : job.kinds[kind].of_all;
    slot->channels = key->shape >> 8;
    slot->begun = slot->ended = 0;
    slot->first_ns = UINT64_MAX;
    slot->last_ns = 0;
    atomic_store_explicit(&slot->state, number << 1 | 1, memory_order_release);
    return handle_of(HANDLE_COLLECTIVE, context, number);
}

static void *begin_kernel(const void *parent, uint64_t start_ns) {
    struct context *context;
    struct room *room;
    uint64_t number;
    struct slot *slot = slot_of(parent, HANDLE_COLLECTIVE, &context, &room, &number);
    if (!slot) {
        return NULL;
    }
    slot->first_ns = start_ns < slot->first_ns ? start_ns : slot->first_ns;
    slot->begun++;
    return handle_of(HANDLE_KERNEL, context, number);
}

static void end_kernel(const void *handle, uint64_t stop_ns) {
    struct context *context;
    struct room *room;
    uint64_t number;
    struct slot *slot = slot_of(handle, HANDLE_KERNEL, &context, &room, &number);
    if (!slot) {
        return;
    }
    slot->last_ns = stop_ns > slot->last_ns ? stop_ns : slot->last_ns;
    slot->ended++;
    if (slot->ended < slot->channels) {
        return;
    }
    if (slot->of_all) {
        explorer_end_call(&context->explorer);
    }
    if (slot->kind != NO_KIND) {
        slot->untimed = slot->untimed == TIMED && slot->last_ns < slot->first_ns ? UNTIMED_OVERLAP : slot->untimed;
        push(context, room, slot, number);
    } else {
        lose(context);
    }
    atomic_store_explicit(&slot->state, number << 1, memory_order_release);
}

static struct key key_of(const struct context *context, const char *function, const char *type, size_t count,
                         const char *algorithm, const char *protocol, unsigned channels, unsigned warps) {
    return (struct key){function, type, algorithm, protocol, count, context->number, channels << 8 | warps};
}

/* `in_event`: the plan is there, and not the parent. */
static int start(void *given, void **handle, const struct event *event, uint64_t type, bool in_event) {
    struct context *context = given;
    *handle = NULL;
    if (type == EVENT_KERNEL_CHANNEL) {
        *handle = begin_kernel(event->parent, event->kernel.start_ns);
    } else if (type == EVENT_COLLECTIVE && context) {
        struct key key = key_of(context, event->collective.function, event->collective.type, event->collective.count,
                                event->collective.algorithm, event->collective.protocol, event->collective.channels,
                                event->collective.warps);
        *handle = begin(context, event->collective.sequence, &key, in_event ? event->collective.group : event->parent);
    } else if (type == EVENT_P2P && context) {
        begin_p2p(context, in_event ? event->p2p.group : event->parent, event->rank, event->p2p.peer);
    } else if (type == EVENT_GROUP && context) {
        *handle = begin_plan(context);
    }
    return RESULT_SUCCESS;
}

/* Calls of NCCL's own interface; a group's number tells it from all others. */
static int start_v5(void *given, void **handle, const struct event *event) {
    struct context *context = given;
    *handle = NULL;
    if (!context) {
        return RESULT_SUCCESS;
    }
    switch (event->type) {
    case EVENT_GROUP_API:
        *handle = handle_of(HANDLE_GROUP, context, atomic_fetch_add_explicit(&job.groups, 1, memory_order_relaxed) + 1);
        return RESULT_SUCCESS;
    case EVENT_COLLECTIVE_API:
        note_call(context, event->call.function, event->parent, event->call.captured != 0);
        return RESULT_SUCCESS;
    case EVENT_P2P_API:
        note_call(context, NULL, event->parent, event->p2p_call.captured != 0);
        return RESULT_SUCCESS;
    case EVENT_KERNEL_LAUNCH:
        if (explorer_launch(&context->explorer, event->parent)) {
            explorer_wait(&context->explorer);
        }
        return RESULT_SUCCESS;
    default:
        return start(given, handle, event, event->type, true);
    }
}

static int start_v4(void *context, void **handle, const struct event *event) {
    return start(context, handle, event, event->type_v4, false);
}

static uint64_t host_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Kernels have no time of their own here: when NCCL's thread sees them is what there is. */
static int start_v3(void *given, void **handle, const struct event_v3 *event) {
    struct context *context = given;
    *handle = NULL;
    if (event->type == EVENT_KERNEL_CHANNEL) {
        *handle = begin_kernel(event->parent, host_ns());
    } else if (event->type == EVENT_COLLECTIVE && context) {
        if (context->is.id == 0) {
            context->is.rank = event->rank;
            context->is.id = event->collective.communicator;
        }
        struct key key = key_of(context, event->collective.function, event->collective.type, event->collective.count,
                                event->collective.algorithm, event->collective.protocol,
                                event->collective.most_channels, event->collective.warps);
        *handle = begin(context, event->collective.sequence, &key, event->parent);
    } else if (event->type == EVENT_P2P && context) {
        begin_p2p(context, event->parent, event->rank, event->p2p.peer);
    } else if (event->type == EVENT_GROUP && context) {
        *handle = begin_plan(context);
    }
    return RESULT_SUCCESS;
}

static int stop(void *handle) {
    (void)handle;
    return RESULT_SUCCESS;
}

static int stop_v3(void *handle) {
    end_kernel(handle, host_ns());
    return RESULT_SUCCESS;
}

static int record(void *handle, int state, const struct event_state *values) {
    if (state == STATE_KERNEL_CHANNEL_STOP && values) {
        end_kernel(handle, values->stop_ns);
    }
    return RESULT_SUCCESS;
}

static int record_v3(void *handle, int state, const struct event_state *values) {
    (void)handle, (void)state, (void)values;
    return RESULT_SUCCESS;
}

/* --- the writer --- */

static void describe(struct job_communicator *to, const struct context *context) {
    *to = (struct job_communicator){.id = context->is.id,
                                    .ranks = context->is.ranks,
                                    .nodes = context->is.nodes,
                                    .rank = context->is.rank,
                                    .version = context->is.version,
                                    .started = atomic_load_explicit(&context->started, memory_order_relaxed),
                                    .finished = atomic_load_explicit(&context->finished, memory_order_relaxed),
                                    .lost = atomic_load_explicit(&context->lost, memory_order_relaxed)};
    memcpy(to->name, context->name, sizeof to->name);
}

static void describe_kinds(struct job_file *file) {
    for (uint32_t i = 0; i < MOST_KINDS; i++) {
        const struct kind *kind = &job.kinds[i];
        struct job_kind *to = &file->kinds[i];
        if (to->function[0] || atomic_load_explicit(&kind->state, memory_order_acquire) != READY) {
            continue;
        }
        const struct key *key = &kind->key;
        to->communicator = key->communicator;
        to->channels = (uint8_t)(key->shape >> 8);
        to->warps = (uint8_t)key->shape;
        to->count = key->count;
        snprintf(to->function, sizeof to->function, "%s", key->function ? key->function : "?");
        snprintf(to->type, sizeof to->type, "%s", key->type ? key->type : "?");
        snprintf(to->algorithm, sizeof to->algorithm, "%s", key->algorithm ? key->algorithm : "?");
        snprintf(to->protocol, sizeof to->protocol, "%s", key->protocol ? key->protocol : "?");
        file->head.kinds = i + 1 > file->head.kinds ? i + 1 : file->head.kinds;
    }
}

/* Never freed: another thread may still be in an event of the communicator that had it. Nobody waits: a room is pushed
 * whoever else is at the pool, and who finds somebody else taking one makes a new one. One at a time takes, so the next
 * of the first room stays what it was read as. */
static void give_room(struct room *room) {
    struct room *first = atomic_load_explicit(&job.pool, memory_order_relaxed);
    do {
        room->next = first;
    } while (
        !atomic_compare_exchange_weak_explicit(&job.pool, &first, room, memory_order_release, memory_order_relaxed));
}

static struct room *take_room(void) {
    uint32_t nobody = 0;
    struct room *room = NULL;
    if (atomic_compare_exchange_strong(&job.pooling, &nobody, 1)) {
        room = atomic_load_explicit(&job.pool, memory_order_acquire);
        while (room && !atomic_compare_exchange_weak_explicit(&job.pool, &room, room->next, memory_order_acquire,
                                                              memory_order_acquire)) {
        }
        atomic_store_explicit(&job.pooling, 0, memory_order_release);
    }
    if (room) {
        memset(room, 0, sizeof *room);
        return room;
    }
    return calloc(1, sizeof *room);
}

/* Whether its times may be those of its own kernel. */
static bool is_own(const struct ended *ended) {
    return (ended->untimed == TIMED || ended->untimed >= UNTIMED_GROUP) && ended->first_ns <= ended->last_ns;
}

/* Kernels of a communicator run one after the other, and only those of one plan together. Where two overlap, one has times
 * that are not its own, and it is not known which. */
static void compare(struct ended *a, struct ended *b) {
    const struct ended *first = a->number < b->number ? a : b, *second = a->number < b->number ? b : a;
    if (is_own(a) && is_own(b) && (a->plan != b->plan || !a->plan) && first->last_ns > second->first_ns) {
        a->untimed = a->untimed == TIMED ? UNTIMED_OVERLAP : a->untimed;
        b->untimed = b->untimed == TIMED ? UNTIMED_OVERLAP : b->untimed;
    }
}

static void let_go(struct room *room, struct job_file *file) {
    const struct ended *ended = &room->held[room->held_from];
    double time_us =
        ended->untimed == TIMED ? (double)(ended->last_ns - ended->first_ns) * 1e-3 : -(double)ended->untimed;
    jobfile_add(file, ended->kind, ended->sequence, time_us, ended->at_ns);
    room->held_from = (room->held_from + 1) % HELD;
    room->n_held--;
}

/* `compared`: its times are of the GPU's clock, not of when a thread of the host saw it. */
static void hold(struct room *room, struct job_file *file, struct ended ended, bool compared) {
    for (uint32_t i = 0; compared && i < room->n_held; i++) {
        compare(&ended, &room->held[(room->held_from + i) % HELD]);
    }
    if (room->n_held == HELD) {
        let_go(room, file);
    }
    room->held[(room->held_from + room->n_held++) % HELD] = ended;
}

/* `all`: those that are held, too, as are those of a communicator that rests: its process may be killed before it ends. */
static void take(struct context *context, struct job_file *file, bool all) {
    struct room *room = atomic_load_explicit(&context->room, memory_order_acquire);
    if (!room) {
        return;
    }
    uint64_t pushed = atomic_load_explicit(&room->pushed, memory_order_acquire);
    uint64_t taken = atomic_load_explicit(&room->taken, memory_order_relaxed);
    for (; taken < pushed; taken++) {
        hold(room, file, room->ring[taken & (RING - 1)], context->is.version > 3);
    }
    atomic_store_explicit(&room->taken, taken, memory_order_release);
    const struct ended *newest = &room->held[(room->held_from + room->n_held + HELD - 1) % HELD];
    bool last = all || (room->n_held > 0 && jobfile_now_ns() > newest->at_ns + RESTS_NS);
    while (last && room->n_held > 0) {
        let_go(room, file);
    }
}

/* Of a communicator that is gone, whose last calls are taken. */
static void end_room(struct context *context, struct job_file *file) {
    struct room *room = atomic_load_explicit(&context->room, memory_order_acquire);
    if (room) {
        take(context, file, true);
        atomic_store_explicit(&context->room, NULL, memory_order_release);
        give_room(room);
    }
}

/* The communicator of a number; NULL where there is none, nor of a higher one. */
static struct context *context_of(uint32_t number) {
    return number < MOST_COMMUNICATORS ? atomic_load_explicit(&job.contexts[number], memory_order_acquire) : NULL;
}

static void take_all(struct job_file *file, bool all) {
    struct context *context;
    for (uint32_t i = 0; (context = context_of(i)); i++) {
        take(context, file, all);
    }
}

/* Whether a call waits for what is agreed on here. */
static bool agree_all(struct job_file *file) {
    struct context *context;
    bool waiting = false;
    file->head.lost = 0;
    for (uint32_t i = 0; (context = context_of(i)); i++) {
        if (atomic_load_explicit(&context->gone, memory_order_acquire)) {
            end_room(context, file);
            explorer_end(&context->explorer, file->folder);
        } else {
            explorer_agree(&context->explorer, file->folder);
            waiting = waiting || explorer_is_waiting(&context->explorer);
        }
        describe(&file->communicators[i], context);
        file->head.communicators = i + 1;
        file->head.lost += file->communicators[i].lost;
    }
    return waiting;
}

/* `write`: the process ends. Whether a call waits. */
static bool go_on(bool write) {
    struct job_file *file = &job.file;
    struct timespec now;
    bool over = jobfile_is_over(file, jobfile_now_ns());
    take_all(file, write || over);
    bool waiting = agree_all(file);
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (write || over || now.tv_sec - job.wrote.tv_sec >= (time_t)file->head.seconds) {
        describe_kinds(file);
        jobfile_write(file);
        job.wrote = now;
    }
    if (over) {
        jobfile_begin(file);
    }
    return waiting;
}

/* All of it is this thread's, the end as well: whose thread ends the process may get a signal for a file that is too large
 * (RLIMIT_FSIZE), or none to read what it logs. */
static void *write_on(void *nothing) {
    const struct timespec pause = {0, LOOK_NS};
    bool waiting = false;
    struct context *context;
    (void)nothing;
    for (unsigned looks = 1; atomic_load_explicit(&job.end, memory_order_acquire) == FREE; looks++) {
        if (waiting || looks % LOOKS == 0) {
            waiting = go_on(false);
        } else {
            take_all(&job.file, false);
        }
        nanosleep(&pause, NULL);
    }
    go_on(true);
    for (uint32_t i = 0; (context = context_of(i)); i++) {
        explorer_end(&context->explorer, job.file.folder);
    }
    atomic_store_explicit(&job.end, READY, memory_order_release);
    return NULL;
}

/* The process ends: what is not written yet is. A child that was forked has nothing of its own. */
__attribute__((destructor)) static void end(void) {
    const struct timespec pause = {0, LOOK_NS / 10};
    if (atomic_load_explicit(&job.writer, memory_order_acquire) != READY || job.process != getpid()) {
        return;
    }
    atomic_store_explicit(&job.end, TAKEN, memory_order_release);
    for (int looks = 0; looks < 10 * MOST_LOOKS_AT_END; looks++) {
        if (atomic_load_explicit(&job.end, memory_order_acquire) == READY) {
            return;
        }
        nanosleep(&pause, NULL);
    }
}

/* No signal of the job's is delivered to the thread. */
static bool start_thread(void) {
    pthread_t thread;
    pthread_attr_t detached;
    sigset_t all, before;
    int (*create)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) = pthread_create;
    if (!create || pthread_attr_init(&detached) != 0) {
        return false;
    }
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &before); /* the calling thread's alone, on Linux */
    bool good = create(&thread, &detached, write_on, NULL) == 0;
    sigprocmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&detached);
    return good;
}

static uint32_t seconds(void) {
    const char *said = getenv(JOB_SECONDS_VARIABLE);
    long number = said ? strtol(said, NULL, 10) : 0;
    return number >= 1 && number <= FILE_SECONDS ? (uint32_t)number : SECONDS;
}

/* There is one writer for the process, whose folder is that of its first communicator. */
static bool start_writer(const char *folder, nccl_logger logger) {
    uint32_t none = FREE;
    if (atomic_compare_exchange_strong(&job.writer, &none, TAKEN)) {
        jobfile_open(&job.file, folder, seconds(), nccl_version(logger), logger);
        clock_gettime(CLOCK_MONOTONIC, &job.wrote);
        job.process = getpid();
        bool good = start_thread();
        if (!good) {
            log_warn(logger, "no thread can be made: nothing of this job is measured (" JOB_VARIABLE ")");
        }
        atomic_store_explicit(&job.writer, good ? READY : FREE, memory_order_release);
        return good;
    }
    return true;
}

/* --- communicators --- */

/* A number and room for a new one; NULL where there are too many, or no memory. Each keeps its number for good: a file
 * may speak of it. */
static struct context *take_context(const struct identity *is, int release, nccl_logger logger) {
    bool full = atomic_load(&job.made) == MOST_COMMUNICATORS;
    struct context *context = full ? NULL : calloc(1, sizeof *context);
    struct room *room = context ? take_room() : NULL;
    if (!room) {
        free(context);
        return NULL;
    }
    context->is = *is;
    context->counts_each_launch = release >= COUNTS_EACH_LAUNCH;
    snprintf(context->name, sizeof context->name, "%s", is->name ? is->name : "");
    atomic_init(&context->room, room);
    if (is->version >= 5) { /* before the writer can see it */
        explorer_start(&context->explorer, is->id, is->rank, (int)is->ranks, logger);
    }
    for (uint32_t i = atomic_load(&job.made); i < MOST_COMMUNICATORS; i++) {
        struct context *none = NULL;
        context->number = i;
        if (atomic_compare_exchange_strong(&job.contexts[i], &none, context)) {
            atomic_fetch_add(&job.made, 1);
            return context;
        }
    }
    give_room(room); /* the context stays: an explorer is never freed */
    return NULL;
}

/* From 2.29.2 on kernels of a broadcast count a work, and note no number of it (src/enqueue.cc: ncclTaskBcast;
 * src/device/common.h: profilerEnabled()); host and kernel then count differently, at once from 2.31 on, before with a
 * graph. NCCL may wait for such a number for ever: up to 2.30 ncclCommDestroy() does not return, and later it frees what
 * NCCL's thread for the profiler still reads (commFree(), src/init.cc). NCCL_ALLGATHERV_ENABLE=0 has broadcasts as all
 * other collectives. Nothing helps once one is seen: NCCL reads the mask before a call's first event
 * (ncclProfilerStartGroupApiEvent()), a captured call keeps its mask for all launches, and kernels of calls without one
 * note no number either. So orders are left that wait, whether the mask is taken back at a capture or at a broadcast. */
static bool may_wait_for_ever(int release) {
    enum { BROADCASTS_UNSEEN = 22902 };
    const char *said = getenv("NCCL_ALLGATHERV_ENABLE");
    return release >= BROADCASTS_UNSEEN && !(said && strcmp(said, "0") == 0);
}

/* The mask is one for all communicators of this NCCL: once one is measured it stays, whatever becomes of the variables. A rank
 * that took it back would count no further call, and take other arms than the rest. The writer reads NCCL's words, and logs,
 * when NCCL may be closed: `nccl`, an address in it, keeps it. */
static int open_context(void **given, int *mask, const struct identity *is, nccl_logger logger, const void *nccl) {
    const char *folder = getenv(JOB_VARIABLE);
    bool measures = atomic_load(&job.made) > 0 && *mask != 0;
    *given = NULL;
    log_look();
    if (!measures && (!folder || !folder[0] || !start_writer(folder, logger))) {
        *mask = 0; /* never for a moment: another thread's calls would have it */
        return RESULT_SUCCESS;
    }
    nccl_keep(nccl);
    int release = nccl_version(logger);
    if (!measures && may_wait_for_ever(release)) {
        log_warn(logger,
                 "nothing of this job is measured (" JOB_VARIABLE
                 "): NCCL 2.29 and later may never end, or crash at its "
                 "end, where kernels are profiled and broadcasts are not; NCCL_ALLGATHERV_ENABLE=0 on all ranks has "
                 "them profiled");
        *mask = 0;
        return RESULT_SUCCESS;
    }
    int calls = is->version >= 5 ? EVENT_COLLECTIVE_API | EVENT_KERNEL_LAUNCH : 0;
    *mask = EVENT_COLLECTIVE | EVENT_KERNEL_CHANNEL | calls; /* of the whole process */
    struct context *context = take_context(is, release, logger);
    if (!context) {
        if (!atomic_exchange(&job.full, true)) {
            log_warn(logger, "too many communicators, or no memory: no more are measured (" JOB_VARIABLE ")");
        }
        return RESULT_SUCCESS;
    }
    *given = context;
    log_info(logger, "measures the collectives of this communicator into %.512s (" JOB_VARIABLE ")", job.file.folder);
    return RESULT_SUCCESS;
}

static int init_v3(void **context, int *mask) {
    struct identity is = {.version = 3, .rank = -1};
    return open_context(context, mask, &is, NULL, __builtin_return_address(0));
}

static int init_v4(void **context, int *mask, const char *name, uint64_t communicator, int nodes, int ranks, int rank,
                   nccl_logger logger) {
    struct identity is = {4, (uint32_t)ranks, (uint32_t)nodes, rank, communicator, name};
    return open_context(context, mask, &is, logger, __builtin_return_address(0));
}

static int init_v5(void **context, uint64_t communicator, int *mask, const char *name, int nodes, int ranks, int rank,
                   nccl_logger logger) {
    struct identity is = {5, (uint32_t)ranks, (uint32_t)nodes, rank, communicator, name};
    return open_context(context, mask, &is, logger, __builtin_return_address(0));
}

static int finalize(void *given) {
    struct context *context = given;
    if (context) {
        explorer_stop(&context->explorer);
        atomic_store_explicit(&context->gone, true, memory_order_release);
    }
    return RESULT_SUCCESS;
}

#define PROFILER_NAME "nccl-tuner"

const struct profiler_v3 ncclProfiler_v3 = {PROFILER_NAME, init_v3, start_v3, stop_v3, record_v3, finalize};
const struct profiler_v4 ncclProfiler_v4 = {PROFILER_NAME, init_v4, start_v4, stop, record, finalize};
const struct profiler_v5 ncclProfiler_v5 = {PROFILER_NAME, init_v5, start_v5, stop, record, finalize};
const struct profiler_v5 ncclProfiler_v6 = {PROFILER_NAME, init_v5, start_v5, stop, record, finalize};
