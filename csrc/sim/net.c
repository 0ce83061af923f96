/* The network: the topology file's <net> devices as a plugin that moves no data.
 *
 * Interface v6 (NCCL 2.13 on) is the oldest every supported release accepts, so one table serves them all.
 */
#include "sim.h"

typedef int status; /* ncclResult_t */

enum { SUCCESS = 0, INTERNAL_ERROR = 3, INVALID_ARGUMENT = 4 };
enum { POINTER_HOST = 1, POINTER_CUDA = 2 };
enum { SUM = 0, MIN = 3 };

struct properties {
  char *name;
  char *pci_path;
  uint64_t guid;
  int pointer_support;
  int speed_mbps;
  int port;
  float latency_us;
  int max_comms;
  int max_receives;
};

static int token; /* what every handle points to */

static status init(void *log SIM_UNUSED) { return SUCCESS; }

static status devices(int *count) {
  *count = sim_machine.nets_per_host;
  return SUCCESS;
}

static status coll_devices(int *count) {
  *count = sim_machine.coll_nets;
  return SUCCESS;
}

static status get_properties(int index, struct properties *properties) {
  if (index < 0 || index >= sim_machine.nets_per_host) return INVALID_ARGUMENT;
  struct sim_net *net = &sim_machine.nets[index];
  /* Without a path NCCL finds the device in the topology file by its name. */
  char *pci_path = net->pci_path[0] == '\0' ? NULL : net->pci_path;
  *properties = (struct properties){net->name, pci_path, net->guid, POINTER_HOST | (net->gdr ? POINTER_CUDA : 0),
                                    net->speed_mbps, net->port, net->latency_us, net->max_comms, 1};
  return SUCCESS;
}

static status hand_out(void **handle) {
  *handle = &token;
  return SUCCESS;
}

static status listen_on(int index SIM_UNUSED, void *handle SIM_UNUSED, void **comm) { return hand_out(comm); }
static status connect_to(int index SIM_UNUSED, void *handle SIM_UNUSED, void **comm) { return hand_out(comm); }
static status accept_from(void *listening SIM_UNUSED, void **comm) { return hand_out(comm); }
static status register_memory(void *comm SIM_UNUSED, void *data SIM_UNUSED, int bytes SIM_UNUSED,
                              int kind SIM_UNUSED, void **handle) {
  return hand_out(handle);
}
static status succeed(void) { return SUCCESS; }
static status refuse(void) { return INTERNAL_ERROR; }

#define FUNCTION(f) (void *)(uintptr_t)(f)

/* ncclNet_v6_t: the name and 16 functions. Only set-up can be asked for; a transfer is an error. */
SIM_EXPORT struct {
  const char *name;
  void *functions[16];
} ncclNetPlugin_v6 = {
    sim_machine.net_name,
    {FUNCTION(init), FUNCTION(devices), FUNCTION(get_properties), FUNCTION(listen_on), FUNCTION(connect_to),
     FUNCTION(accept_from), FUNCTION(register_memory), NULL, FUNCTION(succeed), FUNCTION(refuse), FUNCTION(refuse),
     FUNCTION(refuse), FUNCTION(refuse), FUNCTION(succeed), FUNCTION(succeed), FUNCTION(succeed)},
};

static status reduce_support(int type SIM_UNUSED, int op, int *supported) {
  *supported = op >= SUM && op <= MIN;
  return SUCCESS;
}

static status coll_connect(void *handles[] SIM_UNUSED, int ranks SIM_UNUSED, int rank SIM_UNUSED,
                           void *listening SIM_UNUSED, void **comm) {
  return hand_out(comm);
}

/* ncclCollNet_v6_t: the name and 14 functions. */
SIM_EXPORT struct {
  const char *name;
  void *functions[14];
} ncclCollNetPlugin_v6 = {
    sim_machine.net_name,
    {FUNCTION(init), FUNCTION(coll_devices), FUNCTION(get_properties), FUNCTION(listen_on), FUNCTION(coll_connect),
     FUNCTION(reduce_support), FUNCTION(register_memory), NULL, FUNCTION(succeed), FUNCTION(refuse), FUNCTION(refuse),
     FUNCTION(refuse), FUNCTION(succeed), FUNCTION(succeed)},
};
