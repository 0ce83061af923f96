/* The counts of a communicator in a file that is mapped into memory: whoever looks into it sees them while the job runs,
 * and after it was killed. tuner/plugin/live.py reads it. */
#ifndef PLUGIN_LIVE_H
#define PLUGIN_LIVE_H

#include <stdint.h>

#include "stats.h"

#define LIVE_VARIABLE "NCCL_TUNER_LIVE"

enum { LIVE_OPEN = 1, LIVE_REFUSED = 2 };

/* What a file begins with; then uint32_t lines[choices], uint32_t cost_lines[costs], zeros up to a multiple of 64 bytes,
 * and the counts as counters.h lays them out. All in the order of the processor's bytes. */
struct live_head {
    char magic[8];
    uint64_t bytes;                       /* of the file */
    _Atomic(uint64_t) state;              /* 0 until all of this is written */
    uint64_t communicator, ranks, nodes;  /* communicator: 0 where it is not known */
    uint64_t pid, started_s, nccl;        /* 22809 for 2.28.9, 0 where it is not known */
    int64_t rank;                         /* by the launcher's variables; -1: they do not say it */
    uint64_t choices, costs, counts_from; /* where the counts begin, in bytes */
    char host[64], build[128], sha256[72], table[1024];
    char reason[512]; /* of LIVE_REFUSED */
};

struct live {
    struct live_head *head; /* NULL: there is no file */
    char *path;
};

/* A file in the folder that NCCL_TUNER_LIVE names, and where the counts of this communicator go; NULL where none is asked
 * for, or none can be made, of which the log says why. */
void *live_open(const struct stats *stats, struct live *live);

/* The same where the table could not be used: once for each process and table. */
void live_refuse(const struct stats *stats, const char *reason);

/* The communicator has ended: so has its file. */
void live_close(struct live *live);

#endif
