/* The network devices of the calling thread's host, in the form that all interfaces of the network have in common. */
#ifndef NCCL_TUNER_SIM_NET_H
#define NCCL_TUNER_SIM_NET_H

#include <stdint.h>

struct sim_net;

typedef int status; /* ncclResult_t */

enum { SUCCESS = 0, INTERNAL_ERROR = 3, INVALID_ARGUMENT = 4, INVALID_USAGE = 5 };
enum { POINTER_HOST = 1, POINTER_CUDA = 2 };

#define FUNCTION(f) (void *)(uintptr_t)(f)

/* What a network hands out where it only has to be something, and what it does of which only the result counts. */
status sim_net_hand_out(void **handle);
status sim_net_succeed(void);
status sim_net_refuse(void);
status sim_net_listen(int index, void *handle, void **comm);
status sim_net_connect(int index, void *handle, void **comm);
status sim_net_accept(void *listening, void **comm);

/* In a NVLink domain every host has adapters of its own. */
uint64_t sim_net_guid(const struct sim_net *net);

#endif
