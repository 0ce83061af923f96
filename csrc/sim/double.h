/* What a process needs that calls libnccl itself, as on real GPUs: memory, devices, and what it called and launched.
 * Python reads this header too, which holds no macros. */
#ifndef NCCL_TUNER_SIM_DOUBLE_H
#define NCCL_TUNER_SIM_DOUBLE_H

#include <stdint.h>

/* A communicator of one rank, with the identity that all ranks of it have in common. */
struct sim_joined {
    const void *comm;
    int rank;
    int ranks;
    int device;
    unsigned char id[128];
};

/* A collective as the process called it. */
struct sim_called {
    int collective; /* ncclFunc_t */
    int type;
    int op;
    int root;
    uint64_t count;
    const void *send;
    const void *receive;
    const void *comm;
    const void *stream;
    int kernels; /* how many of each had been seen before */
    int operations;
};

/* How many there are of each since sim_forget_seen(); kernels and operations are those of oracle.h. */
struct sim_seen {
    int joined;
    int called;
    int kernels;
    int operations;
};

/* From here on calls of collectives and initialisations are written down. Only one thread may call libnccl. 0, or errno. */
int sim_observe_calls(void);
struct sim_seen sim_seen(void);
void sim_forget_seen(void);
const struct sim_joined *sim_joined(void);
const struct sim_called *sim_called(void);

/* Launches after so many fail with this error of CUDA. */
void sim_plant_launch_error(int error, int launches);

/* Device memory; NULL and -1 where there is none. */
void *sim_allocate(uint64_t bytes);
int sim_release(void *address);

/* Tells processes apart whose ranks share a GPU. */
void sim_identify_process(int number);

/* The device that threads are on which have selected none: the first GPU of the process' host. 0, or -1. */
int sim_start_on(int device);

/* The calling thread's device, of those of all hosts. */
int sim_current_device(void);
int sim_select_device(int device);

#endif
