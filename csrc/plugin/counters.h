/* What became of one communicator's calls: by row, and by size where no row decided. */
#ifndef PLUGIN_COUNTERS_H
#define PLUGIN_COUNTERS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "abi.h"
#include "call.h"
#include "table.h"

struct choice_count {
    atomic_size_t decided;
    atomic_size_t unavailable; /* of the row that begins with this choice: NCCL can run nothing of it, or of others */
};

/* Calls of sizes from a power of two up to the next. */
struct size_count {
    atomic_size_t calls, bytes, least, most;
};

enum undecided { UNDECIDED_NO_ROW, UNDECIDED_UNAVAILABLE, UNDECIDED };
enum { SIZE_CLASSES = 65 };

struct counters {
    struct choice_count *choices; /* of the table's; NULL: nothing is counted */
    atomic_size_t *costs;         /* calls to which each of the table's rows of costs gave a time */
    struct size_count (*sizes)[UNDECIDED][SIZE_CLASSES]; /* by collective */
    nccl_logger logger;
};

/* Without memory nothing is counted. */
void counters_start(const struct table *table, nccl_logger logger, struct counters *counters);
void counters_free(struct counters *counters);

/* NCCL makes the calls of one communicator one after the other, so a plain load and store counts exactly and costs a
 * tenth of a locked addition; were they ever to overlap, a count would be low and nothing else wrong. */
static inline size_t counters_add(atomic_size_t *counter, size_t more) {
    size_t value = atomic_load_explicit(counter, memory_order_relaxed);
    atomic_store_explicit(counter, value + more, memory_order_relaxed);
    return value;
}

/* A call that no row decided. */
void counters_leave(struct counters *counters, enum undecided why, int collective, size_t bytes);

/* Says at INFO that a row decides, the first time. */
void counters_say_first(const struct counters *counters, const struct choice *choice, unsigned line, int collective,
                        size_t bytes);

#endif
