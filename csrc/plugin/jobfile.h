/* The files of a measured job: what a process saw within an hour, whole in each. tuner/jobs/inside/files.py reads them.
 * All in the order of the processor's bytes. */
#ifndef PLUGIN_JOBFILE_H
#define PLUGIN_JOBFILE_H

#include <stdbool.h>
#include <stdint.h>

#include "abi.h"

#define JOB_VARIABLE "NCCL_TUNER_JOB"
#define JOB_SECONDS_VARIABLE "NCCL_TUNER_JOB_SECONDS"

enum { MOST_COMMUNICATORS = 1024, MOST_KINDS = 1024, MOST_RECORDS = 50000, FILE_SECONDS = 3600 };

/* What a file begins with; then struct job_communicator[], struct job_kind[] and struct job_record[]. */
struct job_head {
    char magic[8]; /* "ncclj01" */
    uint32_t communicators, kinds, records;
    uint32_t thinned;              /* calls are kept whose mixed number has so many zero bits at its end */
    uint64_t started_ns, ended_ns; /* since 1970: of the records; the end is when the file was written */
    uint64_t pid, number;          /* which file of the process it is */
    uint64_t lost;                 /* calls that there was no room for */
    int64_t launcher_rank;         /* -1: not known */
    uint32_t nccl, seconds;        /* 22809 for 2.28.9, 0 where it is not known; between writes */
    char host[64], build[128];
};

struct job_communicator {
    uint64_t id;
    uint32_t ranks, nodes; /* 0 where NCCL does not say it: 2.26 */
    int32_t rank;
    uint32_t version; /* of the interface; 3: times are of the host's clock, when its thread saw the kernel */
    uint64_t started, finished, lost;
    char name[48];
};

/* Calls that are alike, all of which are counted that have a time, whether they have a record or not. */
struct job_kind {
    uint32_t communicator;
    uint8_t channels, warps, unused[2];
    uint64_t count; /* of elements, as NCCL has it: AllGather and Broadcast in bytes */
    uint64_t calls;
    double sum_us, least_us, most_us;
    char function[16], type[16], algorithm[16], protocol[16];
};

/* Why a call has no time, though it ran. NCCL finds a kernel's times by the number that its host code gave the work on each
 * channel, and the kernel counts its works itself, in 64 places a channel:
 *  - a launch of a CUDA graph is counted by the kernel, and by the host only where no call outside graphs came since the
 *    capture (SaveProxyProfiler(), src/proxy.cc, v2.27.3-1 to v2.30.7-1: comm->planner.persistent): both differ from
 *    there on;
 *  - a rank's send to itself is a work of the kernel, and nothing that the host counts (addP2pToPlan(), src/enqueue.cc,
 *    v2.26.2-1 to v2.30.7-1: nProxyOps is 0);
 *  - works of one kernel begin and end together where they share a batch;
 *  - a place that NCCL looks at late has times of 64 works later.
 * From 2.31 on the first two do not hold: the host counts at each launch, what is in graphs and what a rank sends to itself
 * too (ncclProfilerPostPlanWork(), src/plugin/profiler.cc of 2.31.2). */
enum untimed { TIMED = 0, UNTIMED_GRAPHS = 1, UNTIMED_SELF_SENDS = 2, UNTIMED_GROUP = 3, UNTIMED_OVERLAP = 4 };

struct job_record {
    uint32_t sequence; /* NCCL's number of the call among those of its function on the communicator */
    uint32_t kind;
    float time_us;  /* from the first channel's start to the last one's end; below 0: an enum untimed, negated */
    uint32_t at_ms; /* since the file's start: the end of the call */
};

_Static_assert(sizeof(struct job_head) == 8 + 4 * 4 + 6 * 8 + 8 + 64 + 128, "no gaps");
_Static_assert(sizeof(struct job_communicator) == 8 + 4 * 4 + 3 * 8 + 48, "no gaps");
_Static_assert(sizeof(struct job_kind) == 8 + 5 * 8 + 4 * 16, "no gaps");
_Static_assert(sizeof(struct job_record) == 16, "no gaps");

/* What one writer has: the file that is being filled. Only its thread touches it. */
struct job_file {
    char folder[3072];
    struct job_head head;
    struct job_communicator communicators[MOST_COMMUNICATORS];
    struct job_kind kinds[MOST_KINDS];
    struct job_record records[MOST_RECORDS];
    bool failed; /* a write did, and the log says so */
    nccl_logger logger;
};

uint64_t jobfile_now_ns(void);
void jobfile_open(struct job_file *file, const char *folder, uint32_t seconds, int nccl, nccl_logger logger);

/* A call that ended, its time as in its record. Where there are too many records, half of them go: by the call's number, so
 * that on all ranks the same ones stay. */
void jobfile_add(struct job_file *file, uint32_t kind, uint64_t sequence, double time_us, uint64_t ended_ns);

/* Writes what there is: under another name first, so that whoever looks sees a file whole or not at all. Names have the
 * nanosecond of the start: containers may share the host's name and each have a process 1. */
void jobfile_write(struct job_file *file);

/* Whether the hour is over: the next call goes to a new file. Kinds and communicators keep their numbers. */
bool jobfile_is_over(const struct job_file *file, uint64_t now_ns);
void jobfile_begin(struct job_file *file);

#endif
