/* How long getCollInfo takes with 0, 10, 1000 and 10000 rows: the plugin as built, random sizes and collectives.
 *
 *     gcc -std=c11 -O2 -o bench csrc/plugin/check/bench.c -ldl && ./bench tuner/_native/libnccl_tuner_plugin.so
 */
#define _POSIX_C_SOURCE 200809L

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../abi.h"

struct plugin {
    const char *name;
    int (*init)(void **, uint64_t, size_t, size_t, nccl_logger, void *, void *);
    int (*get_coll_info)(void *, int, size_t, int, float **, int, int, int, int *);
    int (*finalize)(void *);
};

enum { CALLS = 1 << 20, REPEATS = 9, CELLS = ALGORITHMS * PROTOCOLS };

static double now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static uint64_t draw(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static int by_value(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

/* Rows side by side over 0 .. 1 GiB for each collective in turn, every other one applying. */
static void write_table(const char *path, size_t rows) {
    static const char *const collectives[] = {"broadcast", "reduce", "allgather", "reducescatter", "allreduce"};
    static const char *const choices[] = {"ring/ll", "ring/ll128", "ring/simple"};
    FILE *file = fopen(path, "w");
    fprintf(file, "nccl-tuner-table 1\n");
    size_t per_collective = (rows + 4) / 5, width = ((size_t)1 << 30) / (per_collective ? per_collective : 1);
    for (size_t i = 0; i < rows; i++) {
        size_t low = i / 5 * width;
        fprintf(file, "%s bytes=%zu..%zu ranks=16 nodes=2 -> %s channels=%zu\n", collectives[i % 5], low,
                low + width - 1, choices[i / 5 % 3], 1 + i / 5 % 16);
    }
    fclose(file);
}

struct call {
    int collective;
    size_t bytes;
};

static double nanoseconds_a_call(const struct plugin *plugin, void *context, const struct call *calls) {
    /* A DGX H100 pod's allreduce, as far as its shape matters: some cells ignored, the others in no order. */
    float fresh[CELLS], cells[CELLS];
    for (int cell = 0; cell < CELLS; cell++) {
        fresh[cell] = cell % 7 == 6 || cell >= 12 ? -1.0f : (float)(10 + cell * 37 % 21);
    }
    double times[REPEATS];
    for (int repeat = 0; repeat < REPEATS; repeat++) {
        double start = now_ns();
        for (int i = 0; i < CALLS; i++) {
            int channels = 0;
            memcpy(cells, fresh, sizeof cells);
            plugin->get_coll_info(context, calls[i].collective, calls[i].bytes, 1, (float **)(void *)cells, ALGORITHMS,
                                  PROTOCOLS, 0, &channels);
        }
        times[repeat] = (now_ns() - start) / CALLS;
    }
    qsort(times, REPEATS, sizeof times[0], by_value);
    return times[REPEATS / 2];
}

int main(int count, char **words) {
    void *library = count == 2 ? dlopen(words[1], RTLD_NOW) : NULL;
    const struct plugin *plugin = library ? dlsym(library, "ncclTunerPlugin_v5") : NULL;
    if (!plugin) {
        fprintf(stderr, "usage: bench PLUGIN.so\n");
        return 2;
    }
    static struct call calls[CALLS];
    uint64_t state = 1;
    for (int i = 0; i < CALLS; i++) {
        calls[i] = (struct call){(int)(draw(&state) % 5), (size_t)(draw(&state) >> 34)};
    }
    char path[] = "/tmp/nccl-tuner-bench-XXXXXX";
    close(mkstemp(path));
    setenv("NCCL_TUNER_TABLE", path, 1);
    static const size_t sizes[] = {0, 10, 1000, 10000};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        write_table(path, sizes[i]);
        void *context;
        double start = now_ns();
        plugin->init(&context, 0, 16, 2, NULL, NULL, NULL);
        double init_ms = (now_ns() - start) / 1e6;
        printf("%6zu rows: getCollInfo %6.1f ns, init %.2f ms\n", sizes[i], nanoseconds_a_call(plugin, context, calls),
               init_ms);
        plugin->finalize(context);
    }
    unlink(path);
    return 0;
}
