/* Functions of NCCL itself that are replaced: who is on which host, and connections, which move no data here.
 *
 * What is chosen for a collective does not depend on connections: graphs, tables and channels are known before the first
 * one is made.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>

#include "sim.h"

typedef int status; /* ncclResult_t */

enum { SUCCESS = 0, SYSTEM_ERROR = 2 };

/* One process holds every host, so the identities NCCL derives from the machine come from the rank's device. */
static uint64_t host_hash(void) { return 0x1000u + (uint64_t)sim_host_of(sim_device()); }

/* As in a job with one process per GPU. */
static uint64_t process_hash(void) { return 0x2000u + (uint64_t)sim_device(); }

static status succeed(void) { return SUCCESS; }

static void nothing(void) {}

/* A topology file's CPU masks are another machine's: bind nothing. An empty set is NCCL's "do not bind". */
static status no_affinity(void *system SIM_UNUSED, int rank SIM_UNUSED, void *cpu_set) {
  enum { CPU_SET_BYTES = 128 };
  memset(cpu_set, 0, CPU_SET_BYTES);
  return SUCCESS;
}

/* Where struct ncclProxyOp has its pattern and its protocol, each a byte; -1: not known. */
static int pattern_offset = -1, protocol_offset = -1;

SIM_EXPORT void sim_watch_operations(int pattern, int protocol) {
  pattern_offset = pattern;
  protocol_offset = protocol;
}

/* Asked whether an operation needs the proxy, or to hand it one: it never does. */
static status no_proxy(void *comm SIM_UNUSED, const unsigned char *operation, bool *needed) {
  if (pattern_offset >= 0) sim_record_operation(operation[pattern_offset], operation[protocol_offset]);
  if (needed != NULL) *needed = false;
  return SUCCESS;
}

/* A peer's memory as a file descriptor, which the simulated driver takes and NCCL closes. */
static status peer_descriptor(void *comm SIM_UNUSED, uintptr_t peer SIM_UNUSED, uintptr_t handle SIM_UNUSED,
                              int *descriptor) {
  *descriptor = open("/dev/null", O_RDONLY | O_CLOEXEC);
  return *descriptor < 0 ? SYSTEM_ERROR : SUCCESS;
}

/* The ranks of a node tell each other what they have registered. Only one rank is asked for a collective; the others
 * would do as it does, so they would say the same. */
static status node_says_the_same(void *comm SIM_UNUSED, void *memory SIM_UNUSED, void *own, void *all, size_t bytes) {
  for (int i = 0; i < sim_machine.gpus_per_host; i++) memcpy((char *)all + (size_t)i * bytes, own, bytes);
  return SUCCESS;
}

/* This computer's own PCI devices are not the topology's: none of its bus ids is found here. */
static status no_pci_path(const char *bus_id SIM_UNUSED, char **path) {
  *path = NULL;
  return SYSTEM_ERROR;
}

#define ROW(name, function) {name, (void *)(uintptr_t)(function)}

/* By the function's own name, whatever its arguments; a release that lacks one has nothing to replace. */
const struct sim_redirect sim_nccl_redirects[] = {
    ROW("getHostHash", host_hash),
    ROW("getPidHash", process_hash),
    ROW("setEnvFile", nothing), /* nccl.conf of this machine or user */
    ROW("getPciPath", no_pci_path),
    ROW("ncclTopoGetCpuAffinity", no_affinity),
    ROW("ncclOsSetAffinity", succeed),
    ROW("ncclTopoPrintPaths", succeed), /* a log line; up to 2.20 it overruns its buffer where there are 32 adapters */
    ROW("ncclShmemAllgather", node_says_the_same),
    ROW("ncclTransportP2pSetup", succeed),
    ROW("ncclTransportRingConnect", succeed),
    ROW("ncclTransportTreeConnect", succeed),
    ROW("ncclTransportPatConnect", succeed),
    ROW("ncclNvlsTreeConnect", succeed),
    ROW("ncclNvlsBufferSetup", succeed),
    ROW("ncclTransportCollNetSetup", succeed),
    ROW("ncclCollNetChainBufferSetup", succeed),
    ROW("ncclCollNetDirectBufferSetup", succeed),
    ROW("ncclProxyCreate", succeed),
    ROW("ncclProxyConnect", succeed),
    ROW("ncclProxyClientGetFdBlocking", peer_descriptor),
    ROW("ncclProxyClientConvertFdBlocking", peer_descriptor), /* up to 2.18 */
    ROW("ncclProxyCallBlocking", succeed),
    ROW("ncclProxyShmUnlink", succeed),
    ROW("ncclProxyStart", succeed),
    ROW("ncclProxySaveOp", no_proxy),
    {NULL, NULL},
};
