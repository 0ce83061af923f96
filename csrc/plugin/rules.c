#include "rules.h"

#include <stdlib.h>
#include <string.h>

#include "cells.h"
#include "counters.h"

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

_Static_assert(sizeof(struct leaf) == 2 * SEARCH_WIDTH * sizeof(size_t), "a leaf is two cache lines");

static void fill_leaves(const struct lookup *lookup, const struct painted *painted, struct leaf *leaves) {
    for (size_t i = 0; i < painted->count || i % SEARCH_WIDTH; i++) {
        struct leaf *leaf = &leaves[i / SEARCH_WIDTH];
        size_t place = i % SEARCH_WIDTH;
        leaf->ends[place] = i + 1 < painted->count ? painted->starts[i + 1] - 1 : SIZE_MAX;
        leaf->steps[place] = i < painted->count ? lookup_step(lookup, painted->values[i]) : lookup->nothing;
    }
}

static bool build_steps(const struct piece *pieces, size_t count, const struct lookup *lookup, struct plane *plane) {
    struct painted painted;
    if (!steps_paint(pieces, count, &painted)) {
        return false;
    }
    size_t leaves = (painted.count + SEARCH_WIDTH - 1) / SEARCH_WIDTH;
    plane->leaves = aligned_alloc(sizeof *plane->leaves, leaves * sizeof *plane->leaves);
    bool built = plane->leaves;
    if (built) {
        fill_leaves(lookup, &painted, plane->leaves);
        for (size_t leaf = 0; leaf < leaves; leaf++) {
            painted.starts[leaf] = painted.starts[leaf * SEARCH_WIDTH];
        }
        built = leaves == 1 || search_build(painted.starts, leaves, &plane->search);
    }
    painted_free(&painted);
    return built;
}

/* The steps of the calls with `pipelined` operations and these buffers. */
static bool build_plane(const struct placed_rows *placed, uint32_t pipelined, bool registered, const struct room *room,
                        const struct lookup *lookup, struct function *function, uint32_t plane) {
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
    return build_steps(room->pieces, count, lookup, &function->planes[plane]) &&
           (!room->falling || falls_build(room->falling, count, room->pieces, &function->falls[plane]));
}

static bool build_function(const struct placed_rows *placed, const struct room *room, const struct lookup *lookup,
                           struct function *function) {
    divide(placed, function);
    uint32_t planes = plane_count(function);
    function->planes = calloc(planes, sizeof *function->planes);
    function->falls = room->falling ? calloc(planes, sizeof *function->falls) : NULL;
    bool built = function->planes && (function->falls || !room->falling);
    for (uint32_t plane = 0; built && plane < planes; plane++) {
        uint32_t class = plane % (function->end_count + 1);
        bool registered = plane > function->end_count;
        built = build_plane(placed, class ? function->ends[class - 1] : 0, registered, room, lookup, function, plane);
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
    if (lookup->choices) {
        lookup->nothing = lookup_step(lookup, CHOICE_NONE);
    }
    return lookup->choices;
}

static bool copy_lines(const struct table *table, struct lookup *lookup) {
    lookup->lines = calloc(table->choice_count, sizeof *lookup->lines);
    for (size_t i = 0; lookup->lines && i < table->decision_count; i++) {
        const struct decision *row = &table->decisions[i];
        uint32_t choice = row->choice;
        do {
            lookup->lines[choice] = choice >= FIRST_CHOICE ? row->line : 0;
        } while (table->choices[choice++].more);
    }
    return lookup->lines;
}

bool lookup_build(const struct table *table, const struct shape *shape, struct lookup *lookup) {
    *lookup = (struct lookup){.schedules = table->schedules};
    size_t most = table->decision_count + 1;
    struct placed_rows placed = {malloc(most * sizeof *placed.rows), 0};
    struct room room = {malloc(most * sizeof *room.pieces), NULL};
    room.falling = table->falls_through ? malloc(most * sizeof *room.falling) : NULL;
    bool built = placed.rows && room.pieces && (room.falling || !table->falls_through) &&
                 copy_choices(table, shape, lookup) && copy_lines(table, lookup);
    for (int collective = 0; built && collective < COLLECTIVES; collective++) {
        place(table, collective, shape, &placed, lookup);
        built = build_function(&placed, &room, lookup, &lookup->functions[collective]);
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
                search_free(&function->planes[plane].search);
                free(function->planes[plane].leaves);
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

uint32_t lookup_fall(const struct lookup *lookup, const struct call *call, uint32_t runnable) {
    const struct function *function = &lookup->functions[call->collective];
    return function->falls ? falls_find(&function->falls[lookup_plane(function, call)], call->bytes, runnable) : 0;
}

static struct rate rate_of(const struct cost *cost) {
    struct rate rate = {.batch = cost->batch};
    if (!cost->never) {
        rate.latency_us = cost->latency_us;
        rate.bytes_per_us = 1000.0f * cost->bandwidth_gbs;
    }
    return rate;
}

static bool is_for(const struct cost *cost, int collective, int algorithm, int protocol) {
    return cost->when.collective == collective && cost->algorithm == algorithm && cost->protocol == protocol;
}

/* The rows of one cell; where the communicator is not known, a row that asks for it leaves the time to NCCL. */
static size_t place_costs(const struct table *table, const struct shape *shape, int collective, int algorithm,
                          int protocol, struct piece *pieces, struct costs *costs) {
    size_t count = 0;
    for (size_t i = 0; i < table->cost_count; i++) {
        const struct cost *cost = &table->costs[i];
        if (!is_for(cost, collective, algorithm, protocol)) {
            continue;
        }
        enum match match = shape_match(shape, &cost->when);
        struct piece piece = {.value = match == MATCH_YES ? (uint32_t)i + 1 : 0};
        if (match != MATCH_NO && shape_bytes(shape, &cost->when, &piece.bytes)) {
            costs->rows += match == MATCH_YES;
            costs->shapeless += match == MATCH_UNKNOWN;
            pieces[count++] = piece;
        }
    }
    return count;
}

static bool build_cells(const struct table *table, const struct shape *shape, int collective, struct piece *pieces,
                        struct costs *costs) {
    for (int cell = 0; cell < CELLS; cell++) {
        int algorithm = cell / PROTOCOLS, protocol = cell % PROTOCOLS;
        size_t count = place_costs(table, shape, collective, algorithm, protocol, pieces, costs);
        if (count == 0) {
            continue;
        }
        struct costed *costed = &costs->cells[collective][costs->counts[collective]];
        if (!steps_build(pieces, count, &costed->steps)) {
            return false;
        }
        costed->algorithm = (int8_t)algorithm;
        costed->protocol = (int8_t)protocol;
        costs->counts[collective]++;
    }
    return true;
}

bool costs_build(const struct table *table, const struct shape *shape, struct costs *costs) {
    *costs = (struct costs){0};
    if (table->cost_count == 0) {
        return true;
    }
    struct piece *pieces = malloc(table->cost_count * sizeof *pieces);
    costs->rates = malloc(table->cost_count * sizeof *costs->rates);
    costs->lines = malloc(table->cost_count * sizeof *costs->lines);
    bool built = pieces && costs->rates && costs->lines;
    for (size_t i = 0; built && i < table->cost_count; i++) {
        costs->rates[i] = rate_of(&table->costs[i]);
        costs->lines[i] = table->costs[i].line;
    }
    for (int collective = 0; built && collective < COLLECTIVES; collective++) {
        built = build_cells(table, shape, collective, pieces, costs);
    }
    free(pieces);
    if (!built) {
        costs_free(costs);
    }
    return built;
}

void costs_free(struct costs *costs) {
    for (int collective = 0; collective < COLLECTIVES; collective++) {
        for (int i = 0; i < costs->counts[collective]; i++) {
            steps_free(&costs->cells[collective][i].steps);
        }
    }
    free(costs->rates);
    free(costs->lines);
    *costs = (struct costs){0};
}

/* The order of NCCL's own steps, each rounded to float: ncclTopoGetAlgoTime, src/graph/tuning.cc, v2.28.9-1. */
static float time_us(const struct rate *rate, size_t bytes, int pipelined) {
    if (rate->bytes_per_us == 0.0f) {
        return CELLS_NEVER_US;
    }
    uint32_t operations = pipelined > 0 ? (uint32_t)pipelined : 0;
    uint32_t batches = operations / rate->batch + (operations % rate->batch != 0);
    float latency_us = rate->latency_us * (float)batches;
    float time = latency_us + (float)bytes / rate->bytes_per_us;
    return time < CELLS_NEVER_US ? time : CELLS_NEVER_US;
}

int costs_write(const struct costs *costs, const struct call *call, struct cost_cells cells, bool guarded,
                atomic_size_t *counts) {
    if (call->collective < 0 || call->collective >= COLLECTIVES) {
        return 0;
    }
    int written = 0;
    struct guard guard = {0};
    guarded = guarded && guard_is_of(call->collective);
    for (int i = 0; i < costs->counts[call->collective]; i++) {
        const struct costed *costed = &costs->cells[call->collective][i];
        if (costed->algorithm >= cells.algorithms || costed->protocol >= cells.protocols) {
            continue;
        }
        float *cell = &cells.us[costed->algorithm * cells.protocols + costed->protocol], own = *cell;
        uint32_t rate = own >= 0.0f ? steps_find(&costed->steps, call->bytes) : 0;
        if (rate) {
            *cell = time_us(&costs->rates[rate - 1], call->bytes, call->pipelined);
            written++;
            if (counts) {
                counters_add(&counts[rate - 1], 1);
            }
            if (guarded) {
                guard_note(&guard, costed->algorithm, costed->protocol, own, *cell);
            }
        }
    }
    if (guarded && written > 0) {
        guard_apply(&guard, cells);
    }
    return written;
}

uint32_t costs_line(const struct costs *costs, int collective, size_t bytes, int algorithm, int protocol) {
    bool tuned = collective >= 0 && collective < COLLECTIVES;
    for (int i = 0; tuned && i < costs->counts[collective]; i++) {
        const struct costed *costed = &costs->cells[collective][i];
        if (costed->algorithm == algorithm && costed->protocol == protocol) {
            uint32_t rate = steps_find(&costed->steps, bytes);
            return rate ? costs->lines[rate - 1] : 0;
        }
    }
    return 0;
}

bool rules_build(const struct table *table, const struct shape *shape, struct rules *rules) {
    *rules = (struct rules){.shape = *shape};
    if (!lookup_build(table, shape, &rules->lookup)) {
        return false;
    }
    if (!costs_build(table, shape, &rules->costs)) {
        lookup_free(&rules->lookup);
        return false;
    }
    return true;
}

void rules_free(struct rules *rules) {
    lookup_free(&rules->lookup);
    costs_free(&rules->costs);
}
