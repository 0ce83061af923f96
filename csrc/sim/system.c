/* The system that a rank searches in: every rank of a NVLink domain makes that of the whole domain, with the paths between
 * all of its devices, and 72 ranks of 72 GPUs do not fit into memory. Here the first rank of a domain makes it, and the
 * others, which would make the same, take it once its search is done.
 */
#include <pthread.h>
#include <stdint.h>
#include <string.h>

#include "export.h"
#include "machine.h"
#include "meeting.h"
#include "oracle.h"
#include "trampoline.h"

typedef status with_comm(void *system, void *comm);
typedef status without_comm(void *system);

enum { SUCCESS = 0, INTERNAL_ERROR = 3 };

static with_comm *compute_paths, *trim;
static without_comm *init_search;
static size_t gpus_at, system_at;

/* By domain. */
static struct made {
    void *system;
    int searching;
    int taken_apart; /* NCCL takes the domain for several nodes, so its ranks have systems of their own */
    int done;
} made[SIM_MAX_RANKS + 1];

static _Thread_local int has_taken;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

void sim_release_systems(void) {
    pthread_mutex_lock(&lock);
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

/* Those of the calling rank's domain; NULL where its system is its own. */
static struct made *of_domain(void *system) {
    int gpus, device = sim_device(), domain = sim_domain_of(device);
    memcpy(&gpus, (char *)system + gpus_at, sizeof gpus);
    return domain != SIM_NO_DOMAIN && gpus > sim_host_ranks(sim_host_of(device)) && gpus == sim_domain_ranks(domain)
               ? &made[domain]
               : NULL;
}

static int makes(void) {
    return sim_first_of_domain(sim_domain_of(sim_device())) == sim_device();
}

static void set(int *flag) {
    pthread_mutex_lock(&lock);
    *flag = 1;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

static status paths_once(void *system, void *comm) {
    struct made *of = of_domain(system);
    if (has_taken) {
        return SUCCESS;
    }
    if (of == NULL) {
        return compute_paths(system, comm);
    }
    if (makes()) {
        of->system = system;
        return compute_paths(system, comm);
    }
    pthread_mutex_lock(&lock);
    while (!of->done && !of->taken_apart && !sim_meetings_abandoned()) {
        pthread_cond_wait(&changed, &lock);
    }
    int own = of->taken_apart, done = of->done;
    pthread_mutex_unlock(&lock);
    if (own) {
        return compute_paths(system, comm);
    }
    if (!done) {
        return INTERNAL_ERROR;
    }
    memcpy((char *)comm + system_at, &of->system, sizeof of->system);
    has_taken = 1;
    return SUCCESS;
}

static status trim_once(void *system, void *comm) {
    if (has_taken) {
        return SUCCESS;
    }
    struct made *of = of_domain(system);
    status result = trim(system, comm);
    if (of != NULL && makes() && of_domain(system) == NULL) {
        set(&of->taken_apart);
    }
    return result;
}

static status init_search_once(void *system) {
    if (has_taken) {
        return SUCCESS;
    }
    struct made *of = of_domain(system);
    if (of != NULL && makes()) {
        of->searching = 1;
    }
    return init_search(system);
}

void sim_search_is_over(void) {
    struct made *of = &made[sim_domain_of(sim_device())]; /* nobody searches that of SIM_NO_DOMAIN */
    if (of->searching && !of->done && makes()) {
        set(&of->done);
    }
}

void sim_forget_systems(void) {
    memset(made, 0, sizeof made);
}

SIM_EXPORT int sim_share_systems(const struct sim_system_functions *functions) {
    gpus_at = functions->gpus;
    system_at = functions->system;
    const struct {
        void *function;
        void *replacement;
        void *original;
    } rows[] = {
        {functions->init_search, (void *)(uintptr_t)init_search_once, &init_search},
        {functions->trim, (void *)(uintptr_t)trim_once, &trim},
        {functions->compute_paths, (void *)(uintptr_t)paths_once,
         &compute_paths}, /* the last: it waits for the others */
    };
    for (int i = 0; i < 3; i++) {
        void *kept = sim_redirect_keeping(rows[i].function, rows[i].replacement);
        if (kept == NULL) {
            return 0;
        }
        memcpy(rows[i].original, &kept, sizeof kept);
    }
    return 1;
}
