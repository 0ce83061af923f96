/* The counters that kernels write for NCCL's profiler. */
#ifndef NCCL_TUNER_SIM_COUNTERS_H
#define NCCL_TUNER_SIM_COUNTERS_H

#include "oracle.h"

/* Planted times, from a file. 0, or -1. */
int sim_read_times(const char *path);

/* What becomes of a function of libnccl that is replaced where nobody profiles: it is replaced all the same, or kept, perhaps
 * with something before it, or it begins with instructions that are not known. */
enum sim_profiled { SIM_REPLACED, SIM_KEPT, SIM_UNKNOWN };

enum sim_profiled sim_profile(const char *name, void *function, void *replacement,
                              const struct sim_operation_layout *known);

#endif
