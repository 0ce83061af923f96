/* NCCL's cost table: one float for each algorithm and protocol, the smallest wins. */
#ifndef PLUGIN_CELLS_H
#define PLUGIN_CELLS_H

#include <stdbool.h>
#include <stdint.h>

#include "call.h"

/* Slower than anything, and still below the hour from which on NCCL, through 2.30, takes no cell at all: it can be
 * taken where nothing else is left. */
#define CELLS_NEVER_US 3000000000.0f

/* Makes NCCL take this cell by raising those that would win against it to just above its time; the cell itself keeps
 * its time, so that ncclGroupSimulateEnd still reports it. False, and nothing written, when NCCL could not take it. */
bool cells_prefer(struct cost_cells cells, int algorithm, int protocol);

/* A bit for each algorithm * PROTOCOLS + protocol that NCCL could take. */
uint32_t cells_runnable(struct cost_cells cells);

#endif
