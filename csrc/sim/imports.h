/* Functions that libnccl calls in other libraries, by the table of its own file. */
#ifndef NCCL_TUNER_SIM_IMPORTS_H
#define NCCL_TUNER_SIM_IMPORTS_H

#include <stdint.h>

/* libnccl calls ``function`` instead of its import of that name from now on. 0, or an errno: ENOENT if it has none. */
int sim_redirect_import(const char *name, uintptr_t function);

#endif
