/* A function of a size that is constant over intervals: which of many rows holds a size, as one short search. */
#ifndef PLUGIN_STEPS_H
#define PLUGIN_STEPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "table.h"

/* Sizes in an interval have a value; 0 is no value. */
struct piece {
    struct sizes bytes;
    uint32_t value;
};

/* Sizes from starts[i] up to the next start, or without end, have values[i]. starts[0] is 0. */
struct steps {
    size_t count;
    size_t *starts;
    uint32_t *values;
};

/* The first piece that holds a size gives its value. False when there is no memory; the steps are empty then. */
bool steps_build(const struct piece *pieces, size_t count, struct steps *steps);
void steps_free(struct steps *steps);

/* The last start at or below `bytes`. Arithmetic, not a branch: sizes come in no order a processor could predict. */
static inline size_t steps_position(const size_t *starts, size_t count, size_t bytes) {
    const size_t *base = starts;
    while (count > 1) {
        size_t half = count / 2;
        base += half & (0 - (size_t)(base[half] <= bytes));
        count -= half;
    }
    return (size_t)(base - starts);
}

static inline uint32_t steps_find(const struct steps *steps, size_t bytes) {
    return steps->values[steps_position(steps->starts, steps->count, bytes)];
}

#endif
