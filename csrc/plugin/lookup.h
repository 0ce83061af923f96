/* The rows that apply to one communicator, cut at init into steps of sizes so that a call is one short search. */
#ifndef PLUGIN_LOOKUP_H
#define PLUGIN_LOOKUP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "abi.h"
#include "table.h"

struct choice {
    int8_t algorithm; /* -1: no row, the answer is NCCL's */
    int8_t protocol;
    int8_t channels; /* 0: NCCL's own number */
};

/* Sizes from starts[i] up to the next start, or without end, get choices[i]. starts[0] is 0. */
struct steps {
    size_t count;
    size_t *starts;
    struct choice *choices;
};

struct lookup {
    struct steps steps[COLLECTIVES];
    size_t rows;              /* that apply to this communicator */
    size_t channels_withheld; /* of them: rows whose channels NCCL would use unchecked */
};

/* False when there is no memory; the lookup is empty then. */
bool lookup_build(const struct table *table, size_t ranks, size_t nodes, struct lookup *lookup);
void lookup_free(struct lookup *lookup);

/* The first row that holds the size, or a choice without an algorithm. */
struct choice lookup_find(const struct lookup *lookup, int collective, size_t bytes);

#endif
