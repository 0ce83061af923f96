/* Which of many intervals side by side holds a size, as a short search: a tree whose nodes are a cache line each. */
#ifndef PLUGIN_STEPS_H
#define PLUGIN_STEPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "abi.h"
#include "table.h"

enum { SEARCH_WIDTH = 8, SEARCH_MOST_LEVELS = 11 }; /* 8^11 is above 2^32 */

/* The last sizes of the intervals, SIZE_MAX the last of all, in lines of SEARCH_WIDTH; on each level above, the last of
 * each line below. Lines that are not full end in SIZE_MAX. */
struct search {
    size_t *ends;                       /* of the levels, from the top one on */
    uint32_t first[SEARCH_MOST_LEVELS]; /* where each level begins there */
    uint32_t levels;
};

/* Intervals begin at `starts`, sorted, each once, the first of them 0. False when there is no memory; the search is
 * empty then. */
bool search_build(const size_t *starts, size_t count, struct search *search);
void search_free(struct search *search);

/* Which interval of a line holds `bytes`. Arithmetic, not branches: sizes come in no order a processor could predict. The
 * last end is not asked: the level above has said that it is not below. */
static inline size_t search_line(const size_t ends[SEARCH_WIDTH], size_t bytes) {
    size_t low = (size_t)(ends[0] < bytes) + (ends[1] < bytes) + (ends[2] < bytes) + (ends[3] < bytes);
    size_t high = (size_t)(ends[4] < bytes) + (ends[5] < bytes) + (ends[6] < bytes);
    return low + high;
}

/* The number of the interval that holds `bytes`. */
static inline size_t search_find(const struct search *search, size_t bytes) {
    size_t line = 0;
    for (uint32_t level = 0; level < search->levels; level++) {
        const size_t *ends = search->ends + search->first[level] + line * SEARCH_WIDTH;
        line = line * SEARCH_WIDTH + search_line(ends, bytes);
    }
    return line;
}

/* A function of a size that is constant over intervals: which of many rows holds a size, as one short search. */

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

/* Tables whose rows fall through: the first row of each algorithm and protocol at a size, so that however many rows
 * match, no more are tried than there are cells. */

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
