#include "falls.h"

#include <stdlib.h>
#include <string.h>

_Static_assert(FALLS_CELLS <= 32, "a bit for each cell");

static bool build_cells(const struct falling *rows, size_t count, struct piece *pieces, struct steps *steps) {
    for (int cell = 0; cell < FALLS_CELLS; cell++) {
        size_t found = 0;
        for (size_t i = 0; i < count; i++) {
            if (rows[i].cell == cell) {
                pieces[found++] = (struct piece){rows[i].bytes, rows[i].choice};
            }
        }
        if (found > 0 && !steps_build(pieces, found, &steps[cell])) {
            return false;
        }
    }
    return true;
}

/* The cell that changes next, or -1. */
static int next_cell(const struct steps *steps, const size_t *used) {
    int next = -1;
    for (int cell = 0; cell < FALLS_CELLS; cell++) {
        if (used[cell] < steps[cell].count &&
            (next < 0 || steps[cell].starts[used[cell]] < steps[next].starts[used[next]])) {
            next = cell;
        }
    }
    return next;
}

/* The changes of all cells in the order of sizes. */
static void merge(const struct steps *steps, struct falls *falls) {
    size_t used[FALLS_CELLS] = {0};
    uint32_t now[FALLS_CELLS] = {0};
    for (size_t i = 0; i < falls->count; i++) {
        int cell = next_cell(steps, used);
        if (i % FALLS_STRIDE == 0) {
            memcpy(falls->marks[i / FALLS_STRIDE], now, sizeof now);
        }
        falls->starts[i] = steps[cell].starts[used[cell]];
        falls->choices[i] = now[cell] = steps[cell].values[used[cell]];
        falls->cells[i] = (uint8_t)cell;
        used[cell]++;
    }
}

bool falls_build(const struct falling *rows, size_t count, struct piece *pieces, struct falls *falls) {
    struct steps steps[FALLS_CELLS] = {{0}};
    *falls = (struct falls){0};
    bool built = build_cells(rows, count, pieces, steps);
    for (int cell = 0; cell < FALLS_CELLS; cell++) {
        falls->count += steps[cell].count;
    }
    if (built && falls->count > 0) {
        falls->starts = malloc(falls->count * sizeof *falls->starts);
        falls->choices = malloc(falls->count * sizeof *falls->choices);
        falls->cells = malloc(falls->count * sizeof *falls->cells);
        falls->marks = malloc((falls->count / FALLS_STRIDE + 1) * sizeof *falls->marks);
        built = falls->starts && falls->choices && falls->cells && falls->marks;
    }
    if (built) {
        merge(steps, falls);
    } else {
        falls_free(falls);
    }
    for (int cell = 0; cell < FALLS_CELLS; cell++) {
        steps_free(&steps[cell]);
    }
    return built;
}

void falls_free(struct falls *falls) {
    free(falls->starts);
    free(falls->choices);
    free(falls->cells);
    free(falls->marks);
    *falls = (struct falls){0};
}

uint32_t falls_find(const struct falls *falls, size_t bytes, uint32_t runnable) {
    if (falls->count == 0) {
        return 0;
    }
    size_t last = steps_position(falls->starts, falls->count, bytes), mark = last / FALLS_STRIDE;
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
