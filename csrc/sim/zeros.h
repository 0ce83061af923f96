/* Zeros that are there already. */
#ifndef NCCL_TUNER_SIM_ZEROS_H
#define NCCL_TUNER_SIM_ZEROS_H

#include <stddef.h>

/* As memcpy() does, but pages of zeros are only read: of what malloc() gave, memory that nobody wrote to stays without any
 * behind it. */
void sim_copy_sparse(void *target, const void *source, size_t bytes);

#endif
