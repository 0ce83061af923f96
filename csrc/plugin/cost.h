/* NCCL's cost table: one float for each algorithm and protocol, the smallest wins. */
#ifndef PLUGIN_COST_H
#define PLUGIN_COST_H

#include <stdbool.h>

/* Makes NCCL take this cell by raising those that would win against it to just above its time; the cell itself keeps
 * its time, so that ncclGroupSimulateEnd still reports it. False, and nothing written, when NCCL could not take it. */
bool cost_prefer(float *cells, int algorithms, int protocols, int algorithm, int protocol);

#endif
