/* What communicators of one process share; NCCL_TUNER_TABLE names the table.
 *
 *     sharing fork COUNT      version 1: forks COUNT times while other threads create communicators and end them
 *     sharing memory COUNT    version 6: KiB that COUNT communicators of one size take, after the first
 *     sharing sizes COUNT     version 6: KiB that are left of COUNT communicators of as many sizes, one after the other
 *     sharing work            version 6: what the first init does and what the second of the same size does: reads of
 *                             the file, basic blocks run (compiled with -fsanitize-coverage=trace-pc)
 *     sharing replaced COUNT  version 6: COUNT times, threads create communicators at once, the file is replaced between
 *                             their reads of it
 *
 * Linked with -Wl,--wrap=file_read. */
#define _GNU_SOURCE

#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../call/versions.h"
#include "../interface.h"
#include "../tables.h"
#include "checks.h"

enum { THREADS = 3, RANKS = 16, NODES = 2, MOST_SECONDS = 10, OPENING_THREADS = 8 };

static atomic_bool stops;

static void *open_and_close(void *unused) {
    (void)unused;
    while (!atomic_load(&stops)) {
        ncclTunerPlugin_v1.init(RANKS, NODES, NULL);
        ncclTunerPlugin_v1.destroy();
    }
    return NULL;
}

/* The child does what a process does that goes on with NCCL; an alarm ends it where it spins. */
static bool child_goes_on(void) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        alarm(MOST_SECONDS);
        for (int i = 0; i < 3; i++) {
            ncclTunerPlugin_v1.init(RANKS, NODES, NULL);
            ncclTunerPlugin_v1.destroy();
        }
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static void check_fork(int count) {
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) {
        CHECK(pthread_create(&threads[i], NULL, open_and_close, NULL) == 0);
    }
    int stuck = 0;
    for (int i = 0; i < count && stuck == 0; i++) {
        stuck += !child_goes_on();
    }
    atomic_store(&stops, true);
    for (int i = 0; i < THREADS; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0);
    }
    printf("%d stuck\n", stuck);
}

static void *open_one(void) {
    void *context = NULL;
    CHECK(ncclTunerPlugin_v6.nccl.base.init(&context, 1, RANKS, NODES, NULL, NULL, NULL) == RESULT_SUCCESS);
    CHECK(context != NULL);
    return context;
}

/* Other content at each call, by an atomic rename. */
static void replace_file(void) {
    static int number;
    const char *path = getenv("NCCL_TUNER_TABLE");
    char following[4096];
    CHECK(path && snprintf(following, sizeof following, "%s.new", path) < (int)sizeof following);
    FILE *file = fopen(following, "w");
    CHECK(file);
    fprintf(file, "nccl-tuner-table 1\nallreduce -> ring/ll channels=%d\n", number++ % MAX_CHANNELS + 1);
    CHECK(fclose(file) == 0 && rename(following, path) == 0);
}

static pthread_barrier_t together;
static pthread_mutex_t reading = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local bool meets; /* this thread's next read waits for those of the others */

bool __real_file_read(const char *path, struct file *file, struct file_error *error);
bool __wrap_file_read(const char *path, struct file *file, struct file_error *error);

static atomic_int reads;

bool __wrap_file_read(const char *path, struct file *file, struct file_error *error) {
    atomic_fetch_add(&reads, 1);
    if (!meets) {
        return __real_file_read(path, file, error);
    }
    meets = false;
    pthread_barrier_wait(&together);
    pthread_mutex_lock(&reading);
    replace_file();
    bool read = __real_file_read(path, file, error);
    pthread_mutex_unlock(&reading);
    return read;
}

/* What a communicator's table says. */
static int decided_channels(void *context) {
    float cells[CELLS];
    int channels = 0;
    for (int cell = 0; cell < CELLS; cell++) {
        cells[cell] = 10.0f;
    }
    CHECK(ncclTunerPlugin_v6.nccl.base.get_coll_info(context, COLLECTIVE_ALL_REDUCE, 1024, 1, (float **)(void *)cells,
                                                     ALGORITHMS, PROTOCOLS, 0, &channels) == RESULT_SUCCESS);
    return channels;
}

static void *open_together(void *context) {
    meets = true;
    *(void **)context = open_one();
    return NULL;
}

static bool all_decide_alike(void) {
    pthread_t threads[OPENING_THREADS];
    void *contexts[OPENING_THREADS];
    for (int i = 0; i < OPENING_THREADS; i++) {
        CHECK(pthread_create(&threads[i], NULL, open_together, &contexts[i]) == 0);
    }
    bool alike = true;
    for (int i = 0; i < OPENING_THREADS; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0);
        alike &= decided_channels(contexts[i]) == decided_channels(contexts[0]);
    }
    for (int i = 0; i < OPENING_THREADS; i++) {
        CHECK(ncclTunerPlugin_v6.nccl.base.finalize(contexts[i]) == RESULT_SUCCESS);
    }
    return alike;
}

static void check_replaced(int count) {
    int apart = 0;
    replace_file();
    CHECK(pthread_barrier_init(&together, NULL, OPENING_THREADS) == 0);
    for (int i = 0; i < count; i++) {
        apart += !all_decide_alike();
        call_forget_tables(); /* as if in another process */
    }
    printf("%d apart\n", apart);
}

static long resident_kib(void) {
    char line[256];
    long kib = -1;
    FILE *file = fopen("/proc/self/status", "r");
    CHECK(file);
    while (fgets(line, sizeof line, file)) {
        if (strncmp(line, "VmRSS:", 6) == 0) {
            sscanf(line + 6, "%ld", &kib);
        }
    }
    fclose(file);
    return kib;
}

static unsigned long long blocks;

/* The compiler has each basic block call this. */
void __sanitizer_cov_trace_pc(void);

__attribute__((no_sanitize_coverage)) void __sanitizer_cov_trace_pc(void) {
    blocks++;
}

static void check_work(void) {
    for (int i = 0; i < 2; i++) {
        int reads_before = atomic_load(&reads);
        unsigned long long blocks_before = blocks;
        open_one();
        printf("%d %llu\n", atomic_load(&reads) - reads_before, blocks - blocks_before);
    }
}

static void open_and_end(size_t nodes) {
    void *context;
    CHECK(ncclTunerPlugin_v6.nccl.base.init(&context, 1, 8 * nodes, nodes, NULL, NULL, NULL) == RESULT_SUCCESS);
    CHECK(ncclTunerPlugin_v6.nccl.base.finalize(context) == RESULT_SUCCESS);
}

int main(int count, char **words) {
    CHECK(count >= 2);
    int number = count > 2 ? atoi(words[2]) : 0;
    if (strcmp(words[1], "fork") == 0) {
        check_fork(number);
    } else if (strcmp(words[1], "replaced") == 0) {
        check_replaced(number);
    } else if (strcmp(words[1], "memory") == 0) {
        open_one();
        long before_kib = resident_kib();
        for (int i = 0; i < number; i++) {
            open_one();
        }
        printf("%ld KiB\n", resident_kib() - before_kib);
    } else if (strcmp(words[1], "sizes") == 0) {
        open_and_end(1);
        long before_kib = resident_kib();
        for (int i = 0; i < number; i++) {
            open_and_end((size_t)i + 2);
        }
        malloc_trim(0);
        printf("%ld KiB\n", resident_kib() - before_kib);
    } else {
        CHECK(strcmp(words[1], "work") == 0);
        check_work();
    }
    return 0;
}
