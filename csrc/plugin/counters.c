#include "counters.h"

#include <stdlib.h>

#include "log.h"
#include "table.h"

size_t counters_bytes(const struct table *table) {
    return sizeof(struct call_totals) + (2 * table->choice_count + table->cost_count) * sizeof(atomic_size_t) +
           COLLECTIVES * sizeof(struct size_count[UNDECIDED][SIZE_CLASSES]);
}

bool counters_start(const struct table *table, nccl_logger logger, void *memory, struct counters *counters) {
    *counters = (struct counters){.choice_count = table->choice_count};
    counters->logger = log_prints(LEVEL_INFO) ? logger : NULL;
    if (!memory) { /* not touched before a row decides: most pages stay the kernel's */
        memory = counters->own = calloc(1, counters_bytes(table));
    }
    if (!memory) {
        return false;
    }
    counters->totals = memory;
    counters->decided = (atomic_size_t *)(counters->totals + 1);
    counters->unavailable = counters->decided + table->choice_count;
    counters->costs = counters->unavailable + table->choice_count;
    counters->sizes = (struct size_count(*)[UNDECIDED][SIZE_CLASSES])(counters->costs + table->cost_count);
    return true;
}

void counters_free(struct counters *counters) {
    free(counters->own);
    *counters = (struct counters){0};
}

static size_t value_of(const atomic_size_t *counter) {
    return atomic_load_explicit(counter, memory_order_relaxed);
}

static size_t sum_sizes(const struct counters *counters, enum undecided why) {
    size_t sum = 0;
    for (int collective = 0; collective < COLLECTIVES; collective++) {
        for (int class = 0; class < SIZE_CLASSES; class ++) {
            sum += value_of(&counters->sizes[collective][why][class].calls);
        }
    }
    return sum;
}

struct call_counts counters_sum(const struct counters *counters) {
    struct call_counts counts = {.costed = value_of(&counters->totals->costed),
                                 .unavailable = sum_sizes(counters, UNDECIDED_UNAVAILABLE)};
    for (size_t choice = 0; choice < counters->choice_count; choice++) {
        counts.decided += value_of(&counters->decided[choice]);
    }
    counts.calls = counts.decided + counts.unavailable + sum_sizes(counters, UNDECIDED_NO_ROW) +
                   value_of(&counters->totals->costed_alone) + value_of(&counters->totals->untuned);
    return counts;
}

void counters_leave(struct counters *counters, enum undecided why, const struct call *call) {
    if (call->collective < 0 || call->collective >= COLLECTIVES) {
        counters_add(&counters->totals->untuned, 1);
        return;
    }
    int class = call->bytes ? 64 - __builtin_clzl(call->bytes) : 0;
    struct size_count *count = &counters->sizes[call->collective][why][class];
    size_t calls = counters_add(&count->calls, 1);
    counters_add(&count->bytes, call->bytes);
    if (calls == 0 || call->bytes < value_of(&count->least)) {
        atomic_store_explicit(&count->least, call->bytes, memory_order_relaxed);
    }
    if (call->bytes > value_of(&count->most)) {
        atomic_store_explicit(&count->most, call->bytes, memory_order_relaxed);
    }
}

/* The one thing that a call does beside its work, once for each row: apart, so that a test can hold the rest of a call
 * to no allocation, lock or system call. */

__attribute__((cold, noinline)) void counters_say_first(const struct counters *counters, const struct choice *choice,
                                                        unsigned line, const struct call *call) {
    if (!counters->logger) {
        return;
    }
    log_asked_info(counters->logger, "line %u decides for the first time here: %s of %zu bytes by %s/%s", line,
                   collective_name(call->collective), call->bytes, algorithm_name(choice->algorithm),
                   protocol_name(choice->protocol));
}
