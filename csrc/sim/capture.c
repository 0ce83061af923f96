/* A stream whose work goes into a CUDA graph instead of being run. The graph is never launched: kernels are written down
 * as if they were, and all else in it is forgotten. */
#include <stdlib.h>

#include "export.h"
#include "record.h"
#include "redirect.h"

typedef int status; /* cudaError_t */

enum { SUCCESS = 0, OUT_OF_MEMORY = 2 };

/* What is to be called when a graph that keeps it is destroyed. */
struct user_object {
    void (*destroy)(void *argument);
    void *argument;
    struct user_object *next;
};

static struct {
    const void *stream; /* NULL: nothing is captured */
    unsigned long long id;
    struct user_object *kept;
} graph;

void sim_capture_begin(const void *stream) {
    graph.stream = stream;
    graph.id++;
}

/* The graph is complete, and destroyed at once. */
void sim_capture_end(void) {
    graph.stream = NULL;
    while (graph.kept != NULL) {
        struct user_object *object = graph.kept;
        graph.kept = object->next;
        object->destroy(object->argument);
        free(object);
    }
}

static status is_capturing(const void *stream, int *capturing) {
    *capturing = stream != NULL && stream == graph.stream;
    return SUCCESS;
}

static status info(const void *stream, int *capturing, unsigned long long *id) {
    is_capturing(stream, capturing);
    if (id != NULL && *capturing)
        *id = graph.id;
    return SUCCESS;
}

/* Nodes that the stream's next one would depend on: none. */
static status info_v2(const void *stream, int *capturing, unsigned long long *id, void **captured_in, void **nodes,
                      size_t *n_nodes) {
    if (captured_in != NULL)
        *captured_in = &graph;
    if (nodes != NULL)
        *nodes = NULL;
    if (n_nodes != NULL)
        *n_nodes = 0;
    return info(stream, capturing, id);
}

static status info_v3(const void *stream, int *capturing, unsigned long long *id, void **captured_in, void **nodes,
                      void **edges, size_t *n_nodes) {
    if (edges != NULL)
        *edges = NULL;
    return info_v2(stream, capturing, id, captured_in, nodes, n_nodes);
}

static status create_object(struct user_object **object, void *argument, void (*destroy)(void *)) {
    *object = malloc(sizeof **object);
    if (*object == NULL)
        return OUT_OF_MEMORY;
    **object = (struct user_object){destroy, argument, NULL};
    return SUCCESS;
}

static status keep_object(void *kept_in SIM_UNUSED, struct user_object *object) {
    object->next = graph.kept;
    graph.kept = object;
    return SUCCESS;
}

static status add_node(void **node) {
    *node = &graph;
    return SUCCESS;
}

/* cudaKernelNodeParams begins with the function, and the grid and block in three numbers each. */
struct kernel_node {
    const void *function;
    unsigned int grid[3];
    unsigned int block[3];
};

static status add_kernel_node(void **node, void *added_to SIM_UNUSED, const void *after SIM_UNUSED, size_t n SIM_UNUSED,
                              const struct kernel_node *kernel) {
    sim_record_kernel(kernel->function, kernel->grid[0], kernel->block[0]);
    return add_node(node);
}

static status launch_host_function(void *stream SIM_UNUSED, void (*function)(void *), void *argument) {
    if (graph.stream == NULL)
        function(argument);
    return SUCCESS;
}

static status succeed(void) {
    return SUCCESS;
}

const struct sim_redirect sim_capture_redirects[] = {
    SIM_ROW("cudaStreamIsCapturing", is_capturing),
    SIM_ROW_OF_CUDA(12, "cudaStreamGetCaptureInfo", info),
    SIM_ROW_OF_CUDA(13, "cudaStreamGetCaptureInfo", info_v3), /* CUDA 12's _v3 by another name */
    SIM_ROW("cudaStreamGetCaptureInfo_v2", info_v2),
    SIM_ROW("cudaStreamGetCaptureInfo_v3", info_v3),
    SIM_ROW("cudaStreamUpdateCaptureDependencies", succeed),
    SIM_ROW("cudaStreamUpdateCaptureDependencies_v2", succeed),
    SIM_ROW("cudaThreadExchangeStreamCaptureMode", succeed),
    SIM_ROW("cudaUserObjectCreate", create_object),
    SIM_ROW("cudaGraphRetainUserObject", keep_object),
    SIM_ROW("cudaGraphAddDependencies", succeed),
    SIM_ROW("cudaGraphAddDependencies_v2", succeed),
    SIM_ROW("cudaGraphAddEventRecordNode", add_node),
    SIM_ROW("cudaGraphAddEventWaitNode", add_node),
    SIM_ROW("cudaGraphAddHostNode", add_node),
    SIM_ROW("cudaGraphAddKernelNode", add_kernel_node),
    SIM_ROW("cudaLaunchHostFunc", launch_host_function),
    {NULL, NULL, 0},
};
