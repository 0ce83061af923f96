/* Our own format: docs/decision-table.md. */
#ifndef PLUGIN_ROWS_H
#define PLUGIN_ROWS_H

#include "table.h"
#include "text.h"

extern const char rows_header[];

bool rows_read_header(struct slice line, struct table_error *error);

/* Adds what the line says: a decision, a cost or a constant. */
bool rows_read(struct slice line, struct table *table, struct table_error *error);

#endif
