/* The tuner itself, the same behind every version of the interface: an adapter only hands arguments through. */
#ifndef PLUGIN_TUNER_H
#define PLUGIN_TUNER_H

#include <stddef.h>

#include "abi.h"

#define TUNER_NAME "nccl-tuner"

struct tuner;

/* A communicator's tuner, or NULL when there is nothing to do: no table asked for, or a table that cannot be used.
 * Says which in the log. */
struct tuner *tuner_open(size_t ranks, size_t nodes, nccl_logger logger);

/* What the table says about one call: writes into the cost cells and the channels, or writes nothing. */
void tuner_decide(struct tuner *tuner, int collective, size_t bytes, float *cells, int algorithms, int protocols,
                  int *channels);

/* Says how often it was asked and frees everything. */
void tuner_close(struct tuner *tuner);

#endif
