/* The counts of a communicator as a line of JSON at the end of a file: docs/deploying.md describes it. */
#ifndef PLUGIN_STATS_H
#define PLUGIN_STATS_H

#include <stdbool.h>
#include <stdint.h>

#include "abi.h"
#include "decider.h"
#include "tables.h"

#define STATS_VARIABLE "NCCL_TUNER_STATS"

/* "nccl-tuner-plugin VERSION sources HASH": what `strings` shows of the object, and what log and statistics say. */
extern const char build_id[];

struct host {
    char name[64];
};

/* A host's name up to its first dot, as in NCCL_DEBUG_FILE. */
struct host host_of(const char *name);
struct host this_host(void);

/* The rank by the variables of torchrun, Open MPI, MVAPICH, MPICH, PMIx and srun; -1 where none is set. */
long launcher_rank(void);

/* Whose counts these are. */
struct stats {
    const struct loaded_table *loaded;
    uint64_t communicator; /* 0 where it is not known */
    struct shape shape;
    nccl_logger logger;
    uint64_t started_s; /* since 1970 */
    int nccl;           /* 22809 for 2.28.9; 0 where it is not known */
    char *path;         /* of the file; NULL: none is written */
};

/* Reads NCCL_TUNER_STATS; the other members are set. What goes wrong, here and below, is one WARN and nothing else. */
void stats_open(struct stats *stats);

/* Writes the line, at most once. Without a decider (NULL) it says that the table could not be used. */
void stats_write(struct stats *stats, const struct decider *decider);

/* Of a file that would grow beyond RLIMIT_FSIZE an error, EFBIG, is enough: its signal is held while one is written, and one
 * that came, as the errno `wrong` says, is taken away. Whether this thread held it before. */
bool stats_hold_signal(void);
void stats_let_signal(bool held, int wrong);

#endif
