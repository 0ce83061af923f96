/* How long the plugin's calls take and what a table costs, as JSON; benchmarks/plugin.py builds this and prints it.
 *
 *     bench PLUGIN.so CORE
 *
 * Random sizes and collectives, NCCL's kind of logger attached, interface version 6; the floor is a plugin that does
 * nothing, the comparison one that scans its rows as NVIDIA's example does (without that one's logging).
 */
#define _GNU_SOURCE /* sched_setaffinity */

#include <dlfcn.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../interface.h"
#include "source.h"

enum { CALLS = 1 << 18, REPEATS = 9, RANKS = 16, NODES = 2, MOST_ROWS = 100000 };

static const size_t row_counts[] = {10, 1000, 10000, MOST_ROWS};
enum { ROW_COUNTS = sizeof row_counts / sizeof row_counts[0] };

static double now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static int by_value(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static double median(double times[REPEATS]) {
    qsort(times, REPEATS, sizeof times[0], by_value);
    return times[REPEATS / 2];
}

static void stop(const char *reason) {
    fprintf(stderr, "bench: %s\n", reason);
    exit(2);
}

/* As NCCL's own: a variadic function that formats what it gets; here it writes to nowhere. */
__attribute__((format(printf, 5, 6))) static void listen(int level, unsigned long flags, const char *file, int line,
                                                         const char *format, ...) {
    static char text[2048];
    va_list values;
    va_start(values, format);
    int length = snprintf(text, sizeof text, "%d %lx %s:%d ", level, flags, file, line);
    vsnprintf(text + length, sizeof text - (size_t)length, format, values);
    va_end(values);
}

/* The tables: rows side by side over 0 .. 1 GiB for each collective in turn */

struct row {
    int collective, algorithm, protocol, channels, nodes, ranks, pipelined, registered;
    size_t least, most;
};

static struct row row_of(size_t number, size_t rows) {
    size_t width = ((size_t)1 << 30) / (rows / COLLECTIVES), place = number / COLLECTIVES;
    return (struct row){.collective = (int)(number % COLLECTIVES),
                        .algorithm = ALGORITHM_RING,
                        .protocol = (int)(place % PROTOCOLS),
                        .channels = (int)(1 + place % 16),
                        .nodes = NODES,
                        .ranks = RANKS,
                        .pipelined = -1,
                        .registered = -1,
                        .least = place * width,
                        .most = (place + 1) * width - 1};
}

static void write_table(const char *path, size_t rows) {
    static const char *const collectives[] = {"broadcast", "reduce", "allgather", "reducescatter", "allreduce"};
    static const char *const protocols[] = {"ll", "ll128", "simple"};
    FILE *file = fopen(path, "w");
    if (!file) {
        stop("cannot write a table");
    }
    fprintf(file, "nccl-tuner-table 1\n");
    for (size_t i = 0; i < rows; i++) {
        struct row row = row_of(i, rows);
        fprintf(file, "%s bytes=%zu..%zu ranks=%d nodes=%d -> ring/%s channels=%d\n", collectives[row.collective],
                row.least, row.most, row.ranks, row.nodes, protocols[row.protocol], row.channels);
    }
    fclose(file);
}

/* Rows of NVIDIA's CSV that all hold the same sizes and that NCCL cannot run, before one that it can. */
static void write_failing_table(const char *path, size_t rows) {
    static const char *const algorithms[] = {"nvls", "nvls_tree", "pat"};
    FILE *file = fopen(path, "w");
    if (!file) {
        stop("cannot write a table");
    }
    for (size_t i = 0; i < rows; i++) {
        fprintf(file, "allreduce,0,%zu,%s,simple,-1,-1,-1\n", (i * 7919 + 1) % rows * 10000, algorithms[i % 3]);
    }
    fprintf(file, "allreduce,0,-1,ring,ll,-1,-1,-1\n");
    fclose(file);
}

/* What ours is compared with */

static int do_nothing(void *context, int collective, size_t bytes, int pipelined, float **costs, int algorithms,
                      int protocols, int registered, int *channels) {
    (void)context, (void)collective, (void)bytes, (void)pipelined, (void)costs, (void)algorithms, (void)protocols;
    (void)registered, (void)channels;
    return RESULT_SUCCESS;
}

struct scanned {
    size_t count;
    struct row rows[MOST_ROWS];
};

static int is_either(int asked, int value) {
    return asked == -1 || asked == value;
}

/* Row by row until one matches, whose cell becomes 0. */
static int scan(void *context, int collective, size_t bytes, int pipelined, float **costs, int algorithms,
                int protocols, int registered, int *channels) {
    const struct scanned *scanned = context;
    float *cells = (float *)(void *)costs;
    for (size_t i = 0; i < scanned->count; i++) {
        const struct row *row = &scanned->rows[i];
        if (row->collective == collective && bytes >= row->least && bytes <= row->most &&
            is_either(row->nodes, NODES) && is_either(row->ranks, RANKS) && is_either(row->pipelined, pipelined) &&
            is_either(row->registered, registered)) {
            float *cell = &cells[row->algorithm * protocols + row->protocol];
            if (row->algorithm < algorithms && row->protocol < protocols && *cell != IGNORED_US) {
                *cell = 0.0f;
                *channels = row->channels;
            }
            break;
        }
    }
    return RESULT_SUCCESS;
}

static const struct plugin_v6 empty = {.base = {.name = "empty", .get_coll_info = do_nothing}};
static const struct plugin_v6 linear = {.base = {.name = "linear", .get_coll_info = scan}};

/* A thing to measure: a plugin with a table. */
struct subject {
    const char *name;
    const struct plugin_v6 *plugin;
    size_t rows;
    void *context;
    int calls;
    double times[REPEATS];
};

struct call {
    int collective;
    size_t bytes;
};
static struct call calls[CALLS];

static double nanoseconds_a_call(const struct subject *subject) {
    /* A DGX H100 pod's allreduce, as far as its shape matters: some cells ignored, the others in no order. */
    float fresh[CELLS], cells[CELLS];
    for (int cell = 0; cell < CELLS; cell++) {
        fresh[cell] = cell % 7 == 6 || cell >= 12 ? IGNORED_US : (float)(10 + cell * 37 % 21);
    }
    double start = now_ns();
    for (int i = 0; i < subject->calls; i++) {
        int channels = 0;
        memcpy(cells, fresh, sizeof cells);
        subject->plugin->base.get_coll_info(subject->context, calls[i].collective, calls[i].bytes, 1,
                                            (float **)(void *)cells, ALGORITHMS, PROTOCOLS, 0, &channels);
    }
    return (now_ns() - start) / subject->calls;
}

static void *open_ours(const struct plugin_v6 *ours) {
    void *context = NULL;
    if (ours->base.init(&context, 0, RANKS, NODES, listen, NULL, NULL) != RESULT_SUCCESS || !context) {
        stop("init found no table");
    }
    return context;
}

static void measure_calls(const struct plugin_v6 *ours, const char *path) {
    static struct scanned scanned[ROW_COUNTS];
    struct subject subjects[1 + 3 * ROW_COUNTS] = {{.name = "empty", .plugin = &empty, .calls = CALLS}};
    for (size_t i = 0; i < ROW_COUNTS; i++) {
        size_t rows = row_counts[i];
        char own[64]; /* the plugin reads a path once */
        snprintf(own, sizeof own, "%s-%zu", path, i);
        setenv("NCCL_TUNER_TABLE", own, 1);
        write_table(own, rows);
        scanned[i].count = rows;
        for (size_t row = 0; row < rows; row++) {
            scanned[i].rows[row] = row_of(row, rows);
        }
        subjects[1 + i] =
            (struct subject){.name = "ours", .plugin = ours, .rows = rows, .context = open_ours(ours), .calls = CALLS};
        subjects[1 + ROW_COUNTS + i] = (struct subject){.name = "linear scan",
                                                        .plugin = &linear,
                                                        .rows = rows,
                                                        .context = &scanned[i],
                                                        .calls = rows > 100 ? 1 << 11 : CALLS};
        unlink(own);
        snprintf(own, sizeof own, "%s-%zu-failing", path, i);
        setenv("NCCL_TUNER_TABLE", own, 1);
        write_failing_table(own, rows);
        subjects[1 + 2 * ROW_COUNTS + i] = (struct subject){.name = "ours, rows that cannot run",
                                                            .plugin = ours,
                                                            .rows = rows,
                                                            .context = open_ours(ours),
                                                            .calls = CALLS};
        unlink(own);
    }
    size_t count = sizeof subjects / sizeof subjects[0];
    /* All in turn, so that what else the machine does meets all alike. */
    for (int repeat = 0; repeat < REPEATS; repeat++) {
        for (size_t i = 0; i < count; i++) {
            subjects[i].times[repeat] = nanoseconds_a_call(&subjects[i]);
        }
    }
    printf("\"calls\": [");
    for (size_t i = 0; i < count; i++) {
        printf("%s{\"plugin\": \"%s\", \"rows\": %zu, \"ns\": %.2f}", i ? ", " : "", subjects[i].name, subjects[i].rows,
               median(subjects[i].times));
        if (subjects[i].plugin == ours) {
            ours->base.finalize(subjects[i].context);
        }
    }
    printf("]");
}

/* "VmRSS:   1234 kB" of /proc/self/status. */
static long status_kib(const char *key) {
    char line[256];
    long value = -1;
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file)) {
        if (strncmp(line, key, strlen(key)) == 0) {
            sscanf(line + strlen(key), ": %ld", &value);
        }
    }
    if (!file || fclose(file) != 0 || value < 0) {
        stop("no memory figures in /proc/self/status");
    }
    return value;
}

struct opened {
    double init_ns;
    long resident_kib, peak_kib;
};

/* In a process of its own, which has the plugin loaded and nothing of it run. */
static struct opened open_once(const struct plugin_v6 *ours) {
    struct opened opened;
    int ends[2];
    if (pipe(ends) != 0) {
        stop("no pipe");
    }
    pid_t child = fork();
    if (child == 0) {
        long before_kib = status_kib("VmRSS");
        FILE *file = fopen("/proc/self/clear_refs", "w"); /* "5": the peak begins anew */
        if (!file || fputs("5", file) < 0 || fclose(file) != 0) {
            stop("cannot reset VmHWM");
        }
        double start = now_ns();
        open_ours(ours);
        opened.init_ns = now_ns() - start;
        opened.resident_kib = status_kib("VmRSS") - before_kib;
        opened.peak_kib = status_kib("VmHWM") - before_kib;
        _exit(write(ends[1], &opened, sizeof opened) == sizeof opened ? 0 : 1);
    }
    close(ends[1]);
    if (child < 0 || read(ends[0], &opened, sizeof opened) != sizeof opened || waitpid(child, NULL, 0) != child) {
        stop("the child that measures init gave nothing");
    }
    close(ends[0]);
    return opened;
}

static void measure_opening(const struct plugin_v6 *ours, const char *path) {
    printf("\"openings\": [");
    for (size_t i = 0; i < ROW_COUNTS; i++) {
        double init_ns[REPEATS], resident_kib[REPEATS], peak_kib[REPEATS];
        write_table(path, row_counts[i]);
        for (int repeat = 0; repeat < REPEATS; repeat++) {
            struct opened opened = open_once(ours);
            init_ns[repeat] = opened.init_ns;
            resident_kib[repeat] = (double)opened.resident_kib;
            peak_kib[repeat] = (double)opened.peak_kib;
        }
        printf("%s{\"rows\": %zu, \"init_ms\": %.3f, \"resident_kib\": %.0f, \"peak_kib\": %.0f}", i ? ", " : "",
               row_counts[i], median(init_ns) / 1e6, median(resident_kib), median(peak_kib));
    }
    printf("]");
}

static void stay_on(int core) {
    cpu_set_t cores;
    CPU_ZERO(&cores);
    CPU_SET((size_t)core, &cores);
    if (sched_setaffinity(0, sizeof cores, &cores) != 0) {
        stop("cannot stay on this core");
    }
}

int main(int count, char **words) {
    void *library = count == 3 ? dlopen(words[1], RTLD_NOW) : NULL;
    const struct plugin_v6 *ours = library ? dlsym(library, "ncclTunerPlugin_v6") : NULL;
    if (!ours) {
        stop("usage: bench PLUGIN.so CORE");
    }
    stay_on(atoi(words[2]));
    struct source source = {.seed = 1};
    for (int i = 0; i < CALLS; i++) {
        calls[i] = (struct call){(int)below(&source, COLLECTIVES), (size_t)(draw(&source) >> 34)};
    }
    char path[] = "/tmp/nccl-tuner-bench-XXXXXX";
    int file = mkstemp(path);
    if (file < 0 || close(file) != 0) {
        stop("cannot write a table");
    }
    setenv("NCCL_TUNER_TABLE", path, 1);
    printf("{");
    measure_opening(ours, path); /* first: later, memory that others have freed would be used again */
    printf(", ");
    measure_calls(ours, path);
    printf("}\n");
    unlink(path);
    return 0;
}
