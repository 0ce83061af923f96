/* What libnccl itself takes for a pick: a tuner plugin that answers nothing, and times NCCL's own functions at its first call.
 *
 * At a collective NCCL asks a tuner and then calls topoGetAlgoInfo, which is sent here once: for each size of a file the
 * cells of the cost table that NCCL did not ignore are computed by ncclTopoGetAlgoTime, and topoGetAlgoInfo picks among
 * them with channels and threads, as getAlgoInfo does (src/enqueue.cc, v2.28.9-1). Processor time of the thread, least and
 * median of rounds, and the sum of the least cells, as "LEAST_NS MEDIAN_NS SUM_US" in a file. The environment says where the functions are and names the files:
 * benchmarks/libnccl_picks.py.
 */
#define _GNU_SOURCE
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "../csrc/plugin/interface.h"

enum { ROUNDS = 9, JUMP_BYTES = 14, MOST_CELLS = ALGORITHMS * PROTOCOLS };

typedef int choose(void *comm, void *task, size_t bytes, float **costs, void *simulation);
typedef int estimate(void *comm, int collective, int algorithm, int protocol, size_t bytes, int pipelined, float *us);

static struct {
    unsigned char *at, kept[JUMP_BYTES];
    int done, collective;
} hook;

static int find_library(struct dl_phdr_info *object, size_t size, void *base) {
    (void)size;
    int found = strstr(object->dlpi_name, "libnccl.so") != NULL;
    if (found) {
        *(uintptr_t *)base = object->dlpi_addr;
    }
    return found;
}

static void *function_at(const char *variable) {
    uintptr_t base = 0;
    dl_iterate_phdr(find_library, &base);
    return (void *)(base + strtoull(getenv(variable), NULL, 10));
}

static void overwrite(const unsigned char bytes[JUMP_BYTES]) {
    uintptr_t page = (uintptr_t)getpagesize(), from = (uintptr_t)hook.at / page * page;
    size_t length = (uintptr_t)hook.at + JUMP_BYTES - from;
    if (mprotect((void *)from, length, PROT_READ | PROT_WRITE | PROT_EXEC) != 0) {
        abort();
    }
    memcpy(hook.at, bytes, JUMP_BYTES);
    mprotect((void *)from, length, PROT_READ | PROT_EXEC);
}

static double now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static int by_value(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

/* The cells of a size, as NCCL has them for this call. */
static void fill_cells(estimate *time_of, void *comm, size_t bytes, const float *given, float *cells) {
    for (int cell = 0; cell < MOST_CELLS; cell++) {
        cells[cell] = -1.0f;
        if (given[cell] >= 0) {
            time_of(comm, hook.collective, cell / PROTOCOLS, cell % PROTOCOLS, bytes, 1, &cells[cell]);
        }
    }
}

static float least_of(const float *cells) {
    float least = -1.0f;
    for (int cell = 0; cell < MOST_CELLS; cell++) {
        least = cells[cell] >= 0 && (least < 0 || cells[cell] < least) ? cells[cell] : least;
    }
    return least;
}

static void time_picks(void *comm, void *task, const float *given) {
    estimate *time_of;
    choose *pick;
    void *functions[] = {function_at("NCCL_TUNER_BENCH_TIME_OF"), hook.at};
    memcpy(&time_of, &functions[0], sizeof time_of);
    memcpy(&pick, &functions[1], sizeof pick);
    FILE *file = fopen(getenv("NCCL_TUNER_BENCH_SIZES"), "rb"), *out = fopen(getenv("NCCL_TUNER_BENCH_RESULT"), "w");
    fseek(file, 0, SEEK_END);
    size_t count = (size_t)ftell(file) / sizeof(uint64_t);
    rewind(file);
    uint64_t *sizes = malloc(count * sizeof *sizes);
    if (!sizes || !out || fread(sizes, sizeof *sizes, count, file) != count) {
        abort();
    }
    float cells[MOST_CELLS];
    double times[ROUNDS];
    for (int round = 0; round < ROUNDS; round++) {
        double start = now_ns();
        for (size_t i = 0; i < count; i++) {
            fill_cells(time_of, comm, sizes[i], given, cells);
            pick(comm, task, sizes[i], (float **)(void *)cells, NULL);
        }
        times[round] = (now_ns() - start) / (double)count;
    }
    qsort(times, ROUNDS, sizeof times[0], by_value);
    double sum_us = 0;
    for (size_t i = 0; i < count; i++) {
        fill_cells(time_of, comm, sizes[i], given, cells);
        sum_us += least_of(cells);
    }
    fprintf(out, "%.1f %.1f %.17g\n", times[0], times[ROUNDS / 2], sum_us);
    fclose(file);
    fclose(out);
    free(sizes);
}

/* In the place of topoGetAlgoInfo, once. */
static int come_here(void *comm, void *task, size_t bytes, float **costs, void *simulation) {
    overwrite(hook.kept);
    time_picks(comm, task, (const float *)(void *)costs);
    choose *pick;
    memcpy(&pick, &hook.at, sizeof pick);
    return pick(comm, task, bytes, costs, simulation);
}

static int answer_nothing(void *context, int collective, size_t bytes, int pipelined, float **costs, int algorithms,
                          int protocols, int registered, int *channels) {
    (void)context, (void)bytes, (void)pipelined, (void)costs, (void)registered, (void)channels;
    if (!hook.done && algorithms == ALGORITHMS && protocols == PROTOCOLS) {
        hook.done = 1;
        hook.collective = collective;
        hook.at = function_at("NCCL_TUNER_BENCH_PICK");
        memcpy(hook.kept, hook.at, JUMP_BYTES);
        unsigned char jump[JUMP_BYTES] = {0xff, 0x25}; /* jmp *0(%rip), and the address behind it */
        void *to = (void *)(uintptr_t)come_here;
        memcpy(jump + 6, &to, sizeof to);
        overwrite(jump);
    }
    return RESULT_SUCCESS;
}

static int begin(void **context, uint64_t communicator, size_t ranks, size_t nodes, nccl_logger logger,
                 struct domains *domains, struct constants *constants) {
    (void)communicator, (void)ranks, (void)nodes, (void)logger, (void)domains, (void)constants;
    *context = NULL;
    return RESULT_SUCCESS;
}

static int end(void *context) {
    (void)context;
    return RESULT_SUCCESS;
}

const struct plugin_v5 ncclTunerPlugin_v5 = {"benchmark", begin, answer_nothing, end};
