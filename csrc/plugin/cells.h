/* NCCL's cost table: one float for each algorithm and protocol, the smallest wins. */
#ifndef PLUGIN_CELLS_H
#define PLUGIN_CELLS_H

#include <stdbool.h>
#include <stdint.h>

#include "abi.h"
#include "table.h"

/* Slower than anything, and still below the hour from which on NCCL, through 2.30, takes no cell at all: it can be
 * taken where nothing else is left. */
#define CELLS_NEVER_US 3000000000.0f

/* Makes NCCL take this cell by raising those that would win against it to just above its time; the cell itself keeps
 * its time, so that ncclGroupSimulateEnd still reports it. False, and nothing written, when NCCL could not take it. */
bool cells_prefer(struct cost_cells cells, int algorithm, int protocol);

/* A bit for each algorithm * PROTOCOLS + protocol that NCCL could take, and those of Ring's. */
uint32_t cells_runnable(struct cost_cells cells);
#define CELLS_OF_RING (((1u << PROTOCOLS) - 1) << (ALGORITHM_RING * PROTOCOLS))

/* NCCL 2.19 to 2.21 hand over no cost table: a tuner names a choice, and NCCL runs it unchecked. Here is a cost table
 * for them, in which everything is ignored that may not run. */

/* `unchecked` adds what runs on some communicators: LL128 needs GPUs, links and adapters that NCCL does not name here,
 * CollNet more than the support that it does. */
void legacy_fill(float cells[CELLS], const struct call *call, const struct shape *shape, bool unchecked);

/* The cell that NCCL 2.22 would take, or -1 when all are ignored. */
int legacy_fastest(const float cells[CELLS]);

/* NCCL's guard of 8-bit sums (2.24 on): on more than 8 ranks it multiplies the times of Ring by 1024 for them, so that
 * Ring comes last. A tuner is not told the type, but it sees the times. */

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

/* What the fastest Ring takes at least where NCCL holds it back, and never elsewhere: on all machines of the catalogue, 2
 * to 1,024 nodes, NCCL 2.24.3 to 2.32.3, the guard makes of at least 0.6 us a step 650 or more, and without it 12 us are
 * the most where Ring is 64 times slower than the others. */
static inline float guard_least_us(const struct shape *shape) {
    return 128.0f * 2.0f * (float)shape->ranks;
}

/* Whether NCCL guards a call, by its times alone: the fastest Ring takes `least_us` or more, and 64 times as long as the
 * fastest of the others. */
bool guard_shows(struct cost_cells cells, float least_us);

/* Notes a cell whose time NCCL gave as `own_us` and the table as `row_us`. */
void guard_note(struct guard *guard, int algorithm, int protocol, float own_us, float row_us);

/* Where NCCL guards this call: the rows' times of Ring times 1024 as well. */
void guard_apply(const struct guard *guard, struct cost_cells cells);

#endif
