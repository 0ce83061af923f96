/* Prepares a process before its program begins: libnccl is redirected, and the process sees the GPUs of its host. */
#define _GNU_SOURCE
#include "preload.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "counters.h"
#include "export.h"
#include "machine.h"
#include "oracle.h"
#include "record.h"

static int host; /* of this process */
static int names_hosts;

/* Nothing of the program has run yet, and there is nobody to return an error to. */
static void refuse(const char *what, const char *why) {
    fprintf(stderr, "nccl-tuner: the simulated GPUs cannot be loaded: %s: %s\n", what, why);
    _exit(127);
}

static const struct sim_plan *read_plan(const char *path) {
    int file = open(path, O_RDONLY | O_CLOEXEC);
    struct stat known;
    if (file < 0 || fstat(file, &known) != 0) {
        refuse(path, strerror(errno));
    }
    const struct sim_plan *plan = mmap(NULL, (size_t)known.st_size, PROT_READ, MAP_PRIVATE, file, 0);
    close(file);
    if (plan == MAP_FAILED || (size_t)known.st_size < sizeof *plan ||
        (size_t)known.st_size != sizeof *plan + (size_t)plan->rows * sizeof(struct sim_planned_row) ||
        strncmp(plan->sources, sim_sources(), sizeof plan->sources) != 0) {
        refuse(path, "it was written for another build");
    }
    return plan;
}

/* Names a file of planted times: NCCL's profiler sees kernels that take so long. */
#define TIMES_VARIABLE "NCCL_TUNER_SIM_TIMES"

static void redirect(const struct sim_plan *plan) {
    const char *times = getenv(TIMES_VARIABLE);
    if (times != NULL && sim_read_times(times) != 0) {
        refuse(times, strerror(errno));
    }
    const struct sim_planned_row *rows = (const struct sim_planned_row *)(plan + 1);
    unsigned char *file = (unsigned char *)sim_nccl_function("ncclGetVersion") - plan->version_function;
    for (int i = 0; i < plan->rows; i++) {
        const struct sim_redirect *row = &sim_redirects(rows[i].table)[rows[i].row];
        enum sim_profiled profiled =
            times == NULL ? SIM_REPLACED
                          : sim_profile(row->name, file + rows[i].function, row->replacement, &plan->operations);
        if (profiled == SIM_UNKNOWN) {
            refuse(row->name, "it cannot be called and replaced at once");
        }
        if (profiled == SIM_KEPT) {
            continue;
        }
        int error = sim_redirect(file + rows[i].function, rows[i].bytes, row->replacement);
        if (error != 0) {
            refuse(row->name, strerror(error));
        }
    }
}

/* Of this process among all, -1 where none of its starters says it: it may be no rank, such as a shell. */
static int rank(const struct sim_plan *plan) {
    for (int i = 0; i < SIM_RANK_VARIABLES; i++) {
        const char *value = plan->rank_variables[i][0] == '\0' ? NULL : getenv(plan->rank_variables[i]);
        if (value != NULL) {
            return atoi(value);
        }
    }
    return -1;
}

/* The devices of its host, or those that CUDA_VISIBLE_DEVICES counts up. */
static void see_devices(int own_host) {
    int of_host = sim_host(own_host)->ranks_per_host, first = sim_first_device(own_host), n = 0;
    int devices[SIM_MAX_LOCAL_RANKS];
    const char *at = getenv("CUDA_VISIBLE_DEVICES");
    if (at == NULL) {
        for (; n < of_host; n++) {
            devices[n] = first + n;
        }
    }
    while (at != NULL && *at != '\0') {
        char *end;
        long number = strtol(at, &end, 10);
        if (end == at || (*end != '\0' && *end != ',') || number < 0 || number >= of_host || n == of_host) {
            refuse("CUDA_VISIBLE_DEVICES", "valid: numbers of the host's GPUs with commas between them");
        }
        devices[n++] = first + (int)number;
        at = *end == ',' ? end + 1 : end;
    }
    if (n == 0) {
        refuse("CUDA_VISIBLE_DEVICES", "it names no GPU");
    }
    sim_see_devices(devices, n);
}

__attribute__((constructor)) static void prepare(void) {
    const char *path = getenv("NCCL_TUNER_SIM_PLAN");
    if (path == NULL) {
        return;
    }
    const struct sim_plan *plan = read_plan(path);
    if (sim_configure(&plan->machine) != 0) {
        refuse(path, "the machine has more GPUs or network devices than can be simulated");
    }
    const char *error = sim_load_nccl(plan->library);
    if (error != NULL) {
        refuse(plan->library, error);
    }
    redirect(plan);
    sim_locate_local_ranks(plan->local_ranks);
    sim_record_operations(&plan->operations);
    sim_record_nothing();
    int impatient = sim_wait_for_peers();
    if (impatient != 0) {
        refuse("recv and accept", strerror(impatient));
    }
    int own_rank = rank(plan);
    host = own_rank < 0 ? 0 : own_rank / plan->processes_per_host;
    if (host >= plan->machine.hosts) {
        refuse("rank", "there are fewer hosts than its number asks for; valid: more --nodes or --processes-per-node");
    }
    names_hosts = plan->machine.hosts > 1 && own_rank >= 0;
    see_devices(host);
}

/* Programs count by it how many of their processes share a host. */
SIM_EXPORT int gethostname(char *name, size_t chars) {
    if (names_hosts) {
        snprintf(name, chars, "node%d", host);
        return 0;
    }
    int (*next)(char *name, size_t chars);
    *(void **)&next = dlsym(RTLD_NEXT, "gethostname");
    return next(name, chars);
}
