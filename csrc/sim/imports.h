/* Functions that libnccl, or another library, calls in others, by the tables of its own file. */
#ifndef NCCL_TUNER_SIM_IMPORTS_H
#define NCCL_TUNER_SIM_IMPORTS_H

#include <stdint.h>

/* libnccl calls ``function`` instead of its import of that name from now on. 0, or an errno: ENOENT if it has none. */
int sim_redirect_import(const char *name, uintptr_t function);

/* The same of another library, which dlopen returned, and which need not have it. 0, or an errno. */
int sim_redirect_imports_of(void *library, const char *name, uintptr_t function);

#endif
