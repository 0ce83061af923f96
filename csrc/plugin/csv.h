/* The CSV of NVIDIA's example tuner plugin (plugins/tuner/example, v2.30.3-1):
 * collective,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks[,numPipeOps[,regBuff]], -1 for any.
 * What that plugin would quietly take for something else is an error here. */
#ifndef PLUGIN_CSV_H
#define PLUGIN_CSV_H

#include "table.h"
#include "text.h"

/* Whether a file whose first line is this one is such a CSV. */
bool csv_is_row(struct slice line);

bool csv_read(struct slice line, struct table *table, struct table_error *error);

#endif
