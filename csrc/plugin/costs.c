#include "costs.h"

#include <stdlib.h>

#include "cells.h"
#include "counters.h"
#include "guard.h"

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
static size_t place(const struct table *table, const struct shape *shape, int collective, int algorithm, int protocol,
                    struct piece *pieces, struct costs *costs) {
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
        size_t count = place(table, shape, collective, algorithm, protocol, pieces, costs);
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
