/* The buffers of collectives. */
#ifndef NCCL_TUNER_SIM_BUFFERS_H
#define NCCL_TUNER_SIM_BUFFERS_H

struct sim_buffers {
    void *send, *receive;
};

/* Those in use; without address space its pointers are NULL. */
struct sim_buffers sim_buffers(void);

#endif
