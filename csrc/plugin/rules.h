/* What a table says to communicators of one size: built once for all that are alike, and never changed. */
#ifndef PLUGIN_RULES_H
#define PLUGIN_RULES_H

#include <stdbool.h>

#include "costs.h"
#include "lookup.h"
#include "shape.h"
#include "table.h"

struct rules {
    struct shape shape;
    struct lookup lookup;
    struct costs costs;
};

/* False when there is no memory; there is nothing to free then. */
bool rules_build(const struct table *table, const struct shape *shape, struct rules *rules);
void rules_free(struct rules *rules);

#endif
