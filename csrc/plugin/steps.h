/* A function of a size that is constant over intervals: which of many rows holds a size, as one short search. */
#ifndef PLUGIN_STEPS_H
#define PLUGIN_STEPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "search.h"
#include "table.h"

/* Sizes in an interval have a value; 0 is no value. */
struct piece {
    struct sizes bytes;
    uint32_t value;
};

/* Sizes from starts[i] up to the next start, or without end, have values[i]. starts[0] is 0. */
struct painted {
    size_t count;
    size_t *starts;
    uint32_t *values;
};

/* The same to be searched: values by the number of the interval. */
struct steps {
    struct search search;
    uint32_t *values;
};

/* The first piece that holds a size gives its value. False when there is no memory; what was to be made is empty
 * then. */
bool steps_paint(const struct piece *pieces, size_t count, struct painted *painted);
bool steps_build(const struct piece *pieces, size_t count, struct steps *steps);
void painted_free(struct painted *painted);
void steps_free(struct steps *steps);

static inline uint32_t steps_find(const struct steps *steps, size_t bytes) {
    return steps->values[search_find(&steps->search, bytes)];
}

#endif
