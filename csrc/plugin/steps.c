#include "steps.h"

#include <stdlib.h>

static int compare_sizes(const void *left, const void *right) {
    size_t a = *(const size_t *)left, b = *(const size_t *)right;
    return (a > b) - (a < b);
}

static bool is_sorted(const size_t *sizes, size_t count) {
    for (size_t i = 1; i < count; i++) {
        if (sizes[i - 1] > sizes[i]) {
            return false;
        }
    }
    return true;
}

/* Every size at which the first matching piece may change: sorted, each once, 0 included. */
static size_t collect_starts(const struct piece *pieces, size_t count, size_t *starts) {
    size_t found = 0;
    starts[found++] = 0;
    for (size_t i = 0; i < count; i++) {
        starts[found++] = pieces[i].bytes.low;
        if (pieces[i].bytes.high != SIZE_MAX) {
            starts[found++] = pieces[i].bytes.high + 1;
        }
    }
    if (!is_sorted(starts, found)) { /* most tables are */
        qsort(starts, found, sizeof *starts, compare_sizes);
    }
    size_t kept = 1;
    for (size_t i = 1; i < found; i++) {
        if (starts[i] != starts[kept - 1]) {
            starts[kept++] = starts[i];
        }
    }
    return kept;
}

/* `skip[i]` leads from a taken step towards the next free one; paths are halved on the way, so that the whole
 * painting takes about as long as there are pieces, however much they overlap. */
static size_t next_free(size_t *skip, size_t step) {
    while (skip[step] != step) {
        skip[step] = skip[skip[step]];
        step = skip[step];
    }
    return step;
}

/* The last start at or below `bytes`, at `hint` or after it: pieces mostly come in the order of their sizes. */
static size_t position(const struct painted *painted, size_t hint, size_t bytes) {
    size_t low = hint < painted->count && painted->starts[hint] <= bytes ? hint : 0, high = painted->count;
    for (size_t width = 1; low + width < high; width *= 2) {
        if (painted->starts[low + width] > bytes) {
            high = low + width;
        }
    }
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (painted->starts[middle] <= bytes) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

/* The first that matches wins: each piece in its order takes the steps it holds that nobody has taken. */
static void paint(const struct piece *pieces, size_t count, struct painted *painted, size_t *skip) {
    for (size_t i = 0; i <= painted->count; i++) {
        skip[i] = i; /* the one past the end is never taken, so a search always ends */
    }
    for (size_t i = 0; i < painted->count; i++) {
        painted->values[i] = 0;
    }
    size_t last = 0;
    for (size_t i = 0; i < count; i++) {
        size_t first = position(painted, last, pieces[i].bytes.low);
        last = position(painted, first, pieces[i].bytes.high);
        for (size_t step = next_free(skip, first); step <= last; step = next_free(skip, step)) {
            painted->values[step] = pieces[i].value;
            skip[step] = step + 1;
        }
    }
}

/* Neighbours that say the same become one. */
static void merge(struct painted *painted) {
    size_t kept = 1;
    for (size_t i = 1; i < painted->count; i++) {
        if (painted->values[i] != painted->values[kept - 1]) {
            painted->starts[kept] = painted->starts[i];
            painted->values[kept] = painted->values[i];
            kept++;
        }
    }
    painted->count = kept;
}

bool steps_paint(const struct piece *pieces, size_t count, struct painted *painted) {
    size_t most = 2 * count + 1;
    size_t *skip = malloc((most + 1) * sizeof *skip);
    painted->starts = malloc(most * sizeof *painted->starts);
    painted->values = malloc(most * sizeof *painted->values);
    bool made = skip && painted->starts && painted->values;
    if (made) {
        painted->count = collect_starts(pieces, count, painted->starts);
        paint(pieces, count, painted, skip);
        merge(painted);
    } else {
        painted_free(painted);
    }
    free(skip);
    return made;
}

bool steps_build(const struct piece *pieces, size_t count, struct steps *steps) {
    struct painted painted;
    *steps = (struct steps){0};
    if (!steps_paint(pieces, count, &painted)) {
        return false;
    }
    bool built = search_build(painted.starts, painted.count, &steps->search);
    if (built) { /* memory is for the process's whole life: the parts that merging freed go back */
        uint32_t *values = realloc(painted.values, painted.count * sizeof *values);
        steps->values = values ? values : painted.values;
        painted.values = NULL;
    }
    painted_free(&painted);
    return built;
}

void painted_free(struct painted *painted) {
    free(painted->starts);
    free(painted->values);
    *painted = (struct painted){0};
}

void steps_free(struct steps *steps) {
    search_free(&steps->search);
    free(steps->values);
    *steps = (struct steps){0};
}
