/* How long the plugin's calls take and what a table costs, as JSON; benchmarks/plugin.py builds this and prints it.
 *
 *     bench PLUGIN.so COUNTING_NOTHING.so CORE [EXAMPLE.so]
 *     bench PLUGIN.so ROWS    calls alone, twice: callgrind counts the instructions of the second time, in ask_again
 *
 * Random sizes and collectives, NCCL's kind of logger attached, interface version 6 (the example's: 5); the floor is a
 * plugin that does nothing, which is also asked where the table has no row. Comparisons: the plugin built without its
 * counts, a scan of the rows as NVIDIA's example does it (without that one's logging), and that example, where given.
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

enum { RANKS = 16, NODES = 2 };

struct row {
    int collective, algorithm, protocol, channels, nodes, ranks, pipelined, registered;
    size_t least, most;
};

_Noreturn static void stop(const char *reason) {
    fprintf(stderr, "bench: %s\n", reason);
    exit(2);
}

/* Rows side by side over 0 .. 1 GiB for each collective in turn. */
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

/* The same in NVIDIA's CSV. */
static void write_csv(const char *path, size_t rows) {
    static const char *const collectives[] = {"broadcast", "reduce", "allgather", "reducescatter", "allreduce"};
    static const char *const protocols[] = {"ll", "ll128", "simple"};
    FILE *file = fopen(path, "w");
    if (!file) {
        stop("cannot write a table");
    }
    for (size_t i = 0; i < rows; i++) {
        struct row row = row_of(i, rows);
        fprintf(file, "%s,%zu,%zu,ring,%s,%d,%d,%d,-1,-1\n", collectives[row.collective], row.least, row.most,
                protocols[row.protocol], row.channels, row.nodes, row.ranks);
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

/* The calls are timed in pieces, and the least of each piece counts: a piece is short enough to run undisturbed. */
enum { CALLS = 1 << 18, PIECES = 64, REPEATS = 25, OPENINGS = 9, MOST_ROWS = 100000 };

static const size_t row_counts[] = {10, 1000, 10000, MOST_ROWS};
enum { ROW_COUNTS = sizeof row_counts / sizeof row_counts[0] };

/* Of this thread's processor time: what else the machine does counts only as far as it empties caches. */
static double now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static int by_value(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static double median(double *times, size_t count) {
    qsort(times, count, sizeof times[0], by_value);
    return times[count / 2];
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

/* NCCL's where NCCL_DEBUG asks for nothing: the example logs as it goes through its rows. */
static void hear_nothing(int level, unsigned long flags, const char *file, int line, const char *format, ...) {
    (void)level, (void)flags, (void)file, (void)line, (void)format;
}

#define EXAMPLE "NVIDIA's example"

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

static int start_nothing(void **context, uint64_t communicator, size_t ranks, size_t nodes, nccl_logger logger,
                         struct domains *domains, struct constants *constants) {
    (void)communicator, (void)ranks, (void)nodes, (void)logger, (void)domains, (void)constants;
    *context = NULL;
    return RESULT_SUCCESS;
}

static int end_nothing(void *context) {
    (void)context;
    return RESULT_SUCCESS;
}

/* NCCL_TUNER_NEXT=STATIC_PLUGIN finds it. */
struct plugin_v6_and_trial ncclTunerPlugin_v6 = {.nccl.base = {"empty", start_nothing, do_nothing, end_nothing}};
static const struct plugin_v6 linear = {.base = {.name = "linear", .get_coll_info = scan}};

/* A thing to measure: a plugin with a table. */
struct subject {
    const char *name;
    const struct plugin_v5 *plugin;
    size_t rows;
    void *context;
    int calls;
    double times[REPEATS]; /* ns of all calls */
    double least[PIECES];  /* ns of each piece, of all repeats */
};

struct drawn_call {
    int collective;
    size_t bytes;
};
static struct drawn_call calls[CALLS];

__attribute__((noinline, noclone)) static void ask(const struct subject *subject, int from, int to,
                                                   const float fresh[CELLS]) {
    float cells[CELLS];
    for (int i = from; i < to; i++) {
        int channels = 0;
        memcpy(cells, fresh, sizeof cells);
        subject->plugin->get_coll_info(subject->context, calls[i].collective, calls[i].bytes, 1,
                                       (float **)(void *)cells, ALGORITHMS, PROTOCOLS, 0, &channels);
    }
}

/* A DGX H100 pod's allreduce, as far as its shape matters: some cells ignored, the others in no order. */
static void fill_costs(float costs[CELLS]) {
    for (int cell = 0; cell < CELLS; cell++) {
        costs[cell] = cell % 7 == 6 || cell >= 12 ? IGNORED_US : (float)(10 + cell * 37 % 21);
    }
}

static void measure_once(struct subject *subject, int repeat) {
    float fresh[CELLS];
    fill_costs(fresh);
    subject->times[repeat] = 0;
    for (int piece = 0; piece < PIECES; piece++) {
        int calls_each = subject->calls / PIECES;
        double start = now_ns();
        ask(subject, piece * calls_each, (piece + 1) * calls_each, fresh);
        double took = now_ns() - start;
        subject->times[repeat] += took;
        if (repeat == 0 || took < subject->least[piece]) {
            subject->least[piece] = took;
        }
    }
}

static double least_ns(const struct subject *subject) {
    double sum = 0;
    for (int piece = 0; piece < PIECES; piece++) {
        sum += subject->least[piece];
    }
    return sum / subject->calls;
}

static void *open_plugin(const struct plugin_v5 *plugin, nccl_logger logger) {
    void *context = NULL;
    if (plugin->init(&context, 0, RANKS, NODES, logger, NULL, NULL) != RESULT_SUCCESS || !context) {
        stop("init found no table");
    }
    return context;
}

/* What is measured: at most one of each kind and number of rows. */
enum { MOST_SUBJECTS = 2 + 6 * ROW_COUNTS };
static struct subject subjects[MOST_SUBJECTS];
static size_t subject_count;

static struct subject *add(const char *name, const struct plugin_v5 *plugin, size_t rows) {
    struct subject *subject = &subjects[subject_count++];
    *subject = (struct subject){.name = name, .plugin = plugin, .rows = rows, .calls = CALLS};
    return subject;
}

typedef void table_writer(const char *path, size_t rows);

/* A table of its own for each: the plugin reads a path once. */
static void add_with_table(const char *name, const struct plugin_v5 *plugin, table_writer *write, size_t rows) {
    char path[] = "/tmp/nccl-tuner-bench-XXXXXX";
    int file = mkstemp(path);
    if (file < 0 || close(file) != 0) {
        stop("cannot write a table");
    }
    write(path, rows);
    setenv("NCCL_TUNER_TABLE", path, 1);
    setenv("NCCL_TUNER_CONFIG_FILE", path, 1);
    add(name, plugin, rows)->context = open_plugin(plugin, strcmp(name, EXAMPLE) == 0 ? hear_nothing : listen);
    unlink(path);
}

static void add_scan(size_t rows) {
    struct scanned *scanned = malloc(sizeof *scanned);
    if (!scanned) {
        stop("out of memory");
    }
    scanned->count = rows;
    for (size_t row = 0; row < rows; row++) {
        scanned->rows[row] = row_of(row, rows);
    }
    struct subject *subject = add("linear scan", &linear.base, rows);
    subject->context = scanned;
    subject->calls = rows > 100 ? 1 << 11 : CALLS;
}

struct plugins {
    const struct plugin_v5 *ours, *counting_nothing, *example; /* no example: NULL */
    const struct plugin_v5 *newest; /* ours by version 7, which begins like version 5 but for the constants */
};

static void add_subjects(const struct plugins *plugins) {
    add("empty", &ncclTunerPlugin_v6.nccl.base, 0);
    for (size_t i = 0; i < ROW_COUNTS; i++) {
        add_with_table("ours", plugins->ours, write_table, row_counts[i]);
        add_with_table("ours, v7", plugins->newest, write_table, row_counts[i]);
        add_with_table("ours, counting nothing", plugins->counting_nothing, write_table, row_counts[i]);
        add_with_table("ours, rows that cannot run", plugins->ours, write_failing_table, row_counts[i]);
        if (plugins->example) {
            add_with_table(EXAMPLE, plugins->example, write_csv, row_counts[i]);
            subjects[subject_count - 1].calls = row_counts[i] > 100 ? 1 << 8 : CALLS;
        }
        add_scan(row_counts[i]);
    }
    setenv("NCCL_TUNER_NEXT", "STATIC_PLUGIN", 1);
    add_with_table("ours, without a row asks the empty one", plugins->ours, write_table, 0);
}

static void measure_calls(const struct plugins *plugins) {
    add_subjects(plugins);
    /* All in turn, so that what else the machine does meets all alike. */
    for (int repeat = 0; repeat < REPEATS; repeat++) {
        for (size_t i = 0; i < subject_count; i++) {
            measure_once(&subjects[i], repeat);
        }
    }
    printf("\"calls\": [");
    for (size_t i = 0; i < subject_count; i++) {
        double middle = median(subjects[i].times, REPEATS) / subjects[i].calls;
        printf("%s{\"plugin\": \"%s\", \"rows\": %zu, \"ns\": %.2f, \"least_ns\": %.2f}", i ? ", " : "",
               subjects[i].name, subjects[i].rows, middle, least_ns(&subjects[i]));
        if (subjects[i].plugin->finalize) {
            subjects[i].plugin->finalize(subjects[i].context);
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
static struct opened open_once(const struct plugin_v5 *ours) {
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
        open_plugin(ours, listen);
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

static void measure_opening(const struct plugin_v5 *ours, const char *path) {
    printf("\"openings\": [");
    for (size_t i = 0; i < ROW_COUNTS; i++) {
        double init_ns[OPENINGS], resident_kib[OPENINGS], peak_kib[OPENINGS];
        write_table(path, row_counts[i]);
        for (int repeat = 0; repeat < OPENINGS; repeat++) {
            struct opened opened = open_once(ours);
            init_ns[repeat] = opened.init_ns;
            resident_kib[repeat] = (double)opened.resident_kib;
            peak_kib[repeat] = (double)opened.peak_kib;
        }
        printf("%s{\"rows\": %zu, \"init_ms\": %.3f, \"resident_kib\": %.0f, \"peak_kib\": %.0f}", i ? ", " : "",
               row_counts[i], median(init_ns, OPENINGS) / 1e6, median(resident_kib, OPENINGS),
               median(peak_kib, OPENINGS));
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

/* NULL where there is none. */
static const struct plugin_v5 *load(const char *path, const char *symbol) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    return library ? dlsym(library, symbol) : NULL;
}

/* What callgrind collects: calls of rows that have all decided before. */
__attribute__((noinline, noclone)) static void ask_again(const struct subject *subject, const float fresh[CELLS]) {
    ask(subject, 0, subject->calls, fresh);
}

static void ask_twice(const struct plugin_v5 *plugin, size_t rows) {
    add_with_table("ours", plugin, write_table, rows);
    subjects->calls = CALLS / 8;
    float fresh[CELLS];
    fill_costs(fresh);
    ask(subjects, 0, subjects->calls, fresh);
    ask_again(subjects, fresh);
}

static void draw_calls(void) {
    struct source source = {.seed = 1};
    for (int i = 0; i < CALLS; i++) {
        calls[i] = (struct drawn_call){(int)below(&source, COLLECTIVES), (size_t)(draw(&source) >> 34)};
    }
}

int main(int count, char **words) {
    struct plugins plugins = {0};
    draw_calls();
    if (count == 3) {
        setenv("NCCL_TUNER_NEXT", "none", 1);
        plugins.ours = load(words[1], "ncclTunerPlugin_v6");
        if (!plugins.ours) {
            stop("no plugin");
        }
        ask_twice(plugins.ours, strtoul(words[2], NULL, 10));
        return 0;
    }
    if (count == 4 || count == 5) {
        plugins.ours = load(words[1], "ncclTunerPlugin_v6");
        plugins.newest = load(words[1], "ncclTunerPlugin_v7");
        plugins.counting_nothing = load(words[2], "ncclTunerPlugin_v6");
        plugins.example = count == 5 ? load(words[4], "ncclTunerPlugin_v5") : NULL;
    }
    if (!plugins.ours || !plugins.counting_nothing || (count == 5 && !plugins.example)) {
        stop("usage: bench PLUGIN.so COUNTING_NOTHING.so CORE [EXAMPLE.so]");
    }
    stay_on(atoi(words[3]));
    char path[] = "/tmp/nccl-tuner-bench-XXXXXX";
    int file = mkstemp(path);
    if (file < 0 || close(file) != 0) {
        stop("cannot write a table");
    }
    setenv("NCCL_TUNER_TABLE", path, 1);
    setenv("NCCL_TUNER_NEXT", "none", 1);
    printf("{");
    measure_opening(plugins.ours, path); /* first: later, memory that others have freed would be used again */
    printf(", ");
    measure_calls(&plugins);
    printf("}\n");
    unlink(path);
    return 0;
}
