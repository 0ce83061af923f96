/* NCCL's guard of 8-bit sums (2.24 on): on more than 8 ranks it multiplies the times of Ring by 1024 for them, so that
 * Ring comes last. A tuner is not told the type, but it sees the times. */
#ifndef PLUGIN_GUARD_H
#define PLUGIN_GUARD_H

#include <stdbool.h>
#include <stdint.h>

#include "abi.h"
#include "call.h"
#include "shape.h"

/* What NCCL's times are of the table's: over Ring's cells the least, over the others the most. */
struct guard {
    float ring, others;
    uint32_t timed, rows; /* a bit for each cell with a row that gives a time, and with any row */
};

/* Whether NCCL may guard anything here; it hands over its times or not. */
bool guard_is_for(const struct shape *shape, bool hands_cells);

/* Whether the collective adds anything up. */
static inline bool guard_is_of(int collective) {
    return collective == COLLECTIVE_REDUCE || collective == COLLECTIVE_REDUCE_SCATTER ||
           collective == COLLECTIVE_ALL_REDUCE;
}

/* Notes a cell whose time NCCL gave as `own_us` and the table as `row_us`. */
void guard_note(struct guard *guard, int algorithm, int protocol, float own_us, float row_us);

/* Where NCCL guards this call: the rows' times of Ring times 1024 as well. */
void guard_apply(const struct guard *guard, struct cost_cells cells);

#endif
