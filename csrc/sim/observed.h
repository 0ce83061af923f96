/* What is observed of NCCL's work: launches, calls of a tuner plugin, operations of the network. Python reads this header
 * too, which holds no macros. */
#ifndef NCCL_TUNER_SIM_OBSERVED_H
#define NCCL_TUNER_SIM_OBSERVED_H

#include <stdint.h>

enum { SIM_MAX_CELLS = 64 }; /* of a cost table: algorithms times protocols */

struct sim_kernel {
    const void *function; /* host symbol of the kernel */
    uint32_t grid_x;
    uint32_t block_x;
    int device;
    const void *stream;      /* NULL: a node of a CUDA graph */
    uint64_t argument_bytes; /* of what was handed to it, behind those of the kernels before */
};

/* One call of a tuner plugin. */
struct sim_question {
    uint64_t bytes;
    int collective;
    int pipe_ops;
    int algorithms;
    int protocols;
    int registered;                 /* -1 where the plugin interface does not say */
    int channels;                   /* the plugin's answer; 0 is "no opinion" */
    int result;                     /* what the plugin returned: an ncclResult_t */
    int outside;                    /* it wrote beside the table */
    uint64_t nanoseconds;           /* that it took */
    float before_us[SIM_MAX_CELLS]; /* row major over `protocols`, as NCCL handed it */
    float after_us[SIM_MAX_CELLS];
};

/* A collective as NCCL prepares it for its network, whether or not that is needed: its number in its kernel, its
 * channels (bit c is channel c), ncclPattern_t, protocol and ncclDataType_t, and the first channel's chunk. */
struct sim_operation {
    uint64_t number;
    uint64_t channels;
    int pattern;
    int protocol;
    int type;
    int chunk_bytes;
    const void *comm;
};

struct sim_record {
    int kernels;    /* how many there were; the first is here */
    int questions;  /* the last is here: of one collective's, it is the one that decides */
    int operations; /* the first is here */
    struct sim_operation operation;
    struct sim_kernel kernel;
    struct sim_question question;
};

/* What came of one collective, or of one group. */
struct sim_answer {
    int result;         /* ncclResult_t */
    float simulated_us; /* of a simulated group */
    uint64_t log_bytes; /* how long the log was afterwards */
    struct sim_record record;
};

#endif
