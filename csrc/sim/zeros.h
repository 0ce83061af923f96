/* Zeros that are there already. */
#ifndef NCCL_TUNER_SIM_ZEROS_H
#define NCCL_TUNER_SIM_ZEROS_H

#include <stddef.h>

/* As memset(target, 0, bytes) and memcpy() do, but pages of zeros are only read: memory that nobody wrote to stays without
 * any behind it. */
void sim_zero(void *target, size_t bytes);
void sim_copy_sparse(void *target, const void *source, size_t bytes);

#endif
