/* The search for channel graphs: every rank repeats its node's, and it is most of an initialisation. Here the first rank of
 * a host, or of a NVLink domain of several hosts, searches and the others take its graphs, which are the same where they
 * see the whole of it; so do the ranks of hosts that are alike, with their own ranks in place of its. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "export.h"
#include "machine.h"
#include "meeting.h"
#include "oracle.h"
#include "trampoline.h"

typedef status search(void *system, void *graph);

enum { INTERNAL_ERROR = 3, MOST_SEARCHES = 16, FAR_JUMP_BYTES = 14 };

struct searched {
    int done;
    status result;
    unsigned char *graph;
};

static search *original;
static struct sim_search_function at;
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
    unsigned char *copy = malloc(at.bytes);
    if (copy == NULL) {
        return INTERNAL_ERROR;
    }
    memcpy(copy, graph, at.bytes);
    pthread_mutex_lock(&lock);
    *here = (struct searched){1, result, copy};
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return result;
}

static int int_at(const void *start, size_t offset) {
    int value;
    memcpy(&value, (const char *)start + offset, sizeof value);
    return value;
}

static int rank_at(const unsigned char *graph, int place) {
    return int_at(graph, at.ranks + (size_t)place * sizeof(int));
}

/* Whether each channel has every rank of its host once, and these are numbered one after the other: a graph for NVLS has one
 * rank, and zeros. Of two ranks a zero may be the other. */
static int has_all_ranks(const unsigned char *graph, int channels, int gpus) {
    int first = rank_at(graph, 0);
    for (int i = 1; i < gpus; i++) {
        first = rank_at(graph, i) < first ? rank_at(graph, i) : first;
    }
    for (int channel = 0; channel < channels; channel++) {
        uint64_t seen = 0;
        for (int i = 0; i < gpus; i++) {
            int rank = rank_at(graph, channel * gpus + i) - first;
            if (rank < 0 || rank >= gpus || rank >= 64 || seen >> rank & 1) {
                return 0;
            }
            seen |= (uint64_t)1 << rank;
        }
    }
    return gpus > 2;
}

/* 0: the run was given up. */
static int wait_for(const struct searched *here) {
    pthread_mutex_lock(&lock);
    while (!here->done && !sim_meetings_abandoned()) {
        pthread_cond_wait(&changed, &lock);
    }
    pthread_mutex_unlock(&lock);
    return here->done;
}

static status take(void *graph, const struct searched *here) {
    if (!wait_for(here)) {
        return INTERNAL_ERROR;
    }
    memcpy(graph, here->graph, at.bytes);
    return here->result;
}

/* From the first rank of another host, `before` ranks before this host's. */
static status take_moved(void *graph, const struct searched *there, int ranks, int before) {
    status result = take(graph, there);
    for (int i = 0; i < ranks; i++) {
        int rank = rank_at(there->graph, i) + before;
        memcpy((unsigned char *)graph + at.ranks + (size_t)i * sizeof rank, &rank, sizeof rank);
    }
    return result;
}

static status shared(void *system, void *graph) {
    int gpus = int_at(system, at.gpus), device = sim_device();
    int first = sim_first_of_system(device, gpus), number = searches++, before = 0;
    if (first < 0 || number >= MOST_SEARCHES) {
        return original(system, graph);
    }
    int alike = gpus == sim_host_ranks(sim_host_of(device)) ? sim_first_alike(device, &before) : first;
    if (alike != first) {
        const struct searched *there = &searched[alike][number];
        if (!wait_for(there)) {
            return INTERNAL_ERROR;
        }
        int channels = int_at(there->graph, at.channels);
        if (has_all_ranks(there->graph, channels, gpus)) {
            return take_moved(graph, there, channels * gpus, before);
        }
    }
    struct searched *here = &searched[first][number];
    return device == first ? search_and_keep(system, graph, here) : take(graph, here);
}

void sim_forget_searches(void) {
    memset(searched, 0, sizeof searched);
}

SIM_EXPORT int sim_share_search(const struct sim_search_function *found) {
    at = *found;
    void *kept = sim_redirect_keeping(at.function, (void *)(uintptr_t)shared);
    memcpy(&original, &kept, sizeof original);
    return original != NULL;
}
