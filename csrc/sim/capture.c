/* Streams whose work goes into a CUDA graph instead of being run. Kernels are written down as if they were launched. Of all
 * else a graph keeps what the host does, which it does at each launch of the graph. */
#include "capture.h"

#include <pthread.h>
#include <stdlib.h>

#include "export.h"
#include "oracle.h"
#include "record.h"
#include "redirect.h"

enum { SUCCESS = 0, OUT_OF_MEMORY = 2 };

/* What is to be called when a graph that keeps it is destroyed. */
struct user_object {
    void (*destroy)(void *argument);
    void *argument;
    struct user_object *next;
};

struct host_node {
    void (*function)(void *argument);
    void *argument;
    struct host_node *next;
};

struct graph {
    const void *stream;
    unsigned long long id;
    struct user_object *kept;
    struct host_node *first, **end;
    struct graph *next;
};

static struct graph *captured; /* those that are being made */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

SIM_EXPORT int sim_capture_begin(const void *stream) {
    static unsigned long long last;
    struct graph *graph = malloc(sizeof *graph);
    if (graph == NULL) {
        return -1;
    }
    pthread_mutex_lock(&lock);
    *graph = (struct graph){.stream = stream, .id = ++last, .end = &graph->first, .next = captured};
    captured = graph;
    pthread_mutex_unlock(&lock);
    return 0;
}

static struct graph *graph_of(const void *stream) {
    pthread_mutex_lock(&lock);
    struct graph *graph = captured;
    while (graph != NULL && graph->stream != stream) {
        graph = graph->next;
    }
    pthread_mutex_unlock(&lock);
    return graph;
}

SIM_EXPORT void *sim_capture_end(const void *stream) {
    struct graph *graph = graph_of(stream);
    pthread_mutex_lock(&lock);
    for (struct graph **at = &captured; graph != NULL && *at != NULL; at = &(*at)->next) {
        if (*at == graph) {
            *at = graph->next;
            break;
        }
    }
    pthread_mutex_unlock(&lock);
    return graph;
}

SIM_EXPORT void sim_graph_destroy(void *ended) {
    struct graph *graph = ended;
    for (struct host_node *node = graph != NULL ? graph->first : NULL, *next; node != NULL; node = next) {
        next = node->next;
        free(node);
    }
    while (graph != NULL && graph->kept != NULL) {
        struct user_object *object = graph->kept;
        graph->kept = object->next;
        object->destroy(object->argument);
        free(object);
    }
    free(graph);
}

static status is_capturing(const void *stream, int *capturing) {
    *capturing = stream != NULL && graph_of(stream) != NULL;
    return SUCCESS;
}

static status info(const void *stream, int *capturing, unsigned long long *id) {
    is_capturing(stream, capturing);
    if (id != NULL && *capturing) {
        *id = graph_of(stream)->id;
    }
    return SUCCESS;
}

/* Nodes that the stream's next one would depend on: none. */
static status info_v2(const void *stream, int *capturing, unsigned long long *id, void **captured_in, void **nodes,
                      size_t *n_nodes) {
    if (captured_in != NULL) {
        *captured_in = stream == NULL ? NULL : graph_of(stream);
    }
    if (nodes != NULL) {
        *nodes = NULL;
    }
    if (n_nodes != NULL) {
        *n_nodes = 0;
    }
    return info(stream, capturing, id);
}

static status info_v3(const void *stream, int *capturing, unsigned long long *id, void **captured_in, void **nodes,
                      void **edges, size_t *n_nodes) {
    if (edges != NULL) {
        *edges = NULL;
    }
    return info_v2(stream, capturing, id, captured_in, nodes, n_nodes);
}

static status create_object(struct user_object **object, void *argument, void (*destroy)(void *)) {
    *object = malloc(sizeof **object);
    if (*object == NULL) {
        return OUT_OF_MEMORY;
    }
    **object = (struct user_object){destroy, argument, NULL};
    return SUCCESS;
}

static status keep_object(struct graph *graph, struct user_object *object) {
    object->next = graph->kept;
    graph->kept = object;
    return SUCCESS;
}

static status add_node(void **node) {
    static int any;
    *node = &any;
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
    add_node(node);
    struct sim_launch launched = {kernel->function, kernel->grid[0], kernel->block[0], NULL, NULL, NULL};
    return sim_record_kernel(&launched);
}

/* On streams of its own NCCL's work goes into the graph that was begun last: a process that replays has one at a time. */
status sim_capture_host_function(void (*function)(void *), void *argument) {
    struct host_node *node = captured == NULL ? NULL : malloc(sizeof *node);
    if (captured == NULL) {
        function(argument);
        return SUCCESS;
    }
    if (node == NULL) {
        return OUT_OF_MEMORY;
    }
    pthread_mutex_lock(&lock);
    *node = (struct host_node){function, argument, NULL};
    *captured->end = node;
    captured->end = &node->next;
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

SIM_EXPORT void sim_graph_launch(const void *ended) {
    const struct graph *graph = ended;
    for (const struct host_node *node = graph->first; node != NULL; node = node->next) {
        node->function(node->argument);
    }
}

static status launch_host_function(void *stream SIM_UNUSED, void (*function)(void *), void *argument) {
    return sim_capture_host_function(function, argument);
}

static status succeed(void) {
    return SUCCESS;
}

#define FUNCTIONS(row)                                                                                             \
    row(cudaStreamIsCapturing, is_capturing) row(cudaStreamGetCaptureInfo_v2, info_v2)                             \
        row(cudaStreamGetCaptureInfo_v3, info_v3) row(cudaStreamUpdateCaptureDependencies, succeed)                \
            row(cudaStreamUpdateCaptureDependencies_v2, succeed) row(cudaThreadExchangeStreamCaptureMode, succeed) \
                row(cudaUserObjectCreate, create_object) row(cudaGraphRetainUserObject, keep_object)               \
                    row(cudaGraphAddDependencies, succeed) row(cudaGraphAddDependencies_v2, succeed)               \
                        row(cudaGraphAddEventRecordNode, add_node) row(cudaGraphAddEventWaitNode, add_node)        \
                            row(cudaGraphAddHostNode, add_node) row(cudaGraphAddKernelNode, add_kernel_node)       \
                                row(cudaLaunchHostFunc, launch_host_function)

const struct sim_redirect sim_capture_redirects[] = {
    SIM_ROW_OF_CUDA(12, "cudaStreamGetCaptureInfo", info),
    SIM_ROW_OF_CUDA(13, "cudaStreamGetCaptureInfo", info_v3), /* CUDA 12's _v3 by another name */
    FUNCTIONS(SIM_NAMED_ROW){NULL, NULL, 0},
};

FUNCTIONS(SIM_NAMED_EXPORT)
SIM_NAMED_EXPORT(cudaStreamGetCaptureInfo, info_v3) /* what CUDA 12's headers call has a version in its name */
