#include "counters.h"

#include <stdlib.h>

void counters_start(const struct table *table, nccl_logger logger, struct counters *counters) {
    /* Never none, and not touched before a row decides: most pages stay the kernel's. */
    counters->choices = calloc(table->choice_count + 1, sizeof *counters->choices);
    counters->costs = calloc(table->cost_count + 1, sizeof *counters->costs);
    counters->sizes = calloc(COLLECTIVES, sizeof *counters->sizes);
    counters->logger = logger;
    if (!counters->choices || !counters->costs || !counters->sizes) {
        counters_free(counters);
    }
}

void counters_free(struct counters *counters) {
    free(counters->choices);
    free(counters->costs);
    free(counters->sizes);
    *counters = (struct counters){0};
}

void counters_leave(struct counters *counters, enum undecided why, int collective, size_t bytes) {
    if (!counters->sizes || collective < 0 || collective >= COLLECTIVES) {
        return;
    }
    int class = bytes ? 64 - __builtin_clzl(bytes) : 0;
    struct size_count *count = &counters->sizes[collective][why][class];
    size_t calls = counters_add(&count->calls, 1);
    counters_add(&count->bytes, bytes);
    if (calls == 0 || bytes < atomic_load_explicit(&count->least, memory_order_relaxed)) {
        atomic_store_explicit(&count->least, bytes, memory_order_relaxed);
    }
    if (bytes > atomic_load_explicit(&count->most, memory_order_relaxed)) {
        atomic_store_explicit(&count->most, bytes, memory_order_relaxed);
    }
}
