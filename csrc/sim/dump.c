/* NCCL's own file of graphs (NCCL_GRAPH_DUMP_FILE): it has no word for some types of paths, and NCCL fails where it should
 * write one. Only the orders of channels are read from the file here, so such a type is written as another one. */
#include <stdlib.h>
#include <string.h>

#include "export.h"
#include "oracle.h"
#include "trampoline.h"

typedef status dump(void *system, int n, void **graphs);

enum { SUCCESS = 0, SYSTEM_ERROR = 2, LOCAL = 0 /* the type that every file can have */ };

static dump *original;
static struct sim_graph_file file;

static void make_writable(unsigned char *graph, size_t at) {
    int type;
    memcpy(&type, graph + at, sizeof type);
    if (type < 0 || type >= 32 || !(file.writable >> type & 1)) {
        memset(graph + at, LOCAL, sizeof type);
    }
}

static status write_copies(void *system, int n, void **graphs) {
    unsigned char *copies = malloc((size_t)n * file.bytes);
    void **copied = malloc((size_t)n * sizeof *copied);
    status result = copies == NULL || copied == NULL ? SYSTEM_ERROR : SUCCESS;
    for (int i = 0; i < n && result == SUCCESS; i++) {
        copied[i] = memcpy(copies + (size_t)i * file.bytes, graphs[i], file.bytes);
        make_writable(copied[i], file.type_intra);
        make_writable(copied[i], file.type_inter);
    }
    if (result == SUCCESS) {
        result = original(system, n, copied);
    }
    free(copied);
    free(copies);
    return result;
}

SIM_EXPORT int sim_write_every_graph(const struct sim_graph_file *of) {
    file = *of;
    void *kept = sim_redirect_keeping(file.function, (void *)(uintptr_t)write_copies);
    memcpy(&original, &kept, sizeof original);
    return original != NULL;
}
