/* The machine: hosts, their devices, and which of them the calling thread is on.
 *
 * A device is a rank's own view of its GPU, as in a job with one process per rank. Ranks that share a GPU have a device
 * each, and all that identifies the GPU is the same: bus id, UUID, NVML's index.
 */
#ifndef NCCL_TUNER_SIM_MACHINE_H
#define NCCL_TUNER_SIM_MACHINE_H

#include <stddef.h>

#include "hardware.h"

#define SIM_MEMORY_BYTES ((size_t)80 << 30) /* of each GPU */

extern struct sim_machine sim_machine;

/* The kind of a host, and of the one the calling thread is on. */
const struct sim_host *sim_host(int host);
const struct sim_host *sim_own_host(void);

/* Devices are numbered over all hosts, those of the first host first. */
int sim_device(void);
int sim_set_device(int device);
int sim_devices(void);
int sim_host_of(int device);

/* A process may see some of them only, with numbers of its own: as many, a device's number, and the device of a number. -1:
 * it does not see it. */
int sim_seen_devices(void);
int sim_number_of(int device);
int sim_device_numbered(int number);

/* The process sees these devices from here on, and starts on the first. */
void sim_see_devices(const int *devices, int n);

int sim_first_device(int host);
int sim_local_rank(int device); /* among the ranks of its host */
int sim_gpu_of(int device);     /* which of its host's GPUs it is */
int sim_device_of_bus_id(const char *bus_id, int host);

/* The NVLink domain that a device is in, SIM_NO_DOMAIN where its host is in none. */
int sim_domain_of(int device);

int sim_domain_ranks(int domain);
int sim_first_of_domain(int domain);

/* How many devices of a host are of the communicator that is being made: all, unless it is of some ranks. */
int sim_host_ranks(int host);

/* The communicators that are made from here on are of these devices, by their rank in them. */
void sim_keep_members(const int *devices, int n);

/* The first device of those that a rank's system of `gpus` GPUs is made of: its host's or its domain's. -1: others. */
int sim_first_of_system(int device, int gpus);

/* The same of the first host that is like the device's own, which may be that, and by how many ranks its ranks come before.
 * Hosts of NVLink domains are like themselves alone. */
int sim_first_alike(int device, int *ranks_before);

/* Whether two GPUs of a host, by local index, reach each other's memory. */
int sim_peers(int a, int b);

/* Whether the network merges devices, as the machine says. */
void sim_configure_merging(void);

/* One value of an attribute, numbered as cudaDeviceAttr and CUdevice_attribute both do. */
int sim_device_attribute(int attribute, int device);

/* Driver functions by name, as cudaGetDriverEntryPoint and cuGetProcAddress hand them out; NULL when not simulated. */
void *sim_driver_function(const char *name);

#endif
