/* Tables whose rows fall through: the first row of each algorithm and protocol at a size, so that however many rows
 * match, no more are tried than there are cells. */
#ifndef PLUGIN_FALLS_H
#define PLUGIN_FALLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "abi.h"
#include "steps.h"

/* The cells, and one more for the rows of which it is not known whether they match: NCCL decides from there on. */
enum { FALLS_UNKNOWN = CELLS, FALLS_CELLS = CELLS + 1 };

/* A row of one class of calls; those of a later line have a higher `choice`. */
struct falling {
    struct sizes bytes;
    uint32_t choice;
    uint8_t cell;
};

/* Change by change, in the order of the sizes from which on they hold: cells[i] has choices[i] from there on. The
 * interval of a size has all changes up to number lasts[interval]. marks[i] are all cells before the changes from
 * FALLS_STRIDE * i on; 0 is no row. */
enum { FALLS_STRIDE = 16 };
struct falls {
    size_t count;
    struct search search;
    uint32_t *lasts;
    uint32_t *choices;
    uint8_t *cells;
    uint32_t (*marks)[FALLS_CELLS];
};

/* False when there is no memory; the falls are empty then. `pieces` is room for `count`. */
bool falls_build(const struct falling *rows, size_t count, struct piece *pieces, struct falls *falls);
void falls_free(struct falls *falls);

/* The choice of the first row that holds the size and whose cell has its bit in `runnable`, or 0. */
uint32_t falls_find(const struct falls *falls, size_t bytes, uint32_t runnable);

#endif
