/* The communicator, as far as a row can ask for it. */
#ifndef PLUGIN_SHAPE_H
#define PLUGIN_SHAPE_H

#include <stdbool.h>
#include <stddef.h>

#include "table.h"

struct shape {
    size_t ranks, nodes;
    bool known;     /* NCCL 2.19 and 2.20 do not say which communicator asks */
    size_t domains; /* of NVLink; 0 where NCCL does not say it, before 2.28 */
};

enum match { MATCH_NO, MATCH_YES, MATCH_UNKNOWN };

/* Whether the row is for this communicator at all. */
enum match shape_match(const struct shape *shape, const struct condition *when);

/* The row's sizes as NCCL's nBytes; false when there is none. Of an unknown shape: all that may be meant. */
bool shape_bytes(const struct shape *shape, const struct condition *when, struct sizes *bytes);

#endif
