/* The search for channel graphs: every rank repeats its node's, and it is most of an initialisation. Here the first rank of
 * a host, or of a NVLink domain of several hosts, searches and the others take its graphs, which are the same where they
 * see the whole of it. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "export.h"
#include "machine.h"
#include "meeting.h"
#include "oracle.h"
#include "trampoline.h"

typedef int status; /* ncclResult_t */
typedef status search(void *system, void *graph);

enum { INTERNAL_ERROR = 3, MOST_SEARCHES = 16, FAR_JUMP_BYTES = 14 };

struct searched {
    int done;
    status result;
    unsigned char *graph;
};

static search *original;
static size_t graph_bytes, gpus_at;
static struct searched searched[SIM_MAX_RANKS][MOST_SEARCHES]; /* by the first device, in the order of searches */
static _Thread_local int searches;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

void sim_release_searchers(void) {
    pthread_mutex_lock(&lock);
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

static status search_and_keep(void *system, void *graph, struct searched *here) {
    status result = original(system, graph);
    unsigned char *copy = malloc(graph_bytes);
    if (copy == NULL)
        return INTERNAL_ERROR;
    memcpy(copy, graph, graph_bytes);
    pthread_mutex_lock(&lock);
    *here = (struct searched){1, result, copy};
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return result;
}

static status take(void *graph, const struct searched *here) {
    pthread_mutex_lock(&lock);
    while (!here->done && !sim_meetings_abandoned())
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    if (!here->done)
        return INTERNAL_ERROR;
    memcpy(graph, here->graph, graph_bytes);
    return here->result;
}

static status shared(void *system, void *graph) {
    int gpus;
    memcpy(&gpus, (char *)system + gpus_at, sizeof gpus);
    int first = sim_first_of_system(sim_device(), gpus), number = searches++;
    if (first < 0 || number >= MOST_SEARCHES)
        return original(system, graph);
    struct searched *here = &searched[first][number];
    return sim_device() == first ? search_and_keep(system, graph, here) : take(graph, here);
}

void sim_forget_searches(void) {
    memset(searched, 0, sizeof searched);
}

SIM_EXPORT int sim_share_search(void *function, uint64_t bytes, uint64_t gpus) {
    graph_bytes = bytes;
    gpus_at = gpus;
    void *kept = sim_redirect_keeping(function, (void *)(uintptr_t)shared);
    memcpy(&original, &kept, sizeof original);
    return original != NULL;
}
