/* What goes into a CUDA graph instead of being done. */
#ifndef NCCL_TUNER_SIM_CAPTURE_H
#define NCCL_TUNER_SIM_CAPTURE_H

#include "export.h"

/* Done now, or at each launch of the graph that is being captured. */
status sim_capture_host_function(void (*function)(void *argument), void *argument);

#endif
