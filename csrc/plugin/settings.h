/* What the environment asks of the plugin. */
#ifndef PLUGIN_SETTINGS_H
#define PLUGIN_SETTINGS_H

#include <stdbool.h>
#include <stdint.h>

#include "abi.h"
#include "table.h"

#define TABLE_VARIABLE "NCCL_TUNER_TABLE"
#define CSV_VARIABLE "NCCL_TUNER_CONFIG_FILE"
#define STRICT_VARIABLE "NCCL_TUNER_STRICT"
#define CONSTANTS_VARIABLE "NCCL_TUNER_CONSTANTS"
#define HASHES_VARIABLE "NCCL_TUNER_TABLE_SHA256"
#define UNCHECKED_VARIABLE "NCCL_TUNER_UNCHECKED"
#define NEXT_VARIABLE "NCCL_TUNER_NEXT"
#define TIME_VARIABLE "NCCL_TUNER_JOB_TIME"
#define SWITCH_VARIABLE "NCCL_TUNER_SWITCH"

struct settings {
    const char *table;            /* the file's name, or NULL */
    const char *variable;         /* that names it */
    bool expands;                 /* its %-words are expanded */
    const char *unread;           /* the name in the variable that it wins over, or NULL */
    const char *masked_by, *mask; /* NCCL_ALGO or NCCL_PROTO, where one is set, and its value */
    const char *hashes;           /* of the tables that may be used, separated by commas; NULL: of any */
    const char *switch_file;      /* that says since when jobs go without a table, or NULL */
    uint64_t job_s;   /* when the job began, in seconds since 1970, as all its ranks are told; 0: not told */
    const char *next; /* the tuner to ask where the table leaves a call, or NULL */
    bool strict;      /* without a table that can be used the communicator fails */
    bool constants;   /* the table may change NCCL's constants */
    bool wrong;       /* a variable is set to something that it does not know */
    bool unchecked;   /* the table is trusted where NCCL does not tell enough to check it */
};

/* Says in the log what is set to something it does not know. */
struct settings settings_read(nccl_logger logger);

/* What NCCL_TUNER_SWITCH says of jobs that began when this one did: lines "off SECONDS" and "on SECONDS", in the order of
 * their times, of which the last that is not after the job's begin counts. False with a reason. */
struct switched {
    bool off;
    uint64_t since_s;
    char reason[160];
};
bool settings_read_switch(const struct settings *settings, struct switched *switched);

/* Whether a content of this hash may be used. */
bool settings_allow(const struct settings *settings, const char *hash);

/* The %-words in the path of a table: what is the same on all ranks of a communicator. Never the host. */

struct expanded {
    char path[4096];
    char reason[160];
};

/* %g the GPUs' name, %n nodes, %l ranks per node, %% a percent sign; false with a reason. */
bool expand(const char *name, const struct shape *shape, struct expanded *expanded);

#endif
