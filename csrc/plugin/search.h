/* Which of many intervals side by side holds a size, as a short search: a tree whose nodes are a cache line each. */
#ifndef PLUGIN_SEARCH_H
#define PLUGIN_SEARCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

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

/* The number of the interval that holds `bytes`. Arithmetic, not branches: sizes come in no order a processor could
 * predict. The last end of a line is not asked: the level above has said that it is not below. */
static inline size_t search_find(const struct search *search, size_t bytes) {
    size_t line = 0;
    for (uint32_t level = 0; level < search->levels; level++) {
        const size_t *ends = search->ends + search->first[level] + line * SEARCH_WIDTH;
        size_t low = (size_t)(ends[0] < bytes) + (ends[1] < bytes) + (ends[2] < bytes) + (ends[3] < bytes);
        size_t high = (size_t)(ends[4] < bytes) + (ends[5] < bytes) + (ends[6] < bytes);
        line = line * SEARCH_WIDTH + low + high;
    }
    return line;
}

#endif
