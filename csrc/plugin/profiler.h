/* Measuring inside the job: what NCCL's profiler interface says of each collective, in memory that does not grow, and in
 * files that a thread of its own writes. tuner/jobs/inside reads them.
 *
 * Layouts of what NCCL hands over: src/include/plugin/profiler/profiler_v3.h, v2.26.2-1; profiler_v4.h, v2.27.3-1;
 * profiler_v5.h, v2.28.3-1; profiler_v6.h, v2.29.2-1. NCCL looks for the newest version that it knows first
 * (src/plugin/profiler.cc): 2.26 for v3, 2.27 for v4, 2.28 for v5, 2.29 and later for v6. Versions 1 and 2 (2.23 to 2.25)
 * have no event of a kernel: nothing could be timed. */
#ifndef PLUGIN_PROFILER_H
#define PLUGIN_PROFILER_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "abi.h"

/* ncclProfile*: kinds of events. */
enum {
    EVENT_GROUP = 1 << 0,
    EVENT_COLLECTIVE = 1 << 1,
    EVENT_P2P = 1 << 2,
    EVENT_KERNEL_CHANNEL = 1 << 6,
    EVENT_GROUP_API = 1 << 8,
    EVENT_COLLECTIVE_API = 1 << 9,
    EVENT_P2P_API = 1 << 10,
    EVENT_KERNEL_LAUNCH = 1 << 11,
};

enum { STATE_KERNEL_CHANNEL_STOP = 22 };

/* ncclProfilerEventDescr_v3_t. */
struct event_v3 {
    uint8_t type;
    void *parent;
    int rank;
    union {
        struct {
            const char *name;
            uint64_t communicator, sequence;
            const char *function;
            const void *send;
            void *receive;
            size_t count;
            int root;
            const char *type;
            uint8_t most_channels, warps;
            const char *algorithm, *protocol;
        } collective;
        struct {
            const char *name;
            uint64_t communicator;
            const char *function;
            void *buffer;
            const char *type;
            size_t count;
            int peer;
        } p2p;
        struct {
            uint8_t channel;
        } kernel;
    };
};

/* ncclProfilerEventDescr_v4_t to _v6_t as far as they are read here: v4 has the type in one byte, which is the first of
 * eight, and none of the calls of the interface. */
struct event {
    union {
        uint8_t type_v4;
        uint64_t type;
    };
    void *parent;
    int rank;
    union {
        struct {
            uint64_t sequence;
            const char *function;
            const void *send;
            void *receive;
            size_t count;
            int root;
            const char *type;
            uint8_t channels, warps;
            const char *algorithm, *protocol;
            void *group; /* of version 5 and later; before, it is the parent */
        } collective;
        struct {
            const char *function;
            void *buffer;
            const char *type;
            size_t count;
            int peer;
            uint8_t channels;
            void *group;
        } p2p;
        struct {
            uint8_t channel;
            uint64_t start_ns; /* of the GPU's clock */
        } kernel;
        struct {
            const char *function;
            size_t count;
            const char *type;
            int root;
            void *stream;
            uint8_t captured;
        } call;
        struct {
            const char *function;
            size_t count;
            const char *type;
            void *stream;
            uint8_t captured;
        } p2p_call;
    };
};

_Static_assert(offsetof(struct event_v3, collective.function) == 48, "ncclProfilerEventDescr_v3_t");
_Static_assert(offsetof(struct event_v3, collective.protocol) == 112, "ncclProfilerEventDescr_v3_t");
_Static_assert(offsetof(struct event, collective.sequence) == 24, "ncclProfilerEventDescr_v4_t");
_Static_assert(offsetof(struct event, collective.channels) == 80, "ncclProfilerEventDescr_v4_t");
_Static_assert(offsetof(struct event, collective.protocol) == 96, "ncclProfilerEventDescr_v4_t");
_Static_assert(offsetof(struct event_v3, p2p.peer) == 72, "ncclProfilerEventDescr_v3_t");
_Static_assert(offsetof(struct event, collective.group) == 104, "ncclProfilerEventDescr_v5_t");
_Static_assert(offsetof(struct event, p2p.peer) == 56, "ncclProfilerEventDescr_v4_t");
_Static_assert(offsetof(struct event, p2p.group) == 64, "ncclProfilerEventDescr_v5_t");
_Static_assert(offsetof(struct event, kernel.start_ns) == 32, "ncclProfilerEventDescr_v4_t");
_Static_assert(offsetof(struct event, call.captured) == 64, "ncclProfilerEventDescr_v5_t");
_Static_assert(offsetof(struct event, p2p_call.captured) == 56, "ncclProfilerEventDescr_v5_t");

/* ncclProfilerEventStateArgs_v4_t to _v6_t: of a kernel's end. */
struct event_state {
    uint64_t stop_ns;
};

/* ncclProfiler_v3_t to _v6_t. */
struct profiler_v3 {
    const char *name;
    int (*init)(void **context, int *mask);
    int (*start)(void *context, void **handle, const struct event_v3 *event);
    int (*stop)(void *handle);
    int (*record)(void *handle, int state, const struct event_state *values);
    int (*finalize)(void *context);
};

struct profiler_v4 {
    const char *name;
    int (*init)(void **context, int *mask, const char *communicator_name, uint64_t communicator, int nodes, int ranks,
                int rank, nccl_logger logger);
    int (*start)(void *context, void **handle, const struct event *event);
    int (*stop)(void *handle);
    int (*record)(void *handle, int state, const struct event_state *values);
    int (*finalize)(void *context);
};

struct profiler_v5 {
    const char *name;
    int (*init)(void **context, uint64_t communicator, int *mask, const char *communicator_name, int nodes, int ranks,
                int rank, nccl_logger logger);
    int (*start)(void *context, void **handle, const struct event *event);
    int (*stop)(void *handle);
    int (*record)(void *handle, int state, const struct event_state *values);
    int (*finalize)(void *context);
};

#define EXPORTED_PROFILER __attribute__((visibility("default"))) extern const

EXPORTED_PROFILER struct profiler_v3 ncclProfiler_v3;
EXPORTED_PROFILER struct profiler_v4 ncclProfiler_v4;
EXPORTED_PROFILER struct profiler_v5 ncclProfiler_v5;
EXPORTED_PROFILER struct profiler_v5 ncclProfiler_v6;

#endif
