#include "chain.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "chain_library.h"
#include "constants.h"
#include "log.h"

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
    struct constants before;
    if (opening->constants) {
        memcpy(&before, opening->constants, sizeof before);
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
            memcpy(opening->constants, &before, sizeof before);
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
