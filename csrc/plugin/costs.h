/* The table's own times: which rows of `cost` apply to one communicator, and what they make of a call's cells. */
#ifndef PLUGIN_COSTS_H
#define PLUGIN_COSTS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "abi.h"
#include "call.h"
#include "shape.h"
#include "steps.h"
#include "table.h"

/* What time = latency * ceil(pipelined / batch) + bytes / kilobytes_per_ms needs. */
struct rate {
    float latency_us;
    float bytes_per_us; /* 1000 times the bandwidth in GB/s, rounded as NCCL rounds it; 0: never */
    uint32_t batch;
};

/* The steps' values are numbers of rates, from 1. */
struct costed {
    struct steps steps;
    int8_t algorithm, protocol;
};

struct costs {
    struct rate *rates;
    uint32_t *lines; /* of the rows that the rates are of */
    struct costed cells[COLLECTIVES][CELLS];
    int counts[COLLECTIVES];
    size_t rows;      /* that apply to this communicator */
    size_t shapeless; /* that ask for a communicator which is not known: they have no effect */
};

/* False when there is no memory; the costs are empty then. */
bool costs_build(const struct table *table, const struct shape *shape, struct costs *costs);
void costs_free(struct costs *costs);

/* Writes the times of one call into the cells that NCCL does not ignore; how many it wrote. `guarded`: NCCL may hold
 * Ring back there (guard.h), and the table's times follow. `counts`, where not NULL: one for each row
 * of the table, of the calls to which it gave a time. */
int costs_write(const struct costs *costs, const struct call *call, struct cost_cells cells, bool guarded,
                atomic_size_t *counts);

/* The line of the row that gives the time of a cell that NCCL does not ignore; 0 where none does. */
uint32_t costs_line(const struct costs *costs, int collective, size_t bytes, int algorithm, int protocol);

#endif
