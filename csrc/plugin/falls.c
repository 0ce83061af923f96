#include "falls.h"

#include <stdlib.h>
#include <string.h>

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
static size_t merge(const struct painted *cells, size_t *starts, struct falls *falls) {
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
                 search_build(starts, merge(cells, starts, falls), &falls->search);
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
