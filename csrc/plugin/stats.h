/* The counts of a communicator as a line of JSON at the end of a file: docs/decision-table.md describes it. */
#ifndef PLUGIN_STATS_H
#define PLUGIN_STATS_H

#include <stdint.h>

#include "abi.h"
#include "decider.h"
#include "tables.h"

#define STATS_VARIABLE "NCCL_TUNER_STATS"

/* Whose counts these are. */
struct stats {
    const struct loaded_table *loaded;
    uint64_t communicator; /* 0 where it is not known */
    struct shape shape;
    nccl_logger logger;
    char *path; /* of the file; NULL: none is written */
};

/* Reads NCCL_TUNER_STATS; the other members are set. What goes wrong, here and below, is one WARN and nothing else. */
void stats_open(struct stats *stats);

/* Writes the line, at most once. Without a decider (NULL) it says that the table could not be used. */
void stats_write(struct stats *stats, const struct decider *decider);

#endif
