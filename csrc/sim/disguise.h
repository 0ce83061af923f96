/* Another time and another place for one library: what it asks the C library of the clock, its host and its process. */
#ifndef NCCL_TUNER_SIM_DISGUISE_H
#define NCCL_TUNER_SIM_DISGUISE_H

#include <stdint.h>

/* For a library that dlopen returned, from now on: clocks are so many seconds ahead, and where `elsewhere`, the host's
 * name and the process's number are others. 0, or errno. */
int sim_disguise(void *library, int64_t seconds, int elsewhere);

#endif
