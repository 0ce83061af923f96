/* The CUDA driver: the cu* functions NCCL looks up by name, and libcuda.so itself for releases that open it.
 *
 * Virtual memory is mapped when its addresses are reserved; handles are never looked at again.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "bill.h"
#include "export.h"
#include "machine.h"
#include "memory.h"
#include "record.h"
#include "redirect.h"

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_DEVICE = 101, NOT_FOUND = 500, NOT_SUPPORTED = 801 };

static const size_t granularity_bytes = (size_t)2 << 20;

static status succeed(void) {
    return SUCCESS;
}

static status error_string(status error SIM_UNUSED, const char **text) {
    *text = "simulated driver error";
    return SUCCESS;
}

static status device_get(int *device, int ordinal) {
    if (sim_device_numbered(ordinal) < 0) {
        return INVALID_DEVICE;
    }
    *device = ordinal;
    return SUCCESS;
}

static status device_get_attribute(int *value, int attribute, int number) {
    int device = sim_device_numbered(number);
    if (device < 0) {
        return INVALID_DEVICE;
    }
    *value = sim_device_attribute(attribute, device);
    return SUCCESS;
}

static status device_get_uuid(unsigned char uuid[16], int number) {
    int device = sim_device_numbered(number);
    if (device < 0) {
        return INVALID_DEVICE;
    }
    int gpu[] = {sim_host_of(device), sim_gpu_of(device)};
    memset(uuid, 0, 16);
    memcpy(uuid, gpu, sizeof gpu);
    uuid[15] = 1; /* no device has the all-zero identity */
    return SUCCESS;
}

/* --- contexts: one per device, never NULL --- */

static void *context_of(int device) {
    return (void *)(uintptr_t)(device + 1);
}

static status context_create(void **context, unsigned int flags SIM_UNUSED, int number) {
    *context = context_of(sim_device_numbered(number));
    return SUCCESS;
}

static status context_get_current(void **context) {
    *context = context_of(sim_device());
    return SUCCESS;
}

static status context_set_current(void *context) {
    if (context != NULL) {
        sim_set_device((int)(uintptr_t)context - 1);
    }
    return SUCCESS;
}

static status context_get_device(int *device) {
    *device = sim_number_of(sim_device());
    return SUCCESS;
}

/* --- virtual memory --- */

static status address_reserve(void **address, size_t bytes, size_t alignment, void *fixed SIM_UNUSED,
                              unsigned long long flags SIM_UNUSED) {
    *address = sim_map(bytes, alignment < granularity_bytes ? granularity_bytes : alignment);
    return *address == NULL ? OUT_OF_MEMORY : SUCCESS;
}

static status address_free(void *address, size_t bytes SIM_UNUSED) {
    return sim_unmap(address) == 0 ? SUCCESS : INVALID_VALUE;
}

static status address_range(void **base, size_t *bytes, void *address) {
    return sim_range_of(address, base, bytes) == 0 ? SUCCESS : INVALID_VALUE;
}

/* Handles begin after the one that stands for memory of others. */
enum { OF_OTHERS = 1 };

static uint64_t new_handle(void) {
    static uint64_t next = OF_OTHERS + 1;
    return __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED);
}

/* CUmemAllocationProp: the type, the handle types, and where the memory is. */
static status memory_create(uint64_t *handle, size_t bytes, const int *properties,
                            unsigned long long flags SIM_UNUSED) {
    enum { LOCATION_TYPE = 2, DEVICE = 1 };
    *handle = new_handle();
    sim_bill_create(*handle, bytes, properties[LOCATION_TYPE] != DEVICE);
    return SUCCESS;
}

static status memory_map(void *address, size_t bytes SIM_UNUSED, size_t offset SIM_UNUSED, uint64_t handle,
                         unsigned long long flags SIM_UNUSED) {
    sim_bill_map(address, handle);
    return SUCCESS;
}

static status memory_unmap(void *address, size_t bytes SIM_UNUSED) {
    sim_bill_unmap(address);
    return SUCCESS;
}

static status memory_release(uint64_t handle) {
    sim_bill_let_go(handle);
    return SUCCESS;
}

static status memory_granularity(size_t *bytes, const void *properties SIM_UNUSED, int option SIM_UNUSED) {
    *bytes = granularity_bytes;
    return SUCCESS;
}

/* Whether an address is of buffers of collectives that are as cudaMalloc makes them, PyTorch's among them: no other
 * process maps them, and no multicast object binds them. */
static int from_cuda_malloc(void *address) {
    const char *memory = getenv("NCCL_TUNER_SIM_MEMORY");
    return memory != NULL && strcmp(memory, "cudaMalloc") == 0 && sim_bill_handle_at(address) == 0;
}

static status bind_address(uint64_t multicast SIM_UNUSED, size_t offset SIM_UNUSED, void *address,
                           size_t bytes SIM_UNUSED, unsigned long long flags SIM_UNUSED) {
    return from_cuda_malloc(address) ? INVALID_VALUE : SUCCESS;
}

static status memory_retain(uint64_t *handle, void *address) {
    if (from_cuda_malloc(address)) {
        return INVALID_VALUE;
    }
    uint64_t own = sim_bill_handle_at(address);
    *handle = own == 0 ? OF_OTHERS : own;
    sim_bill_hold(*handle);
    return SUCCESS;
}

/* CUmemAllocationHandleType */
enum { FILE_DESCRIPTOR = 1, FABRIC = 8 };

static int shareable_kinds(void) {
    return sim_device_attribute(128, sim_device()) ? FILE_DESCRIPTOR | FABRIC : FILE_DESCRIPTOR;
}

/* A file descriptor, which NCCL closes; or a fabric handle, which every host of a NVLink domain can open. */
static status memory_export(void *shareable, uint64_t handle, int kind, unsigned long long flags SIM_UNUSED) {
    enum { FABRIC_HANDLE_BYTES = 64 };
    if (kind == FABRIC) {
        memset(shareable, 0, FABRIC_HANDLE_BYTES);
        memcpy(shareable, &handle, sizeof handle);
        return shareable_kinds() & FABRIC ? SUCCESS : NOT_SUPPORTED;
    }
    int descriptor = open("/dev/null", O_RDONLY | O_CLOEXEC);
    memcpy(shareable, &descriptor, sizeof descriptor);
    return descriptor < 0 ? OUT_OF_MEMORY : SUCCESS;
}

static status memory_import(uint64_t *handle, void *shareable SIM_UNUSED, int kind SIM_UNUSED) {
    *handle = OF_OTHERS;
    return SUCCESS;
}

/* CUmemAllocationProp begins with the type, the handle types and the location's type and device. */
static status memory_properties(int *properties, uint64_t handle SIM_UNUSED) {
    enum { PINNED = 1, DEVICE = 1 };
    properties[0] = PINNED;
    properties[1] = shareable_kinds();
    properties[2] = DEVICE;
    properties[3] = sim_number_of(sim_device());
    return SUCCESS;
}

static status multicast_create(uint64_t *handle, const void *properties SIM_UNUSED) {
    *handle = new_handle();
    return SUCCESS;
}

static status pointer_attribute(void *value, int attribute, void *address) {
    enum { DEVICE_ORDINAL = 9, LEGACY_IPC = 10, MAPPED = 13, HANDLE_TYPES = 14 };
    int legacy = from_cuda_malloc(address);
    int number = attribute == DEVICE_ORDINAL ? sim_number_of(sim_device())
                 : attribute == HANDLE_TYPES ? (legacy ? 0 : shareable_kinds())
                 : attribute == LEGACY_IPC   ? legacy
                                             : attribute == MAPPED;
    memcpy(value, &number, sizeof number);
    return SUCCESS;
}

/* --- launches --- */

/* CUlaunchConfig begins so. */
struct launch_config {
    uint32_t grid[3], block[3], shared_bytes;
    void *stream;
};

static status launch_extended(const struct launch_config *config, const void *function, void **parameters,
                              void **extra) {
    struct sim_launch launched = {function, config->grid[0], config->block[0], config->stream, parameters, extra};
    return sim_record_kernel(&launched);
}

static status launch(const void *function, uint32_t grid_x, uint32_t grid_y SIM_UNUSED, uint32_t grid_z SIM_UNUSED,
                     uint32_t block_x, uint32_t block_y SIM_UNUSED, uint32_t block_z SIM_UNUSED,
                     uint32_t shared_bytes SIM_UNUSED, void *stream, void **parameters, void **extra) {
    struct sim_launch launched = {function, grid_x, block_x, stream, parameters, extra};
    return sim_record_kernel(&launched);
}

static status get_proc_address(const char *name, void **function, int version SIM_UNUSED,
                               unsigned long long flags SIM_UNUSED) {
    *function = sim_driver_function(name);
    return *function == NULL ? NOT_FOUND : SUCCESS;
}

static status get_proc_address_v2(const char *name, void **function, int version, unsigned long long flags,
                                  int *result) {
    status found = get_proc_address(name, function, version, flags);
    if (result != NULL) {
        *result = found != SUCCESS;
    }
    return found;
}

static status get_version(int *version) {
    *version = sim_machine.driver_version;
    return SUCCESS;
}

static const struct sim_redirect functions[] = {
    SIM_ROW("cuGetErrorString", error_string),
    SIM_ROW("cuGetErrorName", error_string),
    SIM_ROW("cuInit", succeed),
    SIM_ROW("cuDriverGetVersion", get_version),
    SIM_ROW("cuGetProcAddress", get_proc_address),
    SIM_ROW("cuGetProcAddress_v2", get_proc_address_v2),
    SIM_ROW("cuDeviceGet", device_get),
    SIM_ROW("cuDeviceGetAttribute", device_get_attribute),
    SIM_ROW("cuDeviceGetUuid", device_get_uuid),
    SIM_ROW("cuCtxCreate", context_create),
    SIM_ROW("cuCtxDestroy", succeed),
    SIM_ROW("cuCtxGetCurrent", context_get_current),
    SIM_ROW("cuCtxSetCurrent", context_set_current),
    SIM_ROW("cuCtxGetDevice", context_get_device),
    SIM_ROW("cuMemGetAddressRange", address_range),
    SIM_ROW("cuMemAddressReserve", address_reserve),
    SIM_ROW("cuMemAddressFree", address_free),
    SIM_ROW("cuMemCreate", memory_create),
    SIM_ROW("cuMemGetAllocationGranularity", memory_granularity),
    SIM_ROW("cuMemExportToShareableHandle", memory_export),
    SIM_ROW("cuMemImportFromShareableHandle", memory_import),
    SIM_ROW("cuMemMap", memory_map),
    SIM_ROW("cuMemUnmap", memory_unmap),
    SIM_ROW("cuMemSetAccess", succeed),
    SIM_ROW("cuMemRelease", memory_release),
    SIM_ROW("cuMemRetainAllocationHandle", memory_retain),
    SIM_ROW("cuMemGetAllocationPropertiesFromHandle", memory_properties),
    SIM_ROW("cuPointerGetAttribute", pointer_attribute),
    SIM_ROW("cuMulticastCreate", multicast_create),
    SIM_ROW("cuMulticastAddDevice", succeed),
    SIM_ROW("cuMulticastBindMem", succeed),
    SIM_ROW("cuMulticastBindAddr", bind_address),
    SIM_ROW("cuMulticastUnbind", succeed),
    SIM_ROW("cuMulticastGetGranularity", memory_granularity),
    SIM_ROW("cuStreamBatchMemOp", succeed),
    SIM_ROW("cuStreamWaitValue32", succeed),
    SIM_ROW("cuStreamWaitValue64", succeed),
    SIM_ROW("cuStreamWriteValue32", succeed),
    SIM_ROW("cuStreamWriteValue64", succeed),
    SIM_ROW("cuLaunchKernel", launch),
    SIM_ROW("cuLaunchKernelEx", launch_extended),
    {NULL, NULL, 0},
};

void *sim_driver_function(const char *name) {
    /* A driver without multicast is what a machine without NVLS has, but only the attribute says so: keep it one way. */
    for (const struct sim_redirect *row = functions; row->name != NULL; row++) {
        if (strcmp(row->name, name) == 0) {
            return row->replacement;
        }
    }
    return NULL;
}

/* libcuda.so itself, for releases that open it and take these three from it. */
SIM_EXPORT status cuInit(unsigned int flags SIM_UNUSED) {
    return SUCCESS;
}
SIM_EXPORT status cuDriverGetVersion(int *version) {
    return get_version(version);
}
SIM_EXPORT status cuGetProcAddress(const char *name, void **function, int version, unsigned long long flags) {
    return get_proc_address(name, function, version, flags);
}
SIM_EXPORT status cuGetProcAddress_v2(const char *name, void **function, int version, unsigned long long flags,
                                      int *result) {
    return get_proc_address_v2(name, function, version, flags, result);
}
