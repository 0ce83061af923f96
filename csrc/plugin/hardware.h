/* What the process has loaded: NVML, which names the GPUs of this node, and NCCL. */
#ifndef PLUGIN_HARDWARE_H
#define PLUGIN_HARDWARE_H

#include <stdbool.h>

#include "abi.h"

struct gpu_name {
    char text[96];
};

/* False where NVML is not loaded or fails, and where the node's GPUs do not all have one name. */
bool gpu_read_name(struct gpu_name *name);

/* The release (22809 for 2.28.9) of the NCCL that the logger belongs to; 0 where that does not say it. */
int nccl_version(nccl_logger logger);

/* Keeps the object that an address lies in loaded until the process ends: for whoever reads NCCL's constants or calls its
 * logger later than NCCL calls this plugin. A program may close libnccl before it ends, as Python's cffi and ctypes do. */
void nccl_keep(const void *address);

#endif
