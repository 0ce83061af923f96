/* A tuner plugin that only writes down what it is asked, on top of another plugin or of none.
 *
 * NCCL takes the newest interface it knows that a plugin offers. The recorder offers them all, and asks the wrapped
 * plugin through the newest one that is not newer than the one NCCL chose: what NCCL itself would have done with it.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "disguise.h"
#include "export.h"
#include "oracle.h"
#include "record.h"

enum { SUCCESS = 0, SYSTEM_ERROR = 2 };
enum { OLDEST = 2, NEWEST = 6 };

/* v2: no table, the plugin names its choice. NCCL 2.21 */
struct tuner_v2 {
    const char *name;
    status (*init)(size_t ranks, size_t nodes, void *log, void **context);
    status (*ask)(void *context, int collective, size_t bytes, int coll_net, int nvls, int pipe_ops, int *algorithm,
                  int *protocol, int *channels);
    status (*end)(void *context);
};

/* v3: the cost table. NCCL 2.22 */
struct tuner_v3 {
    const char *name;
    status (*init)(size_t ranks, size_t nodes, void *log, void **context);
    status (*ask)(void *context, int collective, size_t bytes, int pipe_ops, float *table_us, int algorithms,
                  int protocols, int *channels);
    status (*end)(void *context);
};

/* v4: whether the buffers are registered. NCCL 2.24 */
struct tuner_v4 {
    const char *name;
    status (*init)(size_t ranks, size_t nodes, void *log, void **context);
    status (*ask)(void *context, int collective, size_t bytes, int pipe_ops, float *table_us, int algorithms,
                  int protocols, int registered, int *channels);
    status (*end)(void *context);
};

/* v5: NVLink domains and the model's constants at init. NCCL 2.28 */
struct tuner_v5 {
    const char *name;
    status (*init)(void **context, uint64_t id, size_t ranks, size_t nodes, void *log, void *domains, void *constants);
    status (*ask)(void *context, int collective, size_t bytes, int pipe_ops, float *table_us, int algorithms,
                  int protocols, int registered, int *channels);
    status (*end)(void *context);
};

/* v6: chunk sizes. NCCL 2.30 */
struct tuner_v6 {
    struct tuner_v5 base;
    status (*chunk)(void *context, int collective, size_t bytes, int algorithm, int protocol, int channels,
                    size_t *chunk_bytes);
};

static void *wrapped_library;
static int wrapped_version; /* the interface in use; 0: none, or none that this NCCL would take */

SIM_EXPORT const char *sim_wrap_tuner(const char *path) {
    wrapped_library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    return wrapped_library == NULL ? dlerror() : NULL;
}

SIM_EXPORT int sim_disguise_tuner(int64_t seconds, int elsewhere) {
    return sim_disguise(wrapped_library, seconds, elsewhere);
}

SIM_EXPORT int sim_wrapped_version(void) {
    return wrapped_version;
}

/* The context of the recorder: which interface of the wrapped plugin is in use, and its own context. */
struct context {
    int version; /* 0: nothing is wrapped */
    void *plugin;
    void *inner;
};

static void find_plugin(struct context *context, int newest) {
    for (int version = newest; wrapped_library != NULL && version >= OLDEST; version--) {
        char symbol[32];
        snprintf(symbol, sizeof symbol, "ncclTunerPlugin_v%d", version);
        context->plugin = dlsym(wrapped_library, symbol);
        if (context->plugin != NULL) {
            context->version = wrapped_version = version;
            return;
        }
    }
}

static status start(void **out, int newest, uint64_t id, size_t ranks, size_t nodes, void *log, void *domains,
                    void *constants) {
    struct context *context = calloc(1, sizeof *context);
    if (context == NULL) {
        return SYSTEM_ERROR;
    }
    *out = context;
    find_plugin(context, newest);
    if (context->version >= 5) {
        return ((struct tuner_v5 *)context->plugin)->init(&context->inner, id, ranks, nodes, log, domains, constants);
    }
    if (context->version > 0) {
        return ((struct tuner_v3 *)context->plugin)->init(ranks, nodes, log, &context->inner);
    }
    return SUCCESS;
}

static status ask_wrapped(struct context *context, int collective, size_t bytes, int pipe_ops, float *table_us,
                          int algorithms, int protocols, int registered, int *channels) {
    if (context->version >= 4) {
        return ((struct tuner_v4 *)context->plugin)
            ->ask(context->inner, collective, bytes, pipe_ops, table_us, algorithms, protocols, registered, channels);
    }
    if (context->version == 3) {
        return ((struct tuner_v3 *)context->plugin)
            ->ask(context->inner, collective, bytes, pipe_ops, table_us, algorithms, protocols, channels);
    }
    if (context->version == 2) {
        int algorithm = -1, protocol = -1;
        /* What it asks for as NCCL derives it: src/plugin/tuner/tuner_v2.cc, v2.28.9-1. */
        enum { COLL_NET_CHAIN = 3, NVLS = 4, NVLS_TREE = 5, SIMPLE = 2 };
        int coll_net = table_us[COLL_NET_CHAIN * protocols + SIMPLE] != -1.0f;
        int nvls = table_us[NVLS * protocols + SIMPLE] != -1.0f || table_us[NVLS_TREE * protocols + SIMPLE] != -1.0f;
        status result =
            ((struct tuner_v2 *)context->plugin)
                ->ask(context->inner, collective, bytes, coll_net, nvls, pipe_ops, &algorithm, &protocol, channels);
        /* As NCCL reads a choice without a table: that cell costs nothing, unless it is ignored. */
        if (algorithm >= 0 && algorithm < algorithms && protocol >= 0 && protocol < protocols &&
            table_us[algorithm * protocols + protocol] != -1.0f) {
            table_us[algorithm * protocols + protocol] = 0.0f;
        }
        return result;
    }
    return SUCCESS;
}

static uint64_t nanoseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* The table between two margins, where a plugin that writes beside it is seen, and harms nobody. */
enum { MARGIN_CELLS = 64, MARGIN_BYTE = 0xa5 };

static status ask_in_margins(struct context *context, struct sim_question *question, float *table_us, int *channels) {
    int cells = question->algorithms * question->protocols;
    size_t table_bytes = (size_t)cells * sizeof *table_us;
    float room[MARGIN_CELLS + SIM_MAX_CELLS + MARGIN_CELLS];
    float *inside = cells <= SIM_MAX_CELLS ? room + MARGIN_CELLS : table_us;
    memset(room, MARGIN_BYTE, sizeof room);
    if (inside != table_us) {
        memcpy(inside, table_us, table_bytes);
    }
    uint64_t begun = nanoseconds();
    question->result =
        ask_wrapped(context, question->collective, question->bytes, question->pipe_ops, inside, question->algorithms,
                    question->protocols, question->registered < 0 ? 0 : question->registered, channels);
    question->nanoseconds = nanoseconds() - begun;
    if (inside != table_us) {
        memcpy(table_us, inside, table_bytes);
        memset(inside, MARGIN_BYTE, table_bytes);
        const unsigned char *byte = (const unsigned char *)room;
        for (size_t i = 0; i < sizeof room; i++) {
            question->outside |= byte[i] != MARGIN_BYTE;
        }
    }
    return question->result;
}

static status ask(void *opaque, int collective, size_t bytes, int pipe_ops, float *table_us, int algorithms,
                  int protocols, int registered, int *channels) {
    struct sim_question *question = sim_record_question();
    int cells = algorithms * protocols;
    size_t table_bytes = (size_t)(cells <= SIM_MAX_CELLS ? cells : 0) * sizeof *table_us;
    question->collective = collective;
    question->bytes = bytes;
    question->pipe_ops = pipe_ops;
    question->algorithms = algorithms;
    question->protocols = protocols;
    question->registered = registered;
    memcpy(question->before_us, table_us, table_bytes);
    status result = ask_in_margins(opaque, question, table_us, channels);
    memcpy(question->after_us, table_us, table_bytes);
    question->channels = *channels;
    return result;
}

static status end(void *opaque) {
    struct context *context = opaque;
    status result = SUCCESS;
    if (context->version >= 5) {
        result = ((struct tuner_v5 *)context->plugin)->end(context->inner);
    } else if (context->version > 0) {
        result = ((struct tuner_v3 *)context->plugin)->end(context->inner);
    }
    free(context);
    return result;
}

static status init_v3(size_t ranks, size_t nodes, void *log, void **context) {
    return start(context, 3, 0, ranks, nodes, log, NULL, NULL);
}

static status init_v4(size_t ranks, size_t nodes, void *log, void **context) {
    return start(context, 4, 0, ranks, nodes, log, NULL, NULL);
}

static status init_v5(void **context, uint64_t id, size_t ranks, size_t nodes, void *log, void *domains,
                      void *constants) {
    return start(context, 5, id, ranks, nodes, log, domains, constants);
}

static status ask_v3(void *context, int collective, size_t bytes, int pipe_ops, float *table_us, int algorithms,
                     int protocols, int *channels) {
    return ask(context, collective, bytes, pipe_ops, table_us, algorithms, protocols, -1, channels);
}

static status chunk_v6(void *opaque, int collective, size_t bytes, int algorithm, int protocol, int channels,
                       size_t *chunk_bytes) {
    struct context *context = opaque;
    struct tuner_v6 *plugin = context->plugin;
    return plugin->chunk(context->inner, collective, bytes, algorithm, protocol, channels, chunk_bytes);
}

static status init_v6(void **out, uint64_t id, size_t ranks, size_t nodes, void *log, void *domains, void *constants);

static const char name[] = "nccl-tuner recorder";

/* Whether a tuner that NCCL uses, of any interface, is the recorder: all begin with the name. */
SIM_EXPORT int sim_is_recorder(const char *const *tuner) {
    return *tuner == name;
}

SIM_EXPORT struct tuner_v6 ncclTunerPlugin_v6 = {{name, init_v6, ask, end}, NULL};

/* Asked for a chunk size only where the wrapped plugin would be: NCCL cuts what is answered, even its own size, to the
 * size of a buffer's step. */
static status init_v6(void **out, uint64_t id, size_t ranks, size_t nodes, void *log, void *domains, void *constants) {
    status result = start(out, NEWEST, id, ranks, nodes, log, domains, constants);
    const struct context *context = *out;
    if (context != NULL && context->version == NEWEST && ((struct tuner_v6 *)context->plugin)->chunk != NULL) {
        __atomic_store_n(&ncclTunerPlugin_v6.chunk, chunk_v6, __ATOMIC_RELEASE);
    }
    return result;
}
SIM_EXPORT struct tuner_v5 ncclTunerPlugin_v5 = {name, init_v5, ask, end};
SIM_EXPORT struct tuner_v4 ncclTunerPlugin_v4 = {name, init_v4, ask, end};
SIM_EXPORT struct tuner_v3 ncclTunerPlugin_v3 = {name, init_v3, ask_v3, end};
