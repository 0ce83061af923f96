#include "steps.h"

#include <stdlib.h>
#include <string.h>

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

_Static_assert(FALLS_CELLS <= 32, "a bit for each cell");

static bool build_cells(const struct falling *rows, size_t count, struct piece *pieces, struct painted *cells) {
    for (int cell = 0; cell < FALLS_CELLS; cell++) {
        size_t found = 0;
        for (size_t i = 0; i < count; i++) {
            if (rows[i].cell == cell) {
                pieces[found++] = (struct piece){rows[i].bytes, rows[i].choice};
            }
        }
        if (found > 0 && !steps_paint(pieces, found, &cells[cell])) {
            return false;
        }
    }
    return true;
}

/* The cell that changes next, or -1. */
static int next_cell(const struct painted *cells, const size_t *used) {
    int next = -1;
    for (int cell = 0; cell < FALLS_CELLS; cell++) {
        if (used[cell] < cells[cell].count &&
            (next < 0 || cells[cell].starts[used[cell]] < cells[next].starts[used[next]])) {
            next = cell;
        }
    }
    return next;
}

/* The changes of all cells in the order of sizes; `starts` becomes those of the intervals, whose number is returned. */
static size_t merge_changes(const struct painted *cells, size_t *starts, struct falls *falls) {
    size_t used[FALLS_CELLS] = {0}, intervals = 0;
    uint32_t now[FALLS_CELLS] = {0};
    for (size_t i = 0; i < falls->count; i++) {
        int cell = next_cell(cells, used);
        size_t start = cells[cell].starts[used[cell]];
        if (i % FALLS_STRIDE == 0) {
            memcpy(falls->marks[i / FALLS_STRIDE], now, sizeof now);
        }
        if (intervals == 0 || starts[intervals - 1] != start) {
            starts[intervals++] = start;
        }
        falls->lasts[intervals - 1] = (uint32_t)i;
        falls->choices[i] = now[cell] = cells[cell].values[used[cell]];
        falls->cells[i] = (uint8_t)cell;
        used[cell]++;
    }
    return intervals;
}

static bool build_changes(const struct painted *cells, struct falls *falls) {
    size_t *starts = malloc(falls->count * sizeof *starts);
    falls->lasts = malloc(falls->count * sizeof *falls->lasts);
    falls->choices = malloc(falls->count * sizeof *falls->choices);
    falls->cells = malloc(falls->count * sizeof *falls->cells);
    falls->marks = malloc((falls->count / FALLS_STRIDE + 1) * sizeof *falls->marks);
    bool built = starts && falls->lasts && falls->choices && falls->cells && falls->marks &&
                 search_build(starts, merge_changes(cells, starts, falls), &falls->search);
    free(starts);
    return built;
}

bool falls_build(const struct falling *rows, size_t count, struct piece *pieces, struct falls *falls) {
    struct painted cells[FALLS_CELLS] = {{0}};
    *falls = (struct falls){0};
    bool built = build_cells(rows, count, pieces, cells);
    for (int cell = 0; cell < FALLS_CELLS; cell++) {
        falls->count += cells[cell].count;
    }
    if (built && falls->count > 0) {
        built = build_changes(cells, falls);
    }
    if (!built) {
        falls_free(falls);
    }
    for (int cell = 0; cell < FALLS_CELLS; cell++) {
        painted_free(&cells[cell]);
    }
    return built;
}

void falls_free(struct falls *falls) {
    search_free(&falls->search);
    free(falls->lasts);
    free(falls->choices);
    free(falls->cells);
    free(falls->marks);
    *falls = (struct falls){0};
}

uint32_t falls_find(const struct falls *falls, size_t bytes, uint32_t runnable) {
    if (falls->count == 0) {
        return 0;
    }
    size_t last = falls->lasts[search_find(&falls->search, bytes)], mark = last / FALLS_STRIDE;
    uint32_t now[FALLS_CELLS];
    memcpy(now, falls->marks[mark], sizeof now);
    for (size_t i = mark * FALLS_STRIDE; i <= last; i++) {
        now[falls->cells[i]] = falls->choices[i];
    }
    runnable |= 1u << FALLS_UNKNOWN;
    uint32_t first = UINT32_MAX; /* one less than the choice, so that "no row" is the highest */
    for (int cell = 0; cell < FALLS_CELLS; cell++) {
        uint32_t here = runnable >> cell & 1 ? now[cell] - 1 : UINT32_MAX;
        first = here < first ? here : first;
    }
    return first == now[FALLS_UNKNOWN] - 1 ? 0 : first + 1;
}
