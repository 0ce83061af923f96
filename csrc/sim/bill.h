/* What libnccl asks the simulated devices for: memory that it has, by device. */
#ifndef NCCL_TUNER_SIM_BILL_H
#define NCCL_TUNER_SIM_BILL_H

#include <stddef.h>
#include <stdint.h>

/* Memory of the runtime, known by its address. */
void sim_bill_add(const void *address, size_t bytes, int on_host);
void sim_bill_remove(const void *address);

/* Memory of the driver, known by its handle. It is there until its handle is released and all its mappings are undone. */
void sim_bill_create(uint64_t handle, size_t bytes, int on_host);
void sim_bill_hold(uint64_t handle);
void sim_bill_let_go(uint64_t handle);
void sim_bill_map(const void *address, uint64_t handle);
void sim_bill_unmap(const void *address);
uint64_t sim_bill_handle_at(const void *address); /* 0: none */

#endif
