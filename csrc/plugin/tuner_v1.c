/* ncclTunerPlugin_v1: looked up by 2.19 and 2.20. Its calls carry no context, so one table serves all communicators of
 * the process, and which one a call is of is not known. */
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

#include "interface.h"
#include "log.h"
#include "tuner.h"
#include "tuner_v1.h"

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

static int init(size_t ranks, size_t nodes, nccl_logger logger) {
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

static int get_coll_info(int collective, size_t bytes, int collnet, int nvls, int pipelined, int *algorithm,
                         int *protocol, int *channels) {
    struct call call = {bytes, collective, pipelined, .collnet = collnet, .nvls = nvls};
    tuner_choose(deciding(), &call, algorithm, protocol, channels);
    return RESULT_SUCCESS;
}

static int destroy(void) {
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

const struct plugin_v1 ncclTunerPlugin_v1 = {TUNER_NAME, init, get_coll_info, destroy};
