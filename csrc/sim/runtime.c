/* The CUDA runtime that libnccl calls. Streams, events and copies are immediate; success is 0.
 *
 * Names, argument orders and the few struct offsets are those of the CUDA 12 runtime API. CUDA 13 has the same of what
 * is used of cudaDeviceProp and cudaFuncAttributes; where a function takes other arguments there, it has a row of its own.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "bill.h"
#include "export.h"
#include "machine.h"
#include "memory.h"
#include "record.h"
#include "redirect.h"

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_DEVICE = 101 };
enum { MEMORY_TYPE_DEVICE = 2, MAX_BLOCK_THREADS = 1024 };

struct dim3 {
    unsigned int x, y, z;
};

/* Anything NCCL only passes on: streams, events, pools. The address is the identity. */
static status new_object(void **object) {
    *object = calloc(1, sizeof(struct timespec)); /* which an event keeps */
    return *object == NULL ? OUT_OF_MEMORY : SUCCESS;
}

static status free_object(void *object) {
    free(object);
    return SUCCESS;
}

static status succeed(void) {
    return SUCCESS;
}

/* --- devices --- */

static status get_device(int *device) {
    *device = sim_number_of(sim_device());
    return SUCCESS;
}

static status set_device(int number) {
    return sim_set_device(sim_device_numbered(number)) == 0 ? SUCCESS : INVALID_DEVICE;
}

static status get_device_count(int *count) {
    *count = sim_seen_devices();
    return SUCCESS;
}

static status get_attribute(int *value, int attribute, int number) {
    int device = sim_device_numbered(number);
    if (device < 0) {
        return INVALID_DEVICE;
    }
    *value = sim_device_attribute(attribute, device);
    return SUCCESS;
}

/* Fields of cudaDeviceProp, by their offsets: those up to `minor` are in CUDA 13 where they are in CUDA 12. */
static status describe(char *properties, int number, int multiprocessors_at, int pci_at) {
    enum { TOTAL_MEMORY = 288, SHARED_MEMORY = 296, WARP = 308, MAX_THREADS = 320, MAJOR = 360, MINOR = 364 };
    int device = sim_device_numbered(number);
    if (device < 0) {
        return INVALID_DEVICE;
    }
    const size_t memory = SIM_MEMORY_BYTES, shared = 48 << 10;
    const int major = sim_device_attribute(75, device), minor = sim_device_attribute(76, device);
    const int multiprocessors = sim_device_attribute(16, device), warp = sim_device_attribute(10, device);
    const int threads = MAX_BLOCK_THREADS;
    snprintf(properties, 256, "simulated GPU sm_%d%d", major, minor);
    memcpy(properties + TOTAL_MEMORY, &memory, sizeof memory);
    memcpy(properties + SHARED_MEMORY, &shared, sizeof shared);
    memcpy(properties + WARP, &warp, sizeof warp);
    memcpy(properties + MAX_THREADS, &threads, sizeof threads);
    memcpy(properties + MAJOR, &major, sizeof major);
    memcpy(properties + MINOR, &minor, sizeof minor);
    memcpy(properties + multiprocessors_at, &multiprocessors, sizeof multiprocessors);
    unsigned int domain = 0, bus = 0, slot = 0;
    sscanf(sim_host(sim_host_of(device))->gpus[sim_gpu_of(device)].bus_id, "%x:%x:%x", &domain, &bus, &slot);
    memcpy(properties + pci_at, (const unsigned int[]){bus, slot, domain}, 3 * sizeof bus);
    return SUCCESS;
}

static status get_properties(void *properties, int number) { /* of CUDA 13, also inside libnccl */
    return describe(properties, number, 384, 568);
}

static status get_properties_v2(void *properties, int number) { /* of CUDA 12 */
    return describe(properties, number, 388, 584);
}

static status get_bus_id(char *bus_id, int chars, int number) {
    int device = sim_device_numbered(number);
    if (device < 0 || chars < 1) {
        return INVALID_VALUE;
    }
    snprintf(bus_id, (size_t)chars, "%s", sim_host(sim_host_of(device))->gpus[sim_gpu_of(device)].bus_id);
    return SUCCESS;
}

static status get_by_bus_id(int *device, const char *bus_id) {
    int found = sim_device_of_bus_id(bus_id, sim_host_of(sim_device()));
    *device = found < 0 ? -1 : sim_number_of(found);
    return *device < 0 ? INVALID_VALUE : SUCCESS;
}

static status can_access_peer(int *can, int number, int peer_number) {
    int device = sim_device_numbered(number), peer = sim_device_numbered(peer_number);
    if (device < 0 || peer < 0) {
        return INVALID_DEVICE;
    }
    int gpu = sim_gpu_of(device), peer_gpu = sim_gpu_of(peer);
    int same = sim_host_of(device) == sim_host_of(peer) && gpu == peer_gpu;
    *can = !same && sim_peers(gpu, peer_gpu);
    return SUCCESS;
}

static status driver_version(int *version) {
    *version = sim_machine.driver_version;
    return SUCCESS;
}

static status set_limit(int limit SIM_UNUSED, size_t value SIM_UNUSED) {
    return SUCCESS;
}

/* --- driver functions by name --- */

static status entry_point(const char *name, void **function, unsigned long long flags SIM_UNUSED, int *result) {
    *function = sim_driver_function(name);
    if (result != NULL) {
        *result = *function == NULL; /* 1: symbol not found */
    }
    return SUCCESS;
}

static status entry_point_by_version(const char *name, void **function, unsigned int version SIM_UNUSED,
                                     unsigned long long flags, int *result) {
    return entry_point(name, function, flags, result);
}

/* --- memory --- */

static status allocate_on(void **address, size_t bytes, int on_host) {
    *address = sim_map(bytes, 0);
    if (*address == NULL) {
        return OUT_OF_MEMORY;
    }
    sim_bill_add(*address, bytes, on_host);
    return SUCCESS;
}

static status allocate(void **address, size_t bytes) {
    return allocate_on(address, bytes, 0);
}

static status allocate_async(void **address, size_t bytes, void *stream SIM_UNUSED) {
    return allocate(address, bytes);
}

static status allocate_from_pool(void **address, size_t bytes, void *pool SIM_UNUSED, void *stream SIM_UNUSED) {
    return allocate(address, bytes);
}

static status host_allocate(void **address, size_t bytes, unsigned int flags SIM_UNUSED) {
    return allocate_on(address, bytes, 1);
}

static status allocate_host(void **address, size_t bytes) {
    return allocate_on(address, bytes, 1);
}

static status allocate_managed(void **address, size_t bytes, unsigned int flags SIM_UNUSED) {
    return allocate_on(address, bytes, 0);
}

static status release(void *address) {
    if (address == NULL) {
        return SUCCESS;
    }
    sim_bill_remove(address);
    sim_unmap(address);
    return SUCCESS;
}

static status release_async(void *address, void *stream SIM_UNUSED) {
    return release(address);
}

static status host_device_pointer(void **device, void *host, unsigned int flags SIM_UNUSED) {
    *device = host;
    return SUCCESS;
}

static status copy(void *target, const void *source, size_t bytes, int kind SIM_UNUSED) {
    sim_copy(target, source, bytes);
    return SUCCESS;
}

static status copy_async(void *target, const void *source, size_t bytes, int kind, void *stream SIM_UNUSED) {
    return copy(target, source, bytes, kind);
}

static status fill(void *target, int value, size_t bytes) {
    sim_fill(target, value, bytes);
    return SUCCESS;
}

static status fill_async(void *target, int value, size_t bytes, void *stream SIM_UNUSED) {
    return fill(target, value, bytes);
}

struct pointer_attributes {
    int type;
    int device;
    void *device_pointer;
    void *host_pointer;
};

static status pointer_attributes(struct pointer_attributes *attributes, const void *address) {
    *attributes =
        (struct pointer_attributes){MEMORY_TYPE_DEVICE, sim_number_of(sim_device()), (void *)(uintptr_t)address, NULL};
    return SUCCESS;
}

/* A handle for another process holds the address: here all ranks share one address space. */
enum { IPC_HANDLE_BYTES = 64 };

struct ipc_handle {
    char bytes[IPC_HANDLE_BYTES];
};

static status ipc_get(struct ipc_handle *handle, void *address) {
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &address, sizeof address);
    return SUCCESS;
}

static status ipc_open(void **address, struct ipc_handle handle, unsigned int flags SIM_UNUSED) {
    memcpy(address, &handle, sizeof *address);
    return SUCCESS;
}

/* --- streams and events --- */

static status create_with_flags(void **object, unsigned int flags SIM_UNUSED) {
    return new_object(object);
}

static status create_pool(void **pool, const void *properties SIM_UNUSED) {
    return new_object(pool);
}

/* Events: the host's clock when they were recorded, as nothing takes time on the simulated GPUs. */
static status record_event(struct timespec *event, void *stream SIM_UNUSED) {
    if (event != NULL) {
        clock_gettime(CLOCK_MONOTONIC, event);
    }
    return SUCCESS;
}

static status elapsed(float *time_ms, const struct timespec *from, const struct timespec *to) {
    *time_ms = (float)(to->tv_sec - from->tv_sec) * 1e3f + (float)(to->tv_nsec - from->tv_nsec) * 1e-6f;
    return SUCCESS;
}

static status stream_id(void *stream, unsigned long long *id) {
    *id = (unsigned long long)(uintptr_t)stream;
    return SUCCESS;
}

/* --- kernels --- */

static status function_attributes(void *attributes, const void *function SIM_UNUSED) {
    enum { MAX_THREADS = 24, KNOWN_BYTES = 40 };
    int max_threads = MAX_BLOCK_THREADS;
    memset(attributes, 0, KNOWN_BYTES);
    memcpy((char *)attributes + MAX_THREADS, &max_threads, sizeof max_threads);
    return SUCCESS;
}

static status function_by_symbol(const void **function, const void *symbol) {
    *function = symbol;
    return SUCCESS;
}

static status launch(const void *function, struct dim3 grid, struct dim3 block, void **parameters,
                     size_t shared_bytes SIM_UNUSED, void *stream) {
    struct sim_launch launched = {function, grid.x, block.x, stream, parameters, NULL};
    return sim_record_kernel(&launched);
}

/* cudaLaunchConfig_t begins so. */
struct launch_config {
    struct dim3 grid, block;
    size_t shared_bytes;
    void *stream;
};

static status launch_extended(const struct launch_config *config, const void *function, void **parameters) {
    struct sim_launch launched = {function, config->grid.x, config->block.x, config->stream, parameters, NULL};
    return sim_record_kernel(&launched);
}

/* What is redirected inside libnccl, and exported to programs that have this object loaded before them. */
#define FUNCTIONS(row)                                                                                                 \
    row(cudaGetDevice, get_device) row(cudaSetDevice, set_device) row(cudaGetDeviceCount, get_device_count) row(       \
        cudaDeviceGetAttribute, get_attribute) row(cudaGetDeviceProperties,                                            \
                                                   get_properties) row(cudaGetDeviceProperties_v2, get_properties_v2)  \
        row(cudaDeviceGetPCIBusId, get_bus_id) row(cudaDeviceGetByPCIBusId, get_by_bus_id) row(                        \
            cudaDeviceCanAccessPeer, can_access_peer) row(cudaDeviceEnablePeerAccess,                                  \
                                                          succeed) row(cudaDeviceSetLimit,                             \
                                                                       set_limit) row(cudaDeviceSynchronize, succeed)  \
            row(cudaDriverGetVersion, driver_version) row(cudaRuntimeGetVersion, driver_version) row(                  \
                cudaGetDriverEntryPoint, entry_point) row(cudaGetDriverEntryPointByVersion, entry_point_by_version)    \
                row(cudaGetLastError, succeed) row(cudaPeekAtLastError, succeed) row(cudaMalloc, allocate) row(        \
                    cudaMallocAsync, allocate_async) row(cudaMallocFromPoolAsync, allocate_from_pool)                  \
                    row(cudaFree, release) row(cudaFreeAsync, release_async) row(cudaHostAlloc, host_allocate) row(    \
                        cudaFreeHost, release) row(cudaMallocHost,                                                     \
                                                   allocate_host) row(cudaMallocManaged,                               \
                                                                      allocate_managed) row(cudaHostRegister, succeed) \
                        row(cudaHostUnregister, succeed) row(cudaHostGetDevicePointer, host_device_pointer) row(       \
                            cudaMemcpy, copy) row(cudaMemcpyAsync, copy_async) row(cudaMemcpyBatchAsync, succeed)      \
                            row(cudaMemset, fill) row(cudaMemsetAsync, fill_async) row(                                \
                                cudaPointerGetAttributes, pointer_attributes) row(cudaIpcGetMemHandle, ipc_get)        \
                                row(cudaIpcOpenMemHandle, ipc_open) row(cudaIpcCloseMemHandle, succeed) row(           \
                                    cudaMemPoolCreate, create_pool) row(cudaMemPoolDestroy, free_object)               \
                                    row(cudaMemPoolSetAttribute, succeed) row(cudaStreamCreate, new_object) row(       \
                                        cudaStreamCreateWithFlags,                                                     \
                                        create_with_flags) row(cudaStreamCreateWithPriority,                           \
                                                               create_with_flags) row(cudaStreamDestroy, free_object)  \
                                        row(cudaStreamSynchronize, succeed) row(cudaStreamWaitEvent, succeed)          \
                                            row(cudaStreamGetId, stream_id) row(cudaEventCreate, new_object)           \
                                                row(cudaEventCreateWithFlags, create_with_flags) row(                  \
                                                    cudaEventDestroy, free_object) row(cudaEventElapsedTime, elapsed)  \
                                                    row(cudaEventQuery, succeed) row(cudaEventRecord, record_event)    \
                                                        row(cudaEventSynchronize, succeed)                             \
                                                            row(cudaFuncGetAttributes, function_attributes)            \
                                                                row(cudaFuncSetAttribute, succeed)                     \
                                                                    row(cudaGetFuncBySymbol, function_by_symbol)       \
                                                                        row(cudaLaunchKernel, launch)                  \
                                                                            row(cudaLaunchKernelExC, launch_extended)

const struct sim_redirect sim_runtime_redirects[] = {FUNCTIONS(SIM_NAMED_ROW){NULL, NULL, 0}};

FUNCTIONS(SIM_NAMED_EXPORT)
