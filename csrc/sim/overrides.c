/* Functions of NCCL itself that are replaced: who is on which host, and connections, which move no data here.
 *
 * What is chosen for a collective does not depend on connections: graphs, tables and channels are known before the first
 * one is made.
 */
#define _GNU_SOURCE
#include <ctype.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "double.h"
#include "export.h"
#include "machine.h"
#include "record.h"
#include "redirect.h"

enum { SUCCESS = 0, SYSTEM_ERROR = 2 };

/* One process holds every host, so the identities NCCL derives from the machine come from the rank's device. */
static uint64_t host_hash(void) {
    return (uint64_t)SIM_HOST_HASH + (uint64_t)sim_host_of(sim_device());
}

/* A process of the job is that of its first rank here; `process` is not 0 where it is one of its own. */
static uint64_t process;

SIM_EXPORT void sim_identify_process(int number) {
    process = (uint64_t)number;
}

static uint64_t process_hash(void) {
    int device = sim_device(), behind_first = sim_local_rank(device) % sim_machine.ranks_per_process;
    return 0x2000u + process * SIM_MAX_RANKS + (uint64_t)(device - behind_first);
}

static status succeed(void) {
    return SUCCESS;
}

static void nothing(void) {
}

/* A topology file's CPU masks are another machine's: bind nothing. An empty set is NCCL's "do not bind". */
static status no_affinity(void *system SIM_UNUSED, int rank SIM_UNUSED, void *cpu_set) {
    enum { CPU_SET_BYTES = 128 };
    memset(cpu_set, 0, CPU_SET_BYTES);
    return SUCCESS;
}

static struct sim_operation_layout layout;

SIM_EXPORT void sim_record_operations(const struct sim_operation_layout *known) {
    layout = *known;
}

/* Asked whether an operation needs the proxy, or to hand it one: it never does. */
static status no_proxy(void *comm, const unsigned char *operation, bool *needed) {
    int pattern = operation[layout.pattern];
    if (pattern != layout.profiler) {
        struct sim_operation seen = {.pattern = pattern, .comm = comm};
        memcpy(&seen.number, operation + layout.number, sizeof seen.number);
        seen.protocol = operation[layout.protocol];
        seen.type = operation[layout.type];
        memcpy(&seen.chunk_bytes, operation + layout.chunk, sizeof seen.chunk_bytes);
        sim_record_operation(operation[layout.channel], &seen);
        sim_keep_proxy_operation(operation);
    }
    if (needed != NULL) {
        *needed = false;
    }
    return SUCCESS;
}

/* A peer's memory as a file descriptor, which the simulated driver takes and NCCL closes. */
static status peer_descriptor(void *comm SIM_UNUSED, uintptr_t peer SIM_UNUSED, uintptr_t handle SIM_UNUSED,
                              int *descriptor) {
    *descriptor = open("/dev/null", O_RDONLY | O_CLOEXEC);
    return *descriptor < 0 ? SYSTEM_ERROR : SUCCESS;
}

/* Asked over a connection. Where the answer is one pointer it is a peer's address or a handle of registered memory. */
static status proxy_call(void *comm SIM_UNUSED, void *connection SIM_UNUSED, int type SIM_UNUSED,
                         void *request SIM_UNUSED, int request_bytes SIM_UNUSED, void *answer, int answer_bytes) {
    static const uintptr_t somewhere = 0x1000;
    if (answer != NULL && answer_bytes == sizeof somewhere) {
        memcpy(answer, &somewhere, sizeof somewhere);
    }
    return SUCCESS;
}

static uint64_t local_ranks_at;

SIM_EXPORT void sim_locate_local_ranks(uint64_t offset) {
    local_ranks_at = offset;
}

/* The ranks of a node tell each other what they have registered. Only one rank is asked for a collective; the others
 * would do as it does, so they would say the same. A node may be a part of a host, or several. */
static status node_says_the_same(const char *comm, void *memory SIM_UNUSED, void *own, void *all, size_t bytes) {
    int ranks;
    memcpy(&ranks, comm + local_ranks_at, sizeof ranks);
    for (int i = 0; i < ranks; i++) {
        memcpy((char *)all + (size_t)i * bytes, own, bytes);
    }
    return SUCCESS;
}

/* This computer's own PCI devices are not the topology's: only those of the simulated machine's sysfs are found. */
static status pci_path(const char *bus_id, char **path) {
    const char *sysfs = sim_own_host()->sysfs;
    char folder[SIM_PATH_CHARS + SIM_BUS_ID_CHARS];
    int chars = snprintf(folder, sizeof folder, "%s/", sysfs);
    for (; *bus_id != '\0' && chars < (int)sizeof folder - 1; bus_id++) {
        folder[chars++] = (char)tolower(*bus_id);
    }
    folder[chars] = '\0';
    *path = sysfs[0] == '\0' ? NULL : realpath(folder, NULL);
    return *path == NULL ? SYSTEM_ERROR : SUCCESS;
}

/* By the function's own name, whatever its arguments; a release that lacks one has nothing to replace. */
const struct sim_redirect sim_nccl_redirects[] = {
    SIM_ROW("getHostHash", host_hash),
    SIM_ROW("getPidHash", process_hash),
    SIM_ROW("setEnvFile", nothing), /* nccl.conf of this machine or user */
    SIM_ROW("getPciPath", pci_path),
    SIM_ROW("ncclOsGetPciPath", pci_path), /* from 2.30.7 */
    SIM_ROW("ncclTopoGetCpuAffinity", no_affinity),
    SIM_ROW("ncclOsSetAffinity", succeed),
    SIM_ROW("ncclTopoPrintPaths",
            succeed), /* a log line; up to 2.20 it overruns its buffer where there are 32 adapters */
    SIM_ROW("ncclShmemAllgather", node_says_the_same),
    SIM_ROW("ncclTransportP2pSetup", succeed),
    SIM_ROW("ncclTransportRingConnect", succeed),
    SIM_ROW("ncclTransportTreeConnect", succeed),
    SIM_ROW("ncclNvlsTreeConnect", succeed),
    SIM_ROW("ncclNvlsBufferSetup", succeed),
    SIM_ROW("ncclTransportCollNetSetup", succeed),
    SIM_ROW("ncclCollNetChainBufferSetup", succeed),
    SIM_ROW("ncclCollNetDirectBufferSetup", succeed),
    SIM_ROW("ncclProxyCreate", succeed),
    SIM_ROW("ncclProxyConnect", succeed),
    SIM_ROW("ncclProxyClientGetFdBlocking", peer_descriptor),
    SIM_ROW("ncclProxyClientConvertFdBlocking", peer_descriptor), /* up to 2.18 */
    SIM_ROW("ncclProxyClientQueryFdBlocking", peer_descriptor),
    SIM_ROW("ncclProxyCallBlocking", proxy_call),
    SIM_ROW("ncclProxyShmUnlink", succeed),
    SIM_ROW("ncclProxyStart", succeed),
    SIM_ROW("ncclProxySaveOp", no_proxy),
    SIM_ROW("ncclProfilerPostPlanWork", succeed), /* from 2.31: for a thread that sees kernels */
    {NULL, NULL, 0},
};
