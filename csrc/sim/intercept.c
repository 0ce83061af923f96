/* Functions of NCCL that are intercepted, where their answers cannot be had or changed otherwise.
 *
 * The graphs: up to 2.21 they live on the stack of the thread that initialises, and are seen where the model is made of
 * them. The topology file: a process has one NCCL_TOPO_FILE, but hosts that differ have each their own. The times: up to
 * 2.21 there is no cost table; NCCL asks for one cell after the other.
 */
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "export.h"
#include "machine.h"
#include "meeting.h"
#include "record.h"
#include "redirect.h"

enum { INTERNAL_ERROR = 3 };

/* --- graphs --- */

static struct {
    struct sim_hook hook;
    unsigned char *copies;
    size_t bytes;
    int n;
    int seen;
} graphs;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

typedef status make_model(void *comm, int min_capability, int max_capability, void **of_algorithm);

/* Every rank comes here once and copies its graphs. When all have, one takes the redirection away for good, so nobody
 * runs instructions that are being replaced. */
static status intercepted_model(void *comm, int min_capability, int max_capability, void **of_algorithm) {
    unsigned char *copies = graphs.copies + (size_t)sim_device() * (size_t)graphs.n * graphs.bytes;
    for (int i = 0; i < graphs.n; i++) {
        memcpy(copies + (size_t)i * graphs.bytes, of_algorithm[i], graphs.bytes);
    }
    if (sim_meet_everyone() != 0) {
        return INTERNAL_ERROR;
    }
    pthread_mutex_lock(&lock);
    if (!graphs.seen) {
        sim_hook_set(&graphs.hook, 0);
    }
    graphs.seen = 1;
    pthread_mutex_unlock(&lock);
    make_model *function;
    memcpy(&function, &graphs.hook.function, sizeof function);
    return function(comm, min_capability, max_capability, of_algorithm);
}

SIM_EXPORT int sim_intercept_graphs(void *function, void *copies, uint64_t bytes, int n) {
    graphs.copies = copies;
    graphs.bytes = bytes;
    graphs.n = n;
    return sim_hook(&graphs.hook, function, (void *)(uintptr_t)intercepted_model);
}

/* --- topology file --- */

static struct sim_hook file_hook;
static int file_seen;

typedef status read_file(const char *path, void *xml, int warn);

/* Every rank comes here once. When all have, one takes the redirection away for good, and each reads its own file. */
static status own_file(const char *path SIM_UNUSED, void *xml, int warn) {
    if (sim_meet_everyone() != 0) {
        return INTERNAL_ERROR;
    }
    pthread_mutex_lock(&lock);
    if (!file_seen) {
        sim_hook_set(&file_hook, 0);
    }
    file_seen = 1;
    pthread_mutex_unlock(&lock);
    read_file *function;
    memcpy(&function, &file_hook.function, sizeof function);
    const char *file = sim_own_host()->topology;
    if (sim_domain_of(sim_device()) == SIM_NO_DOMAIN) {
        return function(file, xml, warn);
    }
    char numbered[SIM_PATH_CHARS + 16];
    snprintf(numbered, sizeof numbered, "%s.%d", file, sim_host_of(sim_device()));
    return function(numbered, xml, warn);
}

void sim_intercept_again(void) {
    graphs.seen = file_seen = 0;
    if (graphs.hook.function != NULL) {
        sim_hook_set(&graphs.hook, 1);
    }
    if (file_hook.function != NULL) {
        sim_hook_set(&file_hook, 1);
    }
}

SIM_EXPORT int sim_intercept_topology_file(void *function) {
    return sim_hook(&file_hook, function, (void *)(uintptr_t)own_file);
}

/* --- times --- */

static struct {
    struct sim_hook hook;
    int algorithms;
    int protocols;
    int backups; /* whether the function says which cells are backups */
} times;

typedef status estimate(void *call, int algorithm, int protocol, int pipe_ops, float *time_us, bool *backup);

/* Only ever called by the one thread that launches. A backup cell is one that counts when nothing else is left: it goes
 * to the second table only. Before 2.19 there is no such argument, and what is passed in its place means nothing. */
static status intercepted_estimate(void *call, int algorithm, int protocol, int pipe_ops, float *time_us,
                                   bool *backup) {
    estimate *function;
    memcpy(&function, &times.hook.function, sizeof function);
    sim_hook_set(&times.hook, 0);
    status result = function(call, algorithm, protocol, pipe_ops, time_us, backup);
    sim_hook_set(&times.hook, 1);
    int cell = algorithm * times.protocols + protocol;
    struct sim_question *question = sim_record_cell(cell, times.algorithms, times.protocols);
    question->pipe_ops = pipe_ops;
    question->after_us[cell] = *time_us;
    question->before_us[cell] = times.backups && *backup ? -1.0f : *time_us;
    return result;
}

SIM_EXPORT int sim_intercept_times(void *function, int algorithms, int protocols, int backups) {
    times.algorithms = algorithms;
    times.protocols = protocols;
    times.backups = backups;
    return sim_hook(&times.hook, function, (void *)(uintptr_t)intercepted_estimate);
}
