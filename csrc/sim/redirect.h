/* Functions of libnccl that are redirected. */
#ifndef NCCL_TUNER_SIM_REDIRECT_H
#define NCCL_TUNER_SIM_REDIRECT_H

#include "oracle.h"

/* One row of a table of redirections. */
#define SIM_ROW(name, function) SIM_ROW_OF_CUDA(0, name, function)
#define SIM_ROW_OF_CUDA(cuda, name, function) \
    { name, (void *)(uintptr_t)(function), cuda }

/* The same of a list of names: a row of a table, and a symbol that this object exports. */
#define SIM_NAMED_ROW(name, function) SIM_ROW(#name, function),
#define SIM_NAMED_EXPORT(name, function) \
    extern __typeof__(function) name __attribute__((alias(#function), visibility("default")));

/* A function that is intercepted: redirected to something that calls it. It runs only while it is not redirected. */
#define SIM_MAX_JUMP_BYTES 16

struct sim_hook {
    void *function;
    void *replacement;
    unsigned char original[SIM_MAX_JUMP_BYTES];
};

int sim_hook(struct sim_hook *hook, void *function, void *replacement); /* 0, or errno */
void sim_hook_set(const struct sim_hook *hook, int redirected);

/* A page of memory, to be read and executed, which a near jump from the function reaches; NULL where there is none. */
unsigned char *sim_page_near(unsigned char *function);

#endif
