/* What became of one communicator's calls: by row, and by size where no row decided. */
#ifndef PLUGIN_COUNTERS_H
#define PLUGIN_COUNTERS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "abi.h"
#include "table.h"

/* Calls of sizes from a power of two up to the next. */
struct size_count {
    atomic_size_t calls, bytes, least, most;
};

enum undecided { UNDECIDED_NO_ROW, UNDECIDED_UNAVAILABLE, UNDECIDED };
enum { SIZE_CLASSES = 65 };

struct call_totals {
    atomic_size_t costed, costed_alone, untuned; /* with a row's times, with nothing else, of no tuned collective */
};

struct counters {
    size_t choice_count;
    atomic_size_t *decided;     /* by choice of the table */
    atomic_size_t *unavailable; /* by choice: of the row that begins with it NCCL could run nothing */
    atomic_size_t *costs;       /* calls to which each of the table's rows of costs gave a time */
    struct size_count (*sizes)[UNDECIDED][SIZE_CLASSES]; /* by collective; not of calls with a row's times alone */
    struct call_totals *totals;
    void *own;          /* the memory of all of these, where it is to be freed */
    nccl_logger logger; /* NULL where a row's first decision is not said */
};

/* All calls together. A call that another row decided than the first that holds it is not unavailable. */
struct call_counts {
    size_t calls, decided, costed, unavailable;
};

/* How many bytes the counts of a table take, in one piece: totals, decided, unavailable, costs, sizes. */
size_t counters_bytes(const struct table *table);

/* Counts in `memory`, which is zero, of counters_bytes; NULL: in memory of their own. False when there is none; there is
 * nothing to free then. */
bool counters_start(const struct table *table, nccl_logger logger, void *memory, struct counters *counters);
void counters_free(struct counters *counters);
struct call_counts counters_sum(const struct counters *counters);

/* NCCL makes the calls of one communicator one after the other, so a plain load and store counts exactly and costs a
 * tenth of a locked addition; were they ever to overlap, a count would be low and nothing else wrong. */
static inline size_t counters_add(atomic_size_t *counter, size_t more) {
#ifdef COUNTERS_COUNT_NOTHING /* what calls take without: benchmarks/plugin.py */
    (void)counter, (void)more;
    return 1;
#else
    size_t value = atomic_load_explicit(counter, memory_order_relaxed);
    atomic_store_explicit(counter, value + more, memory_order_relaxed);
    return value;
#endif
}

/* A call that no row decided. */
void counters_leave(struct counters *counters, enum undecided why, const struct call *call);

/* Says at INFO that a row decides, the first time. */
void counters_say_first(const struct counters *counters, const struct choice *choice, unsigned line,
                        const struct call *call);

#endif
