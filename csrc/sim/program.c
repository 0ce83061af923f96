/* What programs call of the CUDA runtime and libnccl does not: they find it where this object is loaded before them.
 *
 * Their own kernels do not run. nvcc makes a program hand over its kernels when it starts, and push the shape of each
 * launch before it calls the kernel's stub, which takes it back.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "export.h"
#include "machine.h"
#include "memory.h"
#include "oracle.h"
#include "redirect.h"

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2 };

static status succeed(void) {
    return SUCCESS;
}

static void nothing(void) {
}

/* A graph that can be launched: all of them do nothing. */
static status new_object(void **object) {
    *object = malloc(1);
    return *object == NULL ? OUT_OF_MEMORY : SUCCESS;
}

static status free_object(void *object) {
    free(object);
    return SUCCESS;
}

/* --- kernels --- */

static void **register_binary(void *binary SIM_UNUSED) {
    static void *handle;
    return &handle;
}

struct dim3 {
    unsigned int x, y, z;
};

static _Thread_local struct {
    struct dim3 grid, block;
    size_t shared_bytes;
    void *stream;
} pushed;

static unsigned int push(struct dim3 grid, struct dim3 block, size_t shared_bytes, void *stream) {
    pushed.grid = grid;
    pushed.block = block;
    pushed.shared_bytes = shared_bytes;
    pushed.stream = stream;
    return 0;
}

static status pop(struct dim3 *grid, struct dim3 *block, size_t *shared_bytes, void **stream) {
    *grid = pushed.grid;
    *block = pushed.block;
    *shared_bytes = pushed.shared_bytes;
    *stream = pushed.stream;
    return SUCCESS;
}

static status kernel_of_stub(const void **kernel, const void *stub) {
    *kernel = stub;
    return SUCCESS;
}

static status blocks_at_once(int *blocks) {
    *blocks = 1;
    return SUCCESS;
}

/* --- memory --- */

static status memory_info(size_t *free_bytes, size_t *all_bytes) {
    *all_bytes = SIM_MEMORY_BYTES;
    *free_bytes = SIM_MEMORY_BYTES - sim_bill_of(sim_device()).device_bytes;
    return SUCCESS;
}

static status copy_between(void *target, int to SIM_UNUSED, const void *source, int from SIM_UNUSED, size_t bytes) {
    sim_copy(target, source, bytes);
    return SUCCESS;
}

/* --- streams, graphs, words --- */

static status priorities(int *least, int *greatest) {
    *least = *greatest = 0;
    return SUCCESS;
}

static status begin_capture(const void *stream) {
    return sim_capture_begin(stream) == 0 ? SUCCESS : OUT_OF_MEMORY;
}

static status end_capture(const void *stream, void **graph) {
    *graph = sim_capture_end(stream);
    return *graph == NULL ? INVALID_VALUE : SUCCESS;
}

static status destroy_graph(void *graph) {
    sim_graph_destroy(graph);
    return SUCCESS;
}

static const char *error_name(status error) {
    return error == SUCCESS ? "cudaSuccess" : "simulated CUDA error";
}

static status limit(size_t *value) {
    *value = 0;
    return SUCCESS;
}

#define FUNCTIONS(row)                                                                                                 \
    row(__cudaRegisterFatBinary, register_binary) row(__cudaRegisterFatBinaryEnd, nothing) row(                        \
        __cudaUnregisterFatBinary, nothing) row(__cudaRegisterFunction, nothing) row(__cudaRegisterVar, nothing)       \
        row(__cudaRegisterManagedVar, nothing) row(__cudaInitModule, succeed) row(__cudaPushCallConfiguration, push)   \
            row(__cudaPopCallConfiguration, pop) row(__cudaGetKernel, kernel_of_stub) row(__cudaLaunchKernel, succeed) \
                row(cudaLaunchCooperativeKernel, succeed)                                                              \
                    row(cudaOccupancyMaxActiveBlocksPerMultiprocessor, blocks_at_once)                                 \
                        row(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, blocks_at_once)                    \
                            row(cudaMemGetInfo, memory_info) row(cudaMemcpyPeer, copy_between)                         \
                                row(cudaMemcpyPeerAsync, copy_between) row(cudaDeviceDisablePeerAccess, succeed)       \
                                    row(cudaDeviceGetLimit, limit) row(cudaDeviceGetStreamPriorityRange, priorities)   \
                                        row(cudaDeviceReset, succeed) row(cudaSetDeviceFlags, succeed)                 \
                                            row(cudaInitDevice, succeed) row(cudaStreamQuery, succeed)                 \
                                                row(cudaStreamBeginCapture, begin_capture)                             \
                                                    row(cudaStreamEndCapture, end_capture)                             \
                                                        row(cudaGraphInstantiate, new_object)                          \
                                                            row(cudaGraphInstantiateWithFlags, new_object)             \
                                                                row(cudaGraphUpload, succeed)                          \
                                                                    row(cudaGraphLaunch, succeed)                      \
                                                                        row(cudaGraphExecDestroy, free_object)         \
                                                                            row(cudaGraphDestroy, destroy_graph)       \
                                                                                row(cudaGetErrorString, error_name)    \
                                                                                    row(cudaGetErrorName, error_name)

FUNCTIONS(SIM_NAMED_EXPORT)
