/* What the parts of the simulated machine share.
 *
 * One shared object stands in for the CUDA runtime inside libnccl, for libcuda.so, for libnvidia-ml.so.1 and for a
 * network plugin. Nothing here computes anything NCCL decides: it only says what hardware there is, and writes down what
 * NCCL asked of it.
 */
#ifndef NCCL_TUNER_SIM_H
#define NCCL_TUNER_SIM_H

#include <stddef.h>
#include <stdint.h>

#define SIM_EXPORT __attribute__((visibility("default")))
#define SIM_UNUSED __attribute__((unused))

#define SIM_MAX_RANKS 4096
#define SIM_MAX_LOCAL_GPUS 64
#define SIM_MAX_NETS 64
#define SIM_BUS_ID_CHARS 16 /* "0000:1b:00.0" and its end */
#define SIM_NET_NAME_CHARS 64
#define SIM_MAX_KINDS 16 /* of hosts that differ */
#define SIM_MAX_NVLINKS 18 /* no release looks at more */
#define SIM_PATH_CHARS 4096

struct sim_gpu {
  char bus_id[SIM_BUS_ID_CHARS];
  int compute_capability; /* 90 is 9.0 */
  char nvlinks[SIM_MAX_NVLINKS][SIM_BUS_ID_CHARS]; /* where each NVLink leads; empty: no link, or the topology says it */
  int peer_group;         /* GPUs of one group reach each other's memory over PCIe */
};

struct sim_net {
  char name[SIM_NET_NAME_CHARS];
  uint64_t guid;
  int speed_mbps;
  int port;
  int max_comms;
  int gdr;
  float latency_us;
  char pci_path[SIM_PATH_CHARS]; /* below sysfs; empty: the topology names the device */
};

/* One kind of host. */
struct sim_host {
  int gpus_per_host;
  int nets_per_host;
  int multicast; /* 1: the GPUs offer NVLink multicast, which NVLS needs */
  int coll_nets; /* how many of the nets offer in-network collectives */
  char sysfs[SIM_PATH_CHARS]; /* a folder per PCI device, by bus id; empty: this host has no sysfs */
  struct sim_gpu gpus[SIM_MAX_LOCAL_GPUS];
  struct sim_net nets[SIM_MAX_NETS];
  char topology[SIM_PATH_CHARS]; /* the file NCCL reads there */
};

struct sim_machine {
  int hosts;
  int kinds;
  int driver_version; /* 12080 is CUDA 12.8 */
  char net_name[SIM_NET_NAME_CHARS];
  int kind_of_host[SIM_MAX_RANKS];
  struct sim_host kind[SIM_MAX_KINDS];
};

extern struct sim_machine sim_machine;

/* The kind of a host, and of the one the calling thread is on. */
const struct sim_host *sim_host(int host);
const struct sim_host *sim_own_host(void);

/* Devices are numbered over all hosts, those of the first host first. */
int sim_device(void);
int sim_set_device(int device);
int sim_devices(void);
int sim_host_of(int device);
int sim_local_index(int device);
int sim_device_of_bus_id(const char *bus_id, int host);

/* Whether two GPUs of a host, by local index, reach each other's memory. */
int sim_peers(int a, int b);

/* One value of an attribute, numbered as cudaDeviceAttr and CUdevice_attribute both do. */
int sim_device_attribute(int attribute, int device);

/* Address space. Memory comes from mmap without reserve: pages nobody touches cost nothing. */
void *sim_map(size_t bytes, size_t alignment);
void *sim_map_untouchable(size_t bytes);
int sim_unmap(void *address);
int sim_range_of(const void *address, void **base, size_t *bytes);
void sim_copy(void *target, const void *source, size_t bytes);
void sim_fill(void *target, int value, size_t bytes);

/* Lets ranks that wait for others go, with an error. */
void sim_abandon_meetings(void);
int sim_meet_everyone(void); /* 0 once every rank has come here, or an error */
int sim_meetings_abandoned(void);
void sim_meet_alone(int one_acts);
void sim_release_watchers(void);
void sim_release_searchers(void);
int sim_jump_bytes(void);
int sim_redirect(void *function, void *replacement);

/* Driver functions by name, as cudaGetDriverEntryPoint and cuGetProcAddress hand them out; NULL when not simulated. */
void *sim_driver_function(const char *name);

/* What was launched and what a tuner plugin was asked, since sim_record_start(). */
struct sim_kernel {
  const void *function; /* host symbol of the kernel */
  uint32_t grid_x;
  uint32_t block_x;
  int device;
};

#define SIM_MAX_ALGORITHMS 16
#define SIM_MAX_PROTOCOLS 4
#define SIM_MAX_CELLS (SIM_MAX_ALGORITHMS * SIM_MAX_PROTOCOLS)

struct sim_question {
  uint64_t bytes;
  int collective;
  int pipe_ops;
  int algorithms;
  int protocols;
  int registered; /* -1 where the plugin interface does not say */
  int channels;   /* the plugin's answer; 0 is "no opinion" */
  float before_us[SIM_MAX_CELLS]; /* row major over `protocols`, as NCCL handed it */
  float after_us[SIM_MAX_CELLS];
};

/* A collective as NCCL prepares it for its network, whether or not that is needed: its number in its kernel, its
 * channels (bit c is channel c), and ncclPattern_t, protocol and ncclDataType_t. */
struct sim_operation {
  uint64_t number;
  uint64_t channels;
  int pattern;
  int protocol;
  int type;
};

/* Where struct ncclProxyOp has them, each in its first byte, the number in eight; and the pattern of operations that are
 * the profiler's own, -1 where there are none. */
struct sim_operation_layout {
  int number;
  int channel;
  int pattern;
  int protocol;
  int type;
  int profiler;
};

/* What is launched on the stream from here goes into a CUDA graph; the end destroys the graph. */
void sim_capture_begin(const void *stream);
void sim_capture_end(void);

void sim_record_start(void);

/* What was launched has run: its work is taken. */
void sim_work_done(void);
void sim_record_kernel(const void *function, uint32_t grid_x, uint32_t block_x);
/* A question in a list of them: the pointer holds until the next one. */
struct sim_question *sim_record_question(void);
/* The question that this cell belongs to: cells are asked for in their order, so an earlier one begins a new question,
 * with empty tables. */
struct sim_question *sim_record_cell(int cell, int algorithms, int protocols);
void sim_record_operation(uint64_t number, int channel, int pattern, int protocol, int type);

struct sim_record {
  int kernels; /* how many there were; the first is here */
  int questions; /* the last is here: of one collective's, it is the one that decides */
  int operations; /* the first is here */
  struct sim_operation operation;
  struct sim_kernel kernel;
  struct sim_question question;
};

struct sim_record sim_record(void);

/* A function that is watched: redirected to something that calls it. It runs only while it is not redirected. */
#define SIM_MAX_JUMP_BYTES 16

struct sim_hook {
  void *function;
  void *replacement;
  unsigned char original[SIM_MAX_JUMP_BYTES];
};

int sim_hook(struct sim_hook *hook, void *function, void *replacement); /* 0, or errno */
void sim_hook_set(const struct sim_hook *hook, int redirected);

/* One row of what is redirected: a function of libnccl and what runs in its place. */
struct sim_redirect {
  const char *name; /* the function's own name, or the whole symbol where the arguments matter */
  void *replacement;
};

#endif
