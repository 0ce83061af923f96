/* The GPUs of this node, as NVML names them, where the process has loaded NVML. */
#ifndef PLUGIN_HARDWARE_H
#define PLUGIN_HARDWARE_H

#include <stdbool.h>

struct gpu_name {
    char text[96];
};

/* False where NVML is not loaded or fails, and where the node's GPUs do not all have one name. */
bool gpu_read_name(struct gpu_name *name);

#endif
