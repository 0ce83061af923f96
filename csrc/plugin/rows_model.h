/* Rows of our own format about times: costs, and constants of NCCL's model. */
#ifndef PLUGIN_ROWS_MODEL_H
#define PLUGIN_ROWS_MODEL_H

#include "table.h"
#include "text.h"

/* What follows the word "cost", or "constant". */
bool rows_read_cost(struct slice line, struct table *table, struct table_error *error);
bool rows_read_constant(struct slice line, struct table *table, struct table_error *error);

#endif
