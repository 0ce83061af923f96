/* The search for channel graphs: every rank repeats its node's, and it is most of an initialisation. Here the first rank of
 * a host, or of a NVLink domain of several hosts, searches and the others take its graphs, which are the same where they
 * see the whole of it. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "export.h"
#include "machine.h"
#include "meeting.h"
#include "oracle.h"

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

/* Bytes of whole instructions from the start of a function, enough for a jump over them, that do the same elsewhere:
 * pushes, and what only moves or clears registers. 0 where there are others. */
static int movable_bytes(const unsigned char *code) {
    int bytes = 0;
    while (bytes < sim_jump_bytes()) {
        const unsigned char *at = code + bytes;
        int rex = at[0] >= 0x40 && at[0] <= 0x4f;
        if (at[rex] >= 0x50 && at[rex] <= 0x57)
            bytes += rex + 1;
        else if ((at[rex] == 0x89 || at[rex] == 0x31) && at[rex + 1] >= 0xc0)
            bytes += rex + 2;
        else
            return 0;
    }
    return bytes;
}

/* jmp [rip]; the address: it changes no register */
static void write_far_jump(unsigned char *code, const void *target) {
    static const unsigned char jump[] = {0xff, 0x25, 0, 0, 0, 0};
    uint64_t address = (uint64_t)(uintptr_t)target;
    memcpy(code, jump, sizeof jump);
    memcpy(code + sizeof jump, &address, sizeof address);
}

SIM_EXPORT int sim_share_search(void *function, uint64_t bytes, uint64_t gpus) {
#if defined(__x86_64__)
    int moved = movable_bytes(function);
    if (moved == 0)
        return 0;
    unsigned char *copy =
        mmap(NULL, (size_t)moved + FAR_JUMP_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (copy == MAP_FAILED)
        return 0;
    memcpy(copy, function, (size_t)moved);
    write_far_jump(copy + moved, (unsigned char *)function + moved);
    if (mprotect(copy, (size_t)moved + FAR_JUMP_BYTES, PROT_READ | PROT_EXEC) != 0)
        return 0;
    memcpy(&original, &copy, sizeof original);
    graph_bytes = bytes;
    gpus_at = gpus;
    return sim_redirect(function, (uint64_t)moved, (void *)(uintptr_t)shared) == 0;
#else
    (void)function, (void)bytes, (void)gpus;
    return 0;
#endif
}
