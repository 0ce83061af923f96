/* A decision table as text becomes rows; docs/decision-table.md describes the format. */
#ifndef PLUGIN_TABLE_H
#define PLUGIN_TABLE_H

#include <stdbool.h>
#include <stddef.h>

#include "text.h"

/* Both ends belong to it. */
struct interval {
    size_t low, high;
};

struct row {
    int collective;
    struct interval bytes, ranks, nodes;
    int algorithm, protocol;
    int channels; /* 0: NCCL's own number */
};

struct table {
    struct row *rows;
    size_t count;
};

struct table_error {
    size_t line;
    char reason[256];
};

/* All rows in the order of the text, or false with the first error and an empty table. */
bool table_parse(struct slice text, struct table *table, struct table_error *error);
void table_free(struct table *table);

bool interval_holds(struct interval interval, size_t value);

#endif
