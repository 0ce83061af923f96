/* The %-words in the path of a table: what is the same on all ranks of a communicator. Never the host. */
#ifndef PLUGIN_EXPAND_H
#define PLUGIN_EXPAND_H

#include <stdbool.h>

#include "shape.h"

struct expanded {
    char path[4096];
    char reason[160];
};

/* %g the GPUs' name, %n nodes, %l ranks per node, %% a percent sign; false with a reason. */
bool expand(const char *name, const struct shape *shape, struct expanded *expanded);

#endif
