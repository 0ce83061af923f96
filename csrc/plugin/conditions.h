/* The conditions of a row of our own format. */
#ifndef PLUGIN_CONDITIONS_H
#define PLUGIN_CONDITIONS_H

#include "table.h"
#include "text.h"

enum row_kind { ROW_OF_DECISION, ROW_OF_COST };

/* Takes them off the line, from the collective up to and including the arrow. */
bool read_conditions(struct slice *line, enum row_kind kind, struct condition *when, struct table_error *error);

#endif
