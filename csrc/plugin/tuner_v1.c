/* ncclTunerPlugin_v1: looked up by 2.19 and 2.20. Its calls carry no context, so one table serves all communicators of
 * the process, and which one a call is of is not known. */
#include <stdatomic.h>

#include "interface.h"
#include "lock.h"
#include "log.h"
#include "tuner.h"
#include "tuner_v1.h"

/* What the communicators of the process share. `opening` guards everything but `deciding`, which calls only read. */
static struct {
    atomic_flag opening;
    size_t communicators;
    struct shape shape; /* the first one's */
    struct tuner *tuner;
    _Atomic(struct tuner *) deciding; /* NULL: NCCL decides */
} shared = {.opening = ATOMIC_FLAG_INIT};

static int open_first(size_t ranks, size_t nodes, nccl_logger logger) {
    struct opening opening = {.shape = {ranks, nodes, .known = false}, .logger = logger};
    int result = tuner_open(&opening, &shared.tuner);
    shared.shape = opening.shape;
    atomic_store_explicit(&shared.deciding, shared.tuner, memory_order_release);
    return result;
}

/* With NCCL_TUNER_UNCHECKED the first communicator's rows serve all: the user says that all are alike. */
static void check_shape(size_t ranks, size_t nodes, nccl_logger logger) {
    bool same = ranks == shared.shape.ranks && nodes == shared.shape.nodes;
    if (tuner_is_unchecked(shared.tuner) && !same &&
        atomic_exchange_explicit(&shared.deciding, NULL, memory_order_acq_rel)) {
        log_warn(logger,
                 "a communicator of %zu ranks on %zu nodes beside one of %zu on %zu, and this NCCL does not say which "
                 "asks: every choice is NCCL's own from here on",
                 ranks, nodes, shared.shape.ranks, shared.shape.nodes);
    }
}

static int init(size_t ranks, size_t nodes, nccl_logger logger) {
    int result = RESULT_SUCCESS;
    lock_take(&shared.opening);
    if (!shared.tuner) {
        result = open_first(ranks, nodes, logger);
    } else {
        check_shape(ranks, nodes, logger);
    }
    shared.communicators++;
    lock_release(&shared.opening);
    return result;
}

static int get_coll_info(int collective, size_t bytes, int collnet, int nvls, int pipelined, int *algorithm,
                         int *protocol, int *channels) {
    struct tuner *tuner = atomic_load_explicit(&shared.deciding, memory_order_acquire);
    /* 2.19 starts as many channels as it is asked for, whether or not they were set up. */
    tuner_choose(tuner, collective, bytes, pipelined, collnet, nvls, algorithm, protocol,
                 tuner_is_unchecked(tuner) ? channels : NULL);
    return RESULT_SUCCESS;
}

static int destroy(void) {
    lock_take(&shared.opening);
    if (shared.communicators > 0 && --shared.communicators == 0) { /* those included that init failed */
        atomic_store_explicit(&shared.deciding, NULL, memory_order_release);
        tuner_close(shared.tuner);
        shared.tuner = NULL;
    }
    lock_release(&shared.opening);
    return RESULT_SUCCESS;
}

const struct tuner *tuner_v1_deciding(void) {
    return atomic_load_explicit(&shared.deciding, memory_order_acquire);
}

const struct plugin_v1 ncclTunerPlugin_v1 = {TUNER_NAME, init, get_coll_info, destroy};
