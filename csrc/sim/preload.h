/* A program that is run as it is, with this object loaded before it: what is prepared for its processes, in a file. Python
 * reads this header too, which holds no macros. */
#ifndef NCCL_TUNER_SIM_PRELOAD_H
#define NCCL_TUNER_SIM_PRELOAD_H

#include <stdint.h>

#include "oracle.h"

enum { SIM_SOURCES_CHARS = 72, SIM_RANK_VARIABLES = 8, SIM_VARIABLE_CHARS = 32 };

/* The file begins with it; rows follow. */
struct sim_plan {
    char sources[SIM_SOURCES_CHARS];                             /* what it was written for */
    char library[SIM_PATH_CHARS];                                /* the libnccl */
    char rank_variables[SIM_RANK_VARIABLES][SIM_VARIABLE_CHARS]; /* any of which says a process' rank */
    int processes_per_host;
    int rows;
    uint64_t version_function; /* where ncclGetVersion is in the file of libnccl */
    uint64_t local_ranks;
    struct sim_operation_layout operations;
    struct sim_machine machine;
};

/* A function of libnccl, from the start of its file, and the row of the table that replaces it. */
struct sim_planned_row {
    uint64_t function;
    uint64_t bytes;
    int table;
    int row;
};

#endif
