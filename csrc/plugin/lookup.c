#include "lookup.h"

#include <stdlib.h>
#include <string.h>

/* A row of this communicator. */
struct placed {
    struct falling row; /* rows of a later line have a higher choice */
    struct counts pipelined;
    uint32_t choice; /* the row's, or 0 where the communicator is not known */
    int8_t registered;
};

struct placed_rows {
    struct placed *rows;
    size_t count;
};

/* Room for the rows of one plane. */
struct room {
    struct piece *pieces;
    struct falling *falling; /* NULL where rows do not fall through */
};

/* NCCL caps a plugin's channels at what the communicator has, except in these algorithms: there it starts as many as
 * it is asked for (scheduleCollTasksToPlan, src/enqueue.cc, v2.22.3-1 on), and a channel that was never set up is a
 * crash. NCCL does not say how many there are, so its own number stays. */
static bool channels_are_unchecked(const struct choice *choice, const struct shape *shape) {
    return choice->algorithm == ALGORITHM_COLLNET_DIRECT || choice->algorithm == ALGORITHM_COLLNET_CHAIN ||
           (choice->algorithm == ALGORITHM_NVLS && (shape->nodes > 1 || !shape->known));
}

static void place(const struct table *table, int collective, const struct shape *shape, struct placed_rows *placed,
                  struct lookup *lookup) {
    placed->count = 0;
    for (size_t i = 0; i < table->decision_count; i++) {
        const struct decision *row = &table->decisions[i];
        const struct choice *choice = &table->choices[row->choice];
        struct placed here = {
            .pipelined = row->when.pipelined, .choice = row->choice, .registered = row->when.registered};
        here.row.choice = row->choice;
        here.row.cell = (uint8_t)(choice->algorithm * PROTOCOLS + choice->protocol);
        enum match match = row->when.collective == collective ? shape_match(shape, &row->when) : MATCH_NO;
        if (match == MATCH_NO || !shape_bytes(shape, &row->when, &here.row.bytes)) {
            continue;
        }
        if (match == MATCH_UNKNOWN) {
            here.choice = 0;
            here.row.cell = FALLS_UNKNOWN;
            lookup->shapeless++;
        } else {
            lookup->rows++;
        }
        placed->rows[placed->count++] = here;
    }
}

static int compare_ends(const void *left, const void *right) {
    uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
    return (a > b) - (a < b);
}

static void add_end(struct function *function, uint32_t end) {
    for (uint32_t i = 0; i < function->end_count; i++) {
        if (function->ends[i] == end) {
            return;
        }
    }
    function->ends[function->end_count++] = end; /* there are no more than the table's MOST_PIPELINED_ENDS */
}

static void divide(const struct placed_rows *placed, struct function *function) {
    bool by_registered = false;
    for (size_t i = 0; i < placed->count; i++) {
        struct counts pipelined = placed->rows[i].pipelined;
        if (pipelined.low > 0) {
            add_end(function, pipelined.low);
        }
        if (pipelined.high < UINT32_MAX) {
            add_end(function, pipelined.high + 1);
        }
        by_registered |= placed->rows[i].registered >= 0;
    }
    qsort(function->ends, function->end_count, sizeof *function->ends, compare_ends);
    function->registered = by_registered ? function->end_count + 1 : 0;
}

static uint32_t plane_count(const struct function *function) {
    return (function->end_count + 1) * (function->registered ? 2 : 1);
}

static bool is_of_class(const struct placed *row, uint32_t pipelined, bool registered) {
    return row->pipelined.low <= pipelined && pipelined <= row->pipelined.high &&
           (row->registered < 0 || row->registered == registered);
}

/* The steps of the calls with `pipelined` operations and these buffers. */
static bool build_plane(const struct placed_rows *placed, uint32_t pipelined, bool registered, const struct room *room,
                        struct function *function, uint32_t plane) {
    size_t count = 0;
    for (size_t i = 0; i < placed->count; i++) {
        const struct placed *row = &placed->rows[i];
        if (is_of_class(row, pipelined, registered)) {
            room->pieces[count] = (struct piece){row->row.bytes, row->choice};
            if (room->falling) {
                room->falling[count] = row->row;
            }
            count++;
        }
    }
    return steps_build(room->pieces, count, &function->planes[plane]) &&
           (!room->falling || falls_build(room->falling, count, room->pieces, &function->falls[plane]));
}

static bool build_function(const struct placed_rows *placed, const struct room *room, struct function *function) {
    divide(placed, function);
    uint32_t planes = plane_count(function);
    function->planes = calloc(planes, sizeof *function->planes);
    function->falls = room->falling ? calloc(planes, sizeof *function->falls) : NULL;
    bool built = function->planes && (function->falls || !room->falling);
    for (uint32_t plane = 0; built && plane < planes; plane++) {
        uint32_t class = plane % (function->end_count + 1);
        bool registered = plane > function->end_count;
        built = build_plane(placed, class ? function->ends[class - 1] : 0, registered, room, function, plane);
    }
    return built;
}

static bool copy_choices(const struct table *table, const struct shape *shape, struct lookup *lookup) {
    lookup->choices = malloc(table->choice_count * sizeof *lookup->choices);
    for (size_t i = 0; lookup->choices && i < table->choice_count; i++) {
        struct choice *choice = &lookup->choices[i];
        *choice = table->choices[i];
        if (choice->channels > 0 && channels_are_unchecked(choice, shape)) {
            choice->channels = 0;
            lookup->channels_withheld++;
        }
    }
    return lookup->choices;
}

static bool copy_lines(const struct table *table, struct lookup *lookup) {
    lookup->lines = calloc(table->choice_count, sizeof *lookup->lines);
    for (size_t i = 0; lookup->lines && i < table->decision_count; i++) {
        const struct decision *row = &table->decisions[i];
        uint32_t choice = row->choice;
        do {
            lookup->lines[choice] = choice > 0 ? row->line : 0;
        } while (table->choices[choice++].more);
    }
    return lookup->lines;
}

bool lookup_build(const struct table *table, const struct shape *shape, struct lookup *lookup) {
    *lookup = (struct lookup){0};
    size_t most = table->decision_count + 1;
    struct placed_rows placed = {malloc(most * sizeof *placed.rows), 0};
    struct room room = {malloc(most * sizeof *room.pieces), NULL};
    room.falling = table->falls_through ? malloc(most * sizeof *room.falling) : NULL;
    bool built = placed.rows && room.pieces && (room.falling || !table->falls_through) &&
                 copy_choices(table, shape, lookup) && copy_lines(table, lookup);
    for (int collective = 0; built && collective < COLLECTIVES; collective++) {
        place(table, collective, shape, &placed, lookup);
        built = build_function(&placed, &room, &lookup->functions[collective]);
    }
    free(placed.rows);
    free(room.pieces);
    free(room.falling);
    if (!built) {
        lookup_free(lookup);
    }
    return built;
}

void lookup_free(struct lookup *lookup) {
    for (int collective = 0; collective < COLLECTIVES; collective++) {
        struct function *function = &lookup->functions[collective];
        for (uint32_t plane = 0; plane < plane_count(function); plane++) {
            if (function->planes) {
                steps_free(&function->planes[plane]);
            }
            if (function->falls) {
                falls_free(&function->falls[plane]);
            }
        }
        free(function->planes);
        free(function->falls);
    }
    free(lookup->choices);
    free(lookup->lines);
    *lookup = (struct lookup){0};
}

const struct choice *lookup_fall(const struct lookup *lookup, const struct call *call, uint32_t runnable) {
    const struct function *function = &lookup->functions[call->collective];
    if (!function->falls) {
        return NULL;
    }
    uint32_t found = falls_find(&function->falls[lookup_plane(function, call)], call->bytes, runnable);
    return found ? &lookup->choices[found] : NULL;
}

uint32_t lookup_line(const struct lookup *lookup, const struct choice *choice) {
    return lookup->lines[choice - lookup->choices];
}
