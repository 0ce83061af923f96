/* What NCCL looks up: one structure for each version of the interface, each of which hands its arguments through to the
 * tuner. */
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

#include "interface.h"
#include "log.h"
#include "tuner.h"

/* ncclTunerPlugin_v1: looked up by 2.19 and 2.20. Its calls carry no context, so one table serves all communicators of
 * the process, and which one a call is of is not known. */

/* What the first communicator of a generation has opened. */
struct opened {
    size_t ranks, nodes;
    struct tuner *tuner;
};

/* Communicators that overlap in time. There is no lock, so that a process may fork whatever its threads are at; a
 * generation is never freed, for a thread may still look at it when its last communicator is gone. */
struct generation {
    atomic_size_t communicators;     /* those included that init failed; 0: it is over */
    _Atomic(struct opened *) opened; /* NULL where no table could be opened yet: NCCL decides */
    struct generation *before;
};

static _Atomic(struct generation *) newest;

static bool is_over(struct generation *generation) {
    return !generation || atomic_load(&generation->communicators) == 0;
}

/* One more communicator, unless the generation is over. */
static bool join(struct generation *generation) {
    size_t count = generation ? atomic_load(&generation->communicators) : 0;
    while (count > 0) {
        if (atomic_compare_exchange_weak(&generation->communicators, &count, count + 1)) {
            return true;
        }
    }
    return false;
}

/* The generation that the new communicator is of; NULL when there is no memory. */
static struct generation *enter(void) {
    struct generation *generation = atomic_load(&newest);
    if (join(generation)) {
        return generation;
    }
    struct generation *mine = calloc(1, sizeof *mine);
    if (!mine) {
        return NULL;
    }
    atomic_init(&mine->communicators, 1);
    mine->before = generation;
    while (!atomic_compare_exchange_weak(&newest, &mine->before, mine)) {
        if (join(mine->before)) {
            generation = mine->before;
            free(mine);
            return generation;
        }
    }
    return mine;
}

static struct opening opening_of(size_t ranks, size_t nodes, nccl_logger logger) {
    return (struct opening){.shape = {ranks, nodes, .known = false}, .version = 1, .logger = logger};
}

/* Of threads that open at once one is the first; what the others have opened is the same, and goes. */
static int open_first(struct generation *generation, const struct opening *opening) {
    struct opened *opened = malloc(sizeof *opened), *first = NULL;
    if (!opened) {
        return RESULT_SUCCESS;
    }
    *opened = (struct opened){opening->shape.ranks, opening->shape.nodes, NULL};
    int result = tuner_open(opening, &opened->tuner);
    if (opened->tuner && atomic_compare_exchange_strong(&generation->opened, &first, opened)) {
        return result;
    }
    tuner_close(opened->tuner);
    free(opened);
    if (first) {
        tuner_join(first->tuner, opening);
    }
    return result;
}

/* With NCCL_TUNER_UNCHECKED the first communicator's rows serve all: the user says that all are alike. */
static void check_shape(struct generation *generation, size_t ranks, size_t nodes, nccl_logger logger) {
    const struct opened *first = atomic_load(&generation->opened);
    if (!first || !tuner_is_unchecked(first->tuner) || (ranks == first->ranks && nodes == first->nodes)) {
        return;
    }
    if (tuner_silence(first->tuner)) {
        log_warn(logger,
                 "a communicator of %zu ranks on %zu nodes beside one of %zu on %zu, and this NCCL does not say which "
                 "asks: every choice is %s own from here on",
                 ranks, nodes, first->ranks, first->nodes,
                 tuner_is_chained(first->tuner) ? "the other tuner's" : "NCCL's");
    }
}

static int init_v1(size_t ranks, size_t nodes, nccl_logger logger) {
    struct generation *generation = enter();
    if (!generation) {
        return RESULT_SUCCESS;
    }
    int result = RESULT_SUCCESS;
    struct opening opening = opening_of(ranks, nodes, logger);
    struct opened *first = atomic_load(&generation->opened);
    if (first) {
        tuner_join(first->tuner, &opening);
    } else {
        result = open_first(generation, &opening);
    }
    check_shape(generation, ranks, nodes, logger);
    return result;
}

/* The caller's communicator keeps the generation, and what that has opened, until it is gone itself. */
static struct tuner *deciding(void) {
    struct generation *generation = atomic_load_explicit(&newest, memory_order_acquire);
    struct opened *opened = generation ? atomic_load_explicit(&generation->opened, memory_order_acquire) : NULL;
    return opened ? opened->tuner : NULL;
}

static int get_coll_info_v1(int collective, size_t bytes, int collnet, int nvls, int pipelined, int *algorithm,
                            int *protocol, int *channels) {
    struct call call = {bytes, collective, pipelined, .collnet = collnet, .nvls = nvls};
    tuner_choose(deciding(), &call, algorithm, protocol, channels);
    return RESULT_SUCCESS;
}

static int destroy_v1(void) {
    struct generation *generation = atomic_load(&newest);
    if (is_over(generation)) {
        return RESULT_SUCCESS;
    }
    struct opened *opened = atomic_load(&generation->opened);
    if (opened) { /* nobody closes it before this communicator is gone */
        tuner_leave(opened->tuner);
    }
    if (atomic_fetch_sub(&generation->communicators, 1) != 1) {
        return RESULT_SUCCESS;
    }
    opened = atomic_exchange(&generation->opened, NULL);
    if (opened) {
        tuner_close(opened->tuner);
        free(opened);
    }
    return RESULT_SUCCESS;
}

const struct tuner *tuner_v1_deciding(void) {
    return deciding();
}

void tuner_v1_forget(void) {
    struct generation *generation = atomic_exchange(&newest, NULL);
    while (generation) {
        struct generation *before = generation->before;
        free(generation);
        generation = before;
    }
}

const struct plugin_v1 ncclTunerPlugin_v1 = {TUNER_NAME, init_v1, get_coll_info_v1, destroy_v1};

/* From version 2 on. */
static int close_context(void *context) {
    tuner_close(context);
    return RESULT_SUCCESS;
}

/* ncclTunerPlugin_v2: looked up by 2.21. */

static int init_v2(size_t ranks, size_t nodes, nccl_logger logger, void **context) {
    struct opening opening = {.shape = {ranks, nodes, .known = true}, .version = 2, .logger = logger};
    struct tuner *tuner;
    int result = tuner_open(&opening, &tuner);
    *context = tuner;
    return result;
}

static int get_coll_info_v2(void *context, int collective, size_t bytes, int collnet, int nvls, int pipelined,
                            int *algorithm, int *protocol, int *channels) {
    struct call call = {bytes, collective, pipelined, .collnet = collnet, .nvls = nvls};
    tuner_choose(context, &call, algorithm, protocol, channels);
    return RESULT_SUCCESS;
}

const struct plugin_v2 ncclTunerPlugin_v2 = {TUNER_NAME, init_v2, get_coll_info_v2, close_context};

/* ncclTunerPlugin_v3: looked up by 2.22 and 2.23, and v4 by 2.24 to 2.27, which also says whether buffers are
 * registered. */

static int open_v3(size_t ranks, size_t nodes, nccl_logger logger, void **context, int version) {
    struct opening opening = {
        .shape = {ranks, nodes, .known = true}, .version = version, .hands_cells = true, .logger = logger};
    struct tuner *tuner;
    int result = tuner_open(&opening, &tuner);
    *context = tuner;
    return result;
}

static int init_v3(size_t ranks, size_t nodes, nccl_logger logger, void **context) {
    return open_v3(ranks, nodes, logger, context, 3);
}

static int init_v4(size_t ranks, size_t nodes, nccl_logger logger, void **context) {
    return open_v3(ranks, nodes, logger, context, 4);
}

/* The costs are declared as pointers to rows, but what NCCL passes is one float[algorithms][protocols]. */
static int get_coll_info_v3(void *context, int collective, size_t bytes, int pipelined, float **costs, int algorithms,
                            int protocols, int *channels) {
    struct call call = {.bytes = bytes, .collective = collective, .pipelined = pipelined};
    tuner_decide(context, &call, (struct cost_cells){(float *)costs, algorithms, protocols}, channels);
    return RESULT_SUCCESS;
}

static int get_coll_info_v4(void *context, int collective, size_t bytes, int pipelined, float **costs, int algorithms,
                            int protocols, int registered, int *channels) {
    struct call call = {.bytes = bytes, .collective = collective, .pipelined = pipelined, .registered = registered};
    tuner_decide(context, &call, (struct cost_cells){(float *)costs, algorithms, protocols}, channels);
    return RESULT_SUCCESS;
}

const struct plugin_v3 ncclTunerPlugin_v3 = {TUNER_NAME, init_v3, get_coll_info_v3, close_context};

const struct plugin_v4 ncclTunerPlugin_v4 = {TUNER_NAME, init_v4, get_coll_info_v4, close_context};

/* ncclTunerPlugin_v5: looked up by 2.28 and 2.29, and v6 by 2.30 to 2.32.3, which also asks for chunk sizes where one
 * may be said. */

static int get_chunk_size(void *context, int collective, size_t bytes, int algorithm, int protocol, int channels,
                          size_t *chunk_bytes) {
    struct chunk_call call = {bytes, collective, algorithm, protocol, channels};
    tuner_chunk(context, &call, chunk_bytes);
    return RESULT_SUCCESS;
}

static int open_v5(struct opening *opening, double *constants, int generations, void **context) {
    opening->hands_cells = true;
    opening->constants = constants;
    opening->generations = generations;
    if (opening->domains && opening->domains->count > 0) {
        opening->shape.domains = (size_t)opening->domains->count;
    }
    struct tuner *tuner;
    int result = tuner_open(opening, &tuner);
    *context = tuner;
    return result;
}

static int init_v5(void **context, uint64_t communicator, size_t ranks, size_t nodes, nccl_logger logger,
                   struct domains *domains, struct constants *constants) {
    struct opening opening = {{ranks, nodes, .known = true}, .version = 5, .logger = logger};
    opening.communicator = communicator;
    opening.domains = domains;
    return open_v5(&opening, (double *)constants, GENERATIONS, context);
}

static int init_v6(void **context, uint64_t communicator, size_t ranks, size_t nodes, nccl_logger logger,
                   struct domains *domains, struct constants *constants) {
    struct opening opening = {{ranks, nodes, .known = true}, .version = 6, .logger = logger};
    opening.communicator = communicator;
    opening.domains = domains;
    int result = open_v5(&opening, (double *)constants, GENERATIONS, context);
    if (tuner_sets_chunks(*context)) {
        __atomic_store_n(&ncclTunerPlugin_v6.nccl.get_chunk_size, get_chunk_size, __ATOMIC_RELEASE);
    }
    return result;
}

/* ncclTunerPlugin_v7: looked up by 2.32.6 and later. */
static int init_v7(void **context, uint64_t communicator, size_t ranks, size_t nodes, nccl_logger logger,
                   struct domains *domains, struct constants_v7 *constants) {
    struct opening opening = {{ranks, nodes, .known = true}, .version = 7, .logger = logger};
    opening.communicator = communicator;
    opening.domains = domains;
    int result = open_v5(&opening, (double *)constants, MOST_GENERATIONS, context);
    if (tuner_sets_chunks(*context)) {
        __atomic_store_n(&ncclTunerPlugin_v7.get_chunk_size, get_chunk_size, __ATOMIC_RELEASE);
    }
    return result;
}

const struct plugin_v5 ncclTunerPlugin_v5 = {TUNER_NAME, init_v5, get_coll_info_v4, close_context};

struct plugin_v6_and_trial ncclTunerPlugin_v6 = {{{TUNER_NAME, init_v6, get_coll_info_v4, close_context}, NULL},
                                                 &tuner_trial};

struct plugin_v7 ncclTunerPlugin_v7 = {TUNER_NAME, init_v7, get_coll_info_v4, close_context, NULL};
