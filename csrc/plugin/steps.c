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

/* The first that matches wins: each piece in its order takes the steps it holds that nobody has taken. */
static void paint(const struct piece *pieces, size_t count, struct steps *steps, size_t *skip) {
    for (size_t i = 0; i <= steps->count; i++) {
        skip[i] = i; /* the one past the end is never taken, so a search always ends */
    }
    for (size_t i = 0; i < steps->count; i++) {
        steps->values[i] = 0;
    }
    for (size_t i = 0; i < count; i++) {
        size_t last = steps_position(steps->starts, steps->count, pieces[i].bytes.high);
        size_t step = next_free(skip, steps_position(steps->starts, steps->count, pieces[i].bytes.low));
        while (step <= last) {
            steps->values[step] = pieces[i].value;
            skip[step] = step + 1;
            step = next_free(skip, step);
        }
    }
}

/* Neighbours that say the same become one. */
static void merge(struct steps *steps) {
    size_t kept = 1;
    for (size_t i = 1; i < steps->count; i++) {
        if (steps->values[i] != steps->values[kept - 1]) {
            steps->starts[kept] = steps->starts[i];
            steps->values[kept] = steps->values[i];
            kept++;
        }
    }
    steps->count = kept;
}

/* Memory is for the process's whole life: the parts that merging freed go back. */
static void trim(struct steps *steps) {
    size_t *starts = realloc(steps->starts, steps->count * sizeof *starts);
    uint32_t *values = realloc(steps->values, steps->count * sizeof *values);
    steps->starts = starts ? starts : steps->starts;
    steps->values = values ? values : steps->values;
}

bool steps_build(const struct piece *pieces, size_t count, struct steps *steps) {
    size_t most = 2 * count + 1;
    size_t *skip = malloc((most + 1) * sizeof *skip);
    steps->starts = malloc(most * sizeof *steps->starts);
    steps->values = malloc(most * sizeof *steps->values);
    bool built = skip && steps->starts && steps->values;
    if (built) {
        steps->count = collect_starts(pieces, count, steps->starts);
        paint(pieces, count, steps, skip);
        merge(steps);
        trim(steps);
    } else {
        steps_free(steps);
    }
    free(skip);
    return built;
}

void steps_free(struct steps *steps) {
    free(steps->starts);
    free(steps->values);
    *steps = (struct steps){0};
}
