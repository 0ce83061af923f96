#include "libdl.h" /* before the headers of the C library */

#include "chain.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "abi.h"
#include "hardware.h"
#include "interface.h"
#include "log.h"
#include "settings.h"

/* Calls of a tuner of another library, through whichever version of the interface it has. */

enum { OLDEST_VERSION = 1, NEWEST_VERSION = 7 };

struct next_tuner {
    const void *plugin; /* struct plugin_v1 to v7 */
    int version;
    void *context; /* of one communicator; none in version 1 */
};

/* Which library's tuner comes after this plugin: the one that is named, and else the one that NCCL would have used. */

struct next_library {
    void *handle;
    const char *path; /* belongs to the library */
    struct next_tuner tuner;
};

/* What differs from version to version. All begin with name, init and get_coll_info. */
struct adapter {
    int (*init)(struct next_tuner *next, const struct opening *opening);
    int (*decide)(const struct next_tuner *next, const struct call *call, struct cost_cells cells, int *channels);
    int (*choose)(const struct next_tuner *next, const struct call *call, int *algorithm, int *protocol, int *channels);
    int (*close)(const struct next_tuner *next);
};

static int next_choose(const struct next_tuner *next, const struct call *call, int *algorithm, int *protocol,
                       int *channels);

static bool has(struct cost_cells cells, int algorithm, int protocol) {
    return algorithm >= 0 && algorithm < cells.algorithms && protocol >= 0 && protocol < cells.protocols &&
           cells.us[algorithm * cells.protocols + protocol] != IGNORED_US;
}

/* Version 1: 2.19 and 2.20 */

static int init_v1(struct next_tuner *next, const struct opening *opening) {
    const struct plugin_v1 *plugin = next->plugin;
    return plugin->init(opening->shape.ranks, opening->shape.nodes, opening->logger);
}

static int choose_v1(const struct next_tuner *next, const struct call *call, int *algorithm, int *protocol,
                     int *channels) {
    const struct plugin_v1 *plugin = next->plugin;
    return plugin->get_coll_info(call->collective, call->bytes, call->collnet, call->nvls, call->pipelined, algorithm,
                                 protocol, channels);
}

static int close_v1(const struct next_tuner *next) {
    const struct plugin_v1 *plugin = next->plugin;
    return plugin->destroy ? plugin->destroy() : RESULT_SUCCESS;
}

/* Version 2: 2.21 */

static int init_v2(struct next_tuner *next, const struct opening *opening) {
    const struct plugin_v2 *plugin = next->plugin;
    return plugin->init(opening->shape.ranks, opening->shape.nodes, opening->logger, &next->context);
}

static int choose_v2(const struct next_tuner *next, const struct call *call, int *algorithm, int *protocol,
                     int *channels) {
    const struct plugin_v2 *plugin = next->plugin;
    return plugin->get_coll_info(next->context, call->collective, call->bytes, call->collnet, call->nvls,
                                 call->pipelined, algorithm, protocol, channels);
}

static int close_v2(const struct next_tuner *next) {
    const struct plugin_v2 *plugin = next->plugin;
    return plugin->destroy ? plugin->destroy(next->context) : RESULT_SUCCESS;
}

/* What the communicator supports is read from the cost table, and the cell that is named costs nothing: as NCCL itself
 * does with a plugin of version 2 (src/plugin/tuner/tuner_v2.cc, v2.28.9-1). */
static int decide_by_name(const struct next_tuner *next, const struct call *call, struct cost_cells cells,
                          int *channels) {
    struct call named = *call;
    named.collnet = has(cells, ALGORITHM_COLLNET_CHAIN, PROTOCOL_SIMPLE);
    named.nvls = has(cells, ALGORITHM_NVLS, PROTOCOL_SIMPLE) || has(cells, ALGORITHM_NVLS_TREE, PROTOCOL_SIMPLE);
    int algorithm = -1, protocol = -1;
    int result = next_choose(next, &named, &algorithm, &protocol, channels);
    if (result == RESULT_SUCCESS && has(cells, algorithm, protocol)) {
        cells.us[algorithm * cells.protocols + protocol] = 0.0f;
    }
    return result;
}

/* Version 3: 2.22 and 2.23. Its init and destroy are those of version 2. */

static int decide_v3(const struct next_tuner *next, const struct call *call, struct cost_cells cells, int *channels) {
    const struct plugin_v3 *plugin = next->plugin;
    return plugin->get_coll_info(next->context, call->collective, call->bytes, call->pipelined, (float **)cells.us,
                                 cells.algorithms, cells.protocols, channels);
}

/* Version 4: 2.24 to 2.27. Its call is that of all later versions. */

static int decide_v4(const struct next_tuner *next, const struct call *call, struct cost_cells cells, int *channels) {
    const struct plugin_v4 *plugin = next->plugin;
    return plugin->get_coll_info(next->context, call->collective, call->bytes, call->pipelined, (float **)cells.us,
                                 cells.algorithms, cells.protocols, call->registered, channels);
}

/* Version 5: 2.28 and 2.29; version 6, of 2.30 to 2.32.3, begins the same. From constants of more generations it gets
 * those that it knows, as NCCL itself does it (src/plugin/tuner/tuner_v6.cc, 2.32.6). */

static int init_v5(struct next_tuner *next, const struct opening *opening) {
    const struct plugin_v5 *plugin = next->plugin;
    struct constants known, *constants = opening->constants ? &known : NULL;
    double *numbers = (double *)&known;
    for (int i = 0; constants && i < CONSTANTS; i++) {
        numbers[i] = opening->constants[constant_among(opening->generations, i)];
    }
    int result = plugin->init(&next->context, opening->communicator, opening->shape.ranks, opening->shape.nodes,
                              opening->logger, opening->domains, constants);
    for (int i = 0; constants && i < CONSTANTS; i++) {
        opening->constants[constant_among(opening->generations, i)] = numbers[i];
    }
    return result;
}

/* Version 7: 2.32.6 and later, which alone hand over constants of five generations. */

static int init_v7(struct next_tuner *next, const struct opening *opening) {
    const struct plugin_v7 *plugin = next->plugin;
    return plugin->init(&next->context, opening->communicator, opening->shape.ranks, opening->shape.nodes,
                        opening->logger, opening->domains, (struct constants_v7 *)opening->constants);
}

static const struct adapter adapters[NEWEST_VERSION + 1] = {
    [1] = {init_v1, decide_by_name, choose_v1, close_v1}, [2] = {init_v2, decide_by_name, choose_v2, close_v2},
    [3] = {init_v2, decide_v3, NULL, close_v2},           [4] = {init_v2, decide_v4, NULL, close_v2},
    [5] = {init_v5, decide_v4, NULL, close_v2},           [6] = {init_v5, decide_v4, NULL, close_v2},
    [7] = {init_v7, decide_v4, NULL, close_v2},
};

_Static_assert(offsetof(struct plugin_v2, init) == offsetof(struct plugin_v4, init), "read as version 2");
_Static_assert(offsetof(struct plugin_v2, destroy) == offsetof(struct plugin_v4, destroy), "read as version 2");
_Static_assert(offsetof(struct plugin_v2, destroy) == offsetof(struct plugin_v5, finalize), "read as version 2");
_Static_assert(offsetof(struct plugin_v4, get_coll_info) == offsetof(struct plugin_v5, get_coll_info),
               "read as version 4");
_Static_assert(offsetof(struct plugin_v2, destroy) == offsetof(struct plugin_v7, finalize), "read as version 2");
_Static_assert(offsetof(struct plugin_v4, get_coll_info) == offsetof(struct plugin_v7, get_coll_info),
               "read as version 4");
_Static_assert(offsetof(struct plugin_v6, get_chunk_size) == offsetof(struct plugin_v7, get_chunk_size),
               "read as version 6");

/* Whether all functions are there that NCCL calls unasked. */
static bool next_is_whole(const struct next_tuner *next) {
    const struct plugin_v4 *plugin = next->plugin;
    return plugin->init && plugin->get_coll_info;
}

static const char *next_name(const struct next_tuner *next) {
    const struct plugin_v4 *plugin = next->plugin;
    return plugin->name ? plugin->name : "";
}

/* Each returns what the tuner does, a ncclResult_t. */
static int next_init(struct next_tuner *next, const struct opening *opening) {
    return adapters[next->version].init(next, opening);
}

static int next_close(const struct next_tuner *next) {
    return adapters[next->version].close(next);
}

/* Where NCCL hands over its cost table. Versions 1 and 2 name a choice, which becomes that cell at no cost. */
static int next_decide(const struct next_tuner *next, const struct call *call, struct cost_cells cells, int *channels) {
    return adapters[next->version].decide(next, call, cells, channels);
}

/* Where it does not: versions 1 and 2 only. */
static int next_choose(const struct next_tuner *next, const struct call *call, int *algorithm, int *protocol,
                       int *channels) {
    return adapters[next->version].choose(next, call, algorithm, protocol, channels);
}

/* Whether it says chunk sizes: from version 6 on, and there it need not. */
static bool next_sets_chunks(const struct next_tuner *next) {
    return next->version >= 6 && ((const struct plugin_v6 *)next->plugin)->get_chunk_size;
}

/* Where it does; a success without effect elsewhere. */
static int next_chunk(const struct next_tuner *next, const struct chunk_call *call, size_t *chunk_bytes) {
    const struct plugin_v6 *plugin = next->plugin;
    if (!next_sets_chunks(next)) {
        return RESULT_SUCCESS;
    }
    return plugin->get_chunk_size(next->context, call->collective, call->bytes, call->algorithm, call->protocol,
                                  call->channels, chunk_bytes);
}

/* What NCCL has room for. */
struct library_name {
    char text[256];
};

/* NCCL's own word for the program itself; it takes the beginnings of the word too, which is not imitated. */
static void *open_library(const char *name, int flags) {
    bool is_program = strcasecmp(name, "STATIC_PLUGIN") == 0;
    return dlopen(is_program ? NULL : name, RTLD_NOW | RTLD_LOCAL | flags);
}

/* As NCCL 2.28 and later: the name as it is, then as a part of a file's name. */
static void *open_by_name(const char *name, const char *prefix, int flags) {
    void *handle = open_library(name, flags);
    if (!handle && !strchr(name, '/')) {
        struct library_name part;
        int length = snprintf(part.text, sizeof part.text, "%s-%s.so", prefix, name);
        handle = length < (int)sizeof part.text ? open_library(part.text, flags) : NULL;
    }
    return handle;
}

static const void *exported(void *handle, int version) {
    char symbol[32];
    snprintf(symbol, sizeof symbol, "ncclTunerPlugin_v%d", version);
    return dlsym(handle, symbol);
}

/* By name, not by address: this file may have been copied, and a tuner that the process has loaded for all its libraries
 * would stand under this plugin's own symbols. */
static bool is_this_plugin(const struct next_tuner *tuner) {
    return strcmp(next_name(tuner), TUNER_NAME) == 0;
}

static struct next_tuner newest_of(void *handle, int oldest, int newest) {
    struct next_tuner tuner = {.version = newest};
    while (tuner.version >= oldest && !(tuner.plugin = exported(handle, tuner.version))) {
        tuner.version--;
    }
    return tuner;
}

enum taken { TAKEN, NO_TUNER, THIS_PLUGIN };

static enum taken take(void *handle, int oldest, int newest, struct next_library *found) {
    *found = (struct next_library){.handle = handle, .tuner = newest_of(handle, oldest, newest)};
    if (!found->tuner.plugin || !next_is_whole(&found->tuner)) {
        return NO_TUNER;
    }
    Dl_info where = {0};
    found->path = dladdr(found->tuner.plugin, &where) && where.dli_fname ? where.dli_fname : "";
    return is_this_plugin(&found->tuner) ? THIS_PLUGIN : TAKEN;
}

static bool find_named(const char *name, int newest, nccl_logger logger, struct next_library *found) {
    void *handle = open_by_name(name, "libnccl-tuner", 0);
    if (!handle) {
        const char *why = dlerror();
        log_warn(logger, NEXT_VARIABLE "=%.256s cannot be loaded (%.256s): no other tuner is asked", name,
                 why ? why : "no reason is given");
        return false;
    }
    switch (take(handle, OLDEST_VERSION, newest, found)) {
    case TAKEN:
        return true;
    case THIS_PLUGIN:
        log_info(logger, NEXT_VARIABLE "=%.256s is this plugin itself: no other tuner is asked", name);
        break;
    case NO_TUNER:
        log_info(logger,
                 NEXT_VARIABLE "=%.256s has no ncclTunerPlugin_v%d, which this NCCL looks up, and none before: no "
                               "other tuner is asked",
                 name, newest);
    }
    dlclose(handle);
    return false;
}

static void *open_last_loaded(const char *names) {
    void *last = NULL;
    while (*names) {
        struct library_name name;
        size_t length = strcspn(names, ",");
        snprintf(name.text, sizeof name.text, "%.*s", (int)(length < sizeof name.text ? length : 0), names);
        void *handle = name.text[0] ? open_by_name(name.text, "libnccl-net", RTLD_NOLOAD) : NULL;
        if (handle) {
            if (last) {
                dlclose(last);
            }
            last = handle;
        }
        names += length + (names[length] == ',');
    }
    return last;
}

/* From 2.21 to 2.25 NCCL's tuner part itself opens the library, whether or not it was good for a network. */
static bool nccl_opens_it_again(int newest, nccl_logger logger) {
    enum { FIRST_THAT_DOES_NOT = 22600, FIRST_OF_VERSION_4 = 22400 };
    int version = newest == 4 ? nccl_version(logger) : 0;
    return newest < 4 || (version >= FIRST_OF_VERSION_4 && version < FIRST_THAT_DOES_NOT);
}

/* The library of the network plugin, which NCCL has loaded when it comes to tuners. Since 2.27 several may be named,
 * and the one that was loaded last is asked for a tuner (ncclGetNetPluginLib, src/plugin/plugin_open.cc, v2.28.9-1). */
static void *open_network(int newest, nccl_logger logger) {
    const char *names = getenv("NCCL_NET_PLUGIN");
    if (!names || !names[0]) {
        names = "libnccl-net.so";
    }
    return nccl_opens_it_again(newest, logger) ? open_by_name(names, "libnccl-net", 0) : open_last_loaded(names);
}

static bool has_any(void *handle) {
    return newest_of(handle, OLDEST_VERSION, NEWEST_VERSION + 3).plugin; /* those to come included */
}

/* What NCCL does where NCCL_TUNER_PLUGIN is not set: openTunerPluginLib, src/misc/tuner.cc, v2.21.5-1 to v2.25.1-1, and
 * ncclTunerPluginLoad, src/plugin/tuner.cc, v2.26.2-1 to v2.30.7-1. 2.19 and 2.20 look nowhere, and no NCCL takes
 * version 1 later. */
static bool find_default(int newest, nccl_logger logger, struct next_library *found) {
    if (newest < 2) {
        return false;
    }
    for (int network = 0; network < 2; network++) {
        void *handle = network ? open_network(newest, logger) : open_library("libnccl-tuner.so", 0);
        if (!handle) {
            continue;
        }
        enum taken taken = take(handle, 2, newest, found);
        if (taken == TAKEN) {
            return true;
        }
        bool stop = taken == NO_TUNER;
        if (stop && has_any(handle)) {
            log_info(logger,
                     "the tuner in the library of NCCL's %s plugin has none of ncclTunerPlugin_v2 to v%d: it "
                     "is not asked",
                     network ? "network" : "tuner", newest);
        }
        dlclose(handle);
        if (stop) {
            break;
        }
    }
    return false;
}

/* `name` is NCCL_TUNER_NEXT, or NULL; `newest` the version that NCCL calls this plugin by. False where there is none,
 * and where a library was named or is a tuner's the log says why. */
static bool chain_find(const char *name, int newest, nccl_logger logger, struct next_library *found) {
    if (!libdl_is_there()) {
        if (name) {
            log_warn(logger, "this process loads no libraries (it has no libdl): no other tuner is asked");
        }
        return false;
    }
    if (!name) {
        return find_default(newest, logger, found);
    }
    return strcasecmp(name, "none") != 0 && find_named(name, newest, logger, found);
}

static void chain_let_go(const struct next_library *library) {
    dlclose(library->handle);
}

struct chain {
    struct next_library library;
    nccl_logger logger;
    atomic_size_t communicators;        /* that its init took; one but in version 1 */
    atomic_bool passed_by[COLLECTIVES]; /* the last call of the collective was the table's */
    atomic_size_t failures;             /* of calls */
};

/* The threads that are within another tuner's init, by an address of their own (a thread-local variable would need the
 * dynamic linker as a library). A tuner that asks this plugin would be asked by it again, and so on. */
enum { MOST_THREADS = 64 };
static _Atomic(const void *) starting[MOST_THREADS];

static bool is_starting(void) {
    for (int i = 0; i < MOST_THREADS; i++) {
        if (atomic_load_explicit(&starting[i], memory_order_relaxed) == &errno) {
            return true;
        }
    }
    return false;
}

/* MOST_THREADS where all are taken: this one goes on without. */
static int note_start(void) {
    for (int i = 0; i < MOST_THREADS; i++) {
        const void *nobody = NULL;
        if (atomic_compare_exchange_strong(&starting[i], &nobody, &errno)) {
            return i;
        }
    }
    return MOST_THREADS;
}

static int init_next(struct chain *chain, const struct opening *opening) {
    struct constants_v7 before;
    size_t bytes = opening->generations == MOST_GENERATIONS ? sizeof before : sizeof(struct constants);
    if (opening->constants) {
        memcpy(&before, opening->constants, bytes);
    }
    int noted = note_start();
    int result = next_init(&chain->library.tuner, opening);
    if (noted < MOST_THREADS) {
        atomic_store(&starting[noted], NULL);
    }
    const char *name = next_name(&chain->library.tuner);
    if (result == RESULT_SUCCESS) {
        atomic_fetch_add(&chain->communicators, 1);
        log_info(chain->logger,
                 "the tuner \"%.64s\" is asked where the table has no row (ncclTunerPlugin_v%d of %.256s)", name,
                 chain->library.tuner.version, chain->library.path);
    } else {
        if (opening->constants) {
            memcpy(opening->constants, &before, bytes);
        }
        log_warn(chain->logger, "the tuner \"%.64s\" of %.256s failed to start (%d): it is not asked", name,
                 chain->library.path, result);
    }
    return result;
}

static void close_next(struct chain *chain) {
    int result = next_close(&chain->library.tuner);
    if (result != RESULT_SUCCESS) {
        log_warn(chain->logger, "the tuner \"%.64s\" failed to end (%d)", next_name(&chain->library.tuner), result);
    }
}

/* False where none is left that its init took. */
static bool take_one(struct chain *chain) {
    size_t count = atomic_load(&chain->communicators);
    while (count > 0) {
        if (atomic_compare_exchange_weak(&chain->communicators, &count, count - 1)) {
            return true;
        }
    }
    return false;
}

struct chain *chain_open(const char *name, const struct opening *opening) {
    struct next_library library;
    if (is_starting() || !chain_find(name, opening->version, opening->logger, &library)) {
        return NULL;
    }
    struct chain *chain = calloc(1, sizeof *chain);
    if (chain) {
        chain->library = library;
        chain->logger = opening->logger;
        if (init_next(chain, opening) == RESULT_SUCCESS) {
            return chain;
        }
        free(chain);
    } else {
        log_warn(opening->logger, "out of memory: no other tuner is asked");
    }
    chain_let_go(&library);
    return NULL;
}

void chain_close(struct chain *chain) {
    if (!chain) {
        return;
    }
    size_t failures = atomic_load_explicit(&chain->failures, memory_order_relaxed);
    if (failures > 0) {
        log_info(chain->logger, "%zu calls of the tuner \"%.64s\" failed", failures, next_name(&chain->library.tuner));
    }
    while (take_one(chain)) {
        close_next(chain);
    }
    chain_let_go(&chain->library);
    free(chain);
}

void chain_join(struct chain *chain, const struct opening *opening) {
    if (chain) {
        init_next(chain, opening);
    }
}

void chain_leave(struct chain *chain) {
    if (chain && take_one(chain)) {
        close_next(chain);
    }
}

/* Here nothing is formatted: a call reaches no function of the C library that may wait or allocate. */
static void fail(struct chain *chain) {
    if (atomic_fetch_add_explicit(&chain->failures, 1, memory_order_relaxed) == 0) {
        log_warn_text(chain->logger,
                      LOG_NAME "a call of the tuner that is asked where the table has no row failed: NCCL's own choice "
                               "stays where it does");
    }
}

static void note(struct chain *chain, int collective, bool passed_by) {
    if (collective >= 0 && collective < COLLECTIVES) {
        atomic_store_explicit(&chain->passed_by[collective], passed_by, memory_order_relaxed);
    }
}

void chain_decide(struct chain *chain, const struct call *call, struct cost_cells cells, int *channels) {
    enum { MOST_CELLS = 128 };
    if (!chain) {
        return;
    }
    float before[MOST_CELLS];
    int count = cells.algorithms * cells.protocols, channels_before = *channels;
    size_t bytes = count > 0 && count <= MOST_CELLS ? (size_t)count * sizeof *before : 0;
    memcpy(before, cells.us, bytes);
    note(chain, call->collective, false);
    if (next_decide(&chain->library.tuner, call, cells, channels) != RESULT_SUCCESS) {
        memcpy(cells.us, before, bytes);
        *channels = channels_before;
        fail(chain);
    }
}

void chain_choose(struct chain *chain, const struct call *call, int *algorithm, int *protocol, int *channels) {
    if (!chain) {
        return;
    }
    int algorithm_before = *algorithm, protocol_before = *protocol, channels_before = *channels;
    if (next_choose(&chain->library.tuner, call, algorithm, protocol, channels) != RESULT_SUCCESS) {
        *algorithm = algorithm_before;
        *protocol = protocol_before;
        *channels = channels_before;
        fail(chain);
    }
}

void chain_pass_by(struct chain *chain, int collective) {
    if (chain) {
        note(chain, collective, true);
    }
}

bool chain_sets_chunks(const struct chain *chain) {
    return chain && next_sets_chunks(&chain->library.tuner);
}

void chain_chunk(struct chain *chain, const struct chunk_call *call, size_t *chunk_bytes) {
    if (!chain) {
        return;
    }
    bool of_table = call->collective >= 0 && call->collective < COLLECTIVES &&
                    atomic_load_explicit(&chain->passed_by[call->collective], memory_order_relaxed);
    size_t before = *chunk_bytes;
    if (!of_table && next_chunk(&chain->library.tuner, call, chunk_bytes) != RESULT_SUCCESS) {
        *chunk_bytes = before;
        fail(chain);
    }
}
