/* A file's content as a table, in our format or as NVIDIA's CSV. */
#ifndef PLUGIN_PARSE_H
#define PLUGIN_PARSE_H

#include "table.h"
#include "text.h"

/* The whole table, or false with the first error and an empty table. The content tells the format. */
bool table_parse(struct slice text, struct table *table, struct table_error *error);

#endif
