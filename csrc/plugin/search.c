#include "search.h"

#include <stdlib.h>

enum { LINE_BYTES = 64 };
_Static_assert(SEARCH_WIDTH * sizeof(size_t) == LINE_BYTES, "a line is a cache line");

static size_t lines_of(size_t count) {
    return (count + SEARCH_WIDTH - 1) / SEARCH_WIDTH;
}

/* Where the levels begin, the finest of `count` ends last; the ends of all levels together. */
static size_t arrange(size_t count, struct search *search) {
    size_t counts[SEARCH_MOST_LEVELS], total = 0;
    uint32_t levels = 0;
    do {
        counts[levels++] = count;
        count = lines_of(count);
    } while (count > 1);
    for (uint32_t level = 0; level < levels; level++) {
        search->first[level] = (uint32_t)total;
        total += lines_of(counts[levels - 1 - level]) * SEARCH_WIDTH;
    }
    search->levels = levels;
    return total;
}

bool search_build(const size_t *starts, size_t count, struct search *search) {
    size_t total = arrange(count, search);
    size_t *ends = search->ends = aligned_alloc(LINE_BYTES, total * sizeof *ends);
    if (!ends) {
        return false;
    }
    for (size_t i = 0; i < total; i++) {
        ends[i] = SIZE_MAX;
    }
    uint32_t level = search->levels - 1;
    for (size_t i = 0; i + 1 < count; i++) {
        ends[search->first[level] + i] = starts[i + 1] - 1;
    }
    for (; level > 0; level--) {
        const size_t *below = ends + search->first[level];
        size_t lines = (total - search->first[level]) / SEARCH_WIDTH;
        for (size_t line = 0; line < lines; line++) {
            ends[search->first[level - 1] + line] = below[(line + 1) * SEARCH_WIDTH - 1];
        }
        total = search->first[level];
    }
    return true;
}

void search_free(struct search *search) {
    free(search->ends);
    *search = (struct search){0};
}
