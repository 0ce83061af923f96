#include "counters.h"

#include <stdlib.h>

#include "log.h"
#include "table.h"

bool counters_start(const struct table *table, nccl_logger logger, struct counters *counters) {
    /* Never none, and not touched before a row decides: most pages stay the kernel's. */
    *counters = (struct counters){.choice_count = table->choice_count, .logger = logger};
    counters->decided = calloc(table->choice_count + 1, sizeof *counters->decided);
    counters->unavailable = calloc(table->choice_count + 1, sizeof *counters->unavailable);
    counters->costs = calloc(table->cost_count + 1, sizeof *counters->costs);
    counters->sizes = calloc(COLLECTIVES, sizeof *counters->sizes);
    if (counters->decided && counters->unavailable && counters->costs && counters->sizes) {
        return true;
    }
    counters_free(counters);
    return false;
}

void counters_free(struct counters *counters) {
    free(counters->decided);
    free(counters->unavailable);
    free(counters->costs);
    free(counters->sizes);
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
    struct call_counts counts = {.costed = value_of(&counters->costed),
                                 .unavailable = sum_sizes(counters, UNDECIDED_UNAVAILABLE)};
    for (size_t choice = 0; choice < counters->choice_count; choice++) {
        counts.decided += value_of(&counters->decided[choice]);
    }
    counts.calls = counts.decided + counts.unavailable + sum_sizes(counters, UNDECIDED_NO_ROW) +
                   value_of(&counters->costed_alone) + value_of(&counters->untuned);
    return counts;
}

void counters_leave(struct counters *counters, enum undecided why, const struct call *call) {
    if (call->collective < 0 || call->collective >= COLLECTIVES) {
        counters_add(&counters->untuned, 1);
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
    log_info(counters->logger, "line %u decides for the first time here: %s of %zu bytes by %s/%s", line,
             collective_name(call->collective), call->bytes, algorithm_name(choice->algorithm),
             protocol_name(choice->protocol));
}
