/* The CUDA runtime that libnccl calls. Streams, events and copies are immediate; success is 0.
 *
 * Names, argument orders and the few struct offsets are those of the CUDA 12 runtime API. CUDA 13 has the same of what
 * is used of cudaDeviceProp and cudaFuncAttributes; where a function takes other arguments there, it has a row of its own.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "bill.h"
#include "export.h"
#include "machine.h"
#include "memory.h"
#include "record.h"
#include "redirect.h"

typedef int status; /* cudaError_t */

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_DEVICE = 101 };
enum { MEMORY_TYPE_DEVICE = 2 };

struct dim3 {
    unsigned int x, y, z;
};

/* Anything NCCL only passes on: streams, events, pools. The address is the identity. */
static status new_object(void **object) {
    *object = malloc(16);
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
    *device = sim_device();
    return SUCCESS;
}

static status set_device(int device) {
    return sim_set_device(device) == 0 ? SUCCESS : INVALID_DEVICE;
}

static status get_device_count(int *count) {
    *count = sim_devices();
    return SUCCESS;
}

static status get_attribute(int *value, int attribute, int device) {
    if (device < 0 || device >= sim_devices())
        return INVALID_DEVICE;
    *value = sim_device_attribute(attribute, device);
    return SUCCESS;
}

/* Fields of cudaDeviceProp that NCCL reads, by their offsets, in CUDA 13 as in CUDA 12. */
static status get_properties(void *properties, int device) {
    enum { NAME = 0, TOTAL_MEMORY = 288, MAJOR = 360, MINOR = 364 };
    if (device < 0 || device >= sim_devices())
        return INVALID_DEVICE;
    char *bytes = properties;
    size_t memory = (size_t)80 << 30;
    int major = sim_device_attribute(75, device), minor = sim_device_attribute(76, device);
    snprintf(bytes + NAME, 256, "simulated GPU sm_%d%d", major, minor);
    memcpy(bytes + TOTAL_MEMORY, &memory, sizeof memory);
    memcpy(bytes + MAJOR, &major, sizeof major);
    memcpy(bytes + MINOR, &minor, sizeof minor);
    return SUCCESS;
}

static status get_bus_id(char *bus_id, int chars, int device) {
    if (device < 0 || device >= sim_devices() || chars < 1)
        return INVALID_VALUE;
    snprintf(bus_id, (size_t)chars, "%s", sim_host(sim_host_of(device))->gpus[sim_gpu_of(device)].bus_id);
    return SUCCESS;
}

static status get_by_bus_id(int *device, const char *bus_id) {
    *device = sim_device_of_bus_id(bus_id, sim_host_of(sim_device()));
    return *device < 0 ? INVALID_VALUE : SUCCESS;
}

static status can_access_peer(int *can, int device, int peer) {
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
    if (result != NULL)
        *result = *function == NULL; /* 1: symbol not found */
    return SUCCESS;
}

static status entry_point_by_version(const char *name, void **function, unsigned int version SIM_UNUSED,
                                     unsigned long long flags, int *result) {
    return entry_point(name, function, flags, result);
}

/* --- memory --- */

static status allocate_on(void **address, size_t bytes, int on_host) {
    *address = sim_map(bytes, 0);
    if (*address == NULL)
        return OUT_OF_MEMORY;
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

static status release(void *address) {
    if (address == NULL)
        return SUCCESS;
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
    *attributes = (struct pointer_attributes){MEMORY_TYPE_DEVICE, sim_device(), (void *)(uintptr_t)address, NULL};
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

static status stream_id(void *stream, unsigned long long *id) {
    *id = (unsigned long long)(uintptr_t)stream;
    return SUCCESS;
}

/* --- kernels --- */

static status function_attributes(void *attributes, const void *function SIM_UNUSED) {
    enum { MAX_THREADS = 24, KNOWN_BYTES = 40 };
    int max_threads = 1024;
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

const struct sim_redirect sim_runtime_redirects[] = {
    SIM_ROW("cudaGetDevice", get_device),
    SIM_ROW("cudaSetDevice", set_device),
    SIM_ROW("cudaGetDeviceCount", get_device_count),
    SIM_ROW("cudaDeviceGetAttribute", get_attribute),
    SIM_ROW("cudaGetDeviceProperties", get_properties),
    SIM_ROW("cudaGetDeviceProperties_v2", get_properties),
    SIM_ROW("cudaDeviceGetPCIBusId", get_bus_id),
    SIM_ROW("cudaDeviceGetByPCIBusId", get_by_bus_id),
    SIM_ROW("cudaDeviceCanAccessPeer", can_access_peer),
    SIM_ROW("cudaDeviceEnablePeerAccess", succeed),
    SIM_ROW("cudaDeviceSetLimit", set_limit),
    SIM_ROW("cudaDeviceSynchronize", succeed),
    SIM_ROW("cudaDriverGetVersion", driver_version),
    SIM_ROW("cudaGetDriverEntryPoint", entry_point),
    SIM_ROW("cudaGetDriverEntryPointByVersion", entry_point_by_version),
    SIM_ROW("cudaGetLastError", succeed),
    SIM_ROW("cudaPeekAtLastError", succeed),
    SIM_ROW("cudaMalloc", allocate),
    SIM_ROW("cudaMallocAsync", allocate_async),
    SIM_ROW("cudaMallocFromPoolAsync", allocate_from_pool),
    SIM_ROW("cudaFree", release),
    SIM_ROW("cudaFreeAsync", release_async),
    SIM_ROW("cudaHostAlloc", host_allocate),
    SIM_ROW("cudaFreeHost", release),
    SIM_ROW("cudaHostRegister", succeed),
    SIM_ROW("cudaHostUnregister", succeed),
    SIM_ROW("cudaHostGetDevicePointer", host_device_pointer),
    SIM_ROW("cudaMemcpy", copy),
    SIM_ROW("cudaMemcpyAsync", copy_async),
    SIM_ROW("cudaMemcpyBatchAsync", succeed),
    SIM_ROW("cudaMemset", fill),
    SIM_ROW("cudaMemsetAsync", fill_async),
    SIM_ROW("cudaPointerGetAttributes", pointer_attributes),
    SIM_ROW("cudaIpcGetMemHandle", ipc_get),
    SIM_ROW("cudaIpcOpenMemHandle", ipc_open),
    SIM_ROW("cudaIpcCloseMemHandle", succeed),
    SIM_ROW("cudaMemPoolCreate", create_pool),
    SIM_ROW("cudaMemPoolDestroy", free_object),
    SIM_ROW("cudaMemPoolSetAttribute", succeed),
    SIM_ROW("cudaStreamCreate", new_object),
    SIM_ROW("cudaStreamCreateWithFlags", create_with_flags),
    SIM_ROW("cudaStreamDestroy", free_object),
    SIM_ROW("cudaStreamSynchronize", succeed),
    SIM_ROW("cudaStreamWaitEvent", succeed),
    SIM_ROW("cudaStreamGetId", stream_id),
    SIM_ROW("cudaEventCreate", new_object),
    SIM_ROW("cudaEventCreateWithFlags", create_with_flags),
    SIM_ROW("cudaEventDestroy", free_object),
    SIM_ROW("cudaEventQuery", succeed),
    SIM_ROW("cudaEventRecord", succeed),
    SIM_ROW("cudaEventSynchronize", succeed),
    SIM_ROW("cudaFuncGetAttributes", function_attributes),
    SIM_ROW("cudaFuncSetAttribute", succeed),
    SIM_ROW("cudaGetFuncBySymbol", function_by_symbol),
    SIM_ROW("cudaLaunchKernel", launch),
    SIM_ROW("cudaLaunchKernelExC", launch_extended),
    {NULL, NULL, 0},
};
