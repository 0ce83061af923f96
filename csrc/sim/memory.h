/* Address space. Memory comes from mmap without reserve: pages nobody touches cost nothing. */
#ifndef NCCL_TUNER_SIM_MEMORY_H
#define NCCL_TUNER_SIM_MEMORY_H

#include <stddef.h>

void *sim_map(size_t bytes, size_t alignment);
void *sim_map_untouchable(size_t bytes);
int sim_unmap(void *address);
int sim_range_of(const void *address, void **base, size_t *bytes);
void sim_copy(void *target, const void *source, size_t bytes);
void sim_fill(void *target, int value, size_t bytes);

#endif
