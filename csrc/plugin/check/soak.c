/* Whole sequences of the plugin, for as long as one likes, under the sanitizers: `make soak`.
 *
 *     soak FOLDER SECONDS SEED     threads open communicators of all versions, call, and close them, and profile
 *                                  collectives, while the tables and the switch are replaced under them by whole files,
 *                                  halves, nothing, folders and FIFOs
 *
 * Within a life all threads hold the tables: what a communicator of one size and version decides is what every other one
 * decides, whatever has become of the file meanwhile. Between lives the process forgets the tables, and another
 * environment holds. A life in which no thread gets a step further for long is aborted: a machine that is busy is slow in
 * all of them, a lock that nobody gives back stops them. */
#define main of_events
#include "events.c"
#undef main

#include <errno.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "../../call/versions.h"
#include "../interface.h"

enum { WORKERS = 6, SLOTS = 4, FILES = 4, MOST_LOCAL = 8, PROBES = 24, STEPS = 400 };
enum { PAUSE_MS = 10, MOST_PAUSES = 300 * 1000 / PAUSE_MS }; /* so many without a step of any thread */
enum { EXPLORES = FILES - 1 }; /* whose table explores: what it decides depends on the calls before */

/* Its form would give each word a line. */
/* clang-format off */
static const char *const contents[] = {
    "nccl-tuner-table 1\nallreduce bytes=64K..4M -> tree/simple channels=8 chunk=64K | ring/ll\n",
    "nccl-tuner-table 1\nallreduce ranks=..16 -> ring/ll128 channels=4\nallgather registered=yes -> nvls/simple\n",
    "nccl-tuner-table 1\ncost allreduce bytes=1M.. -> tree/ll128 latency-us=3 bandwidth-gbs=1e-3\nconstant "
        "base-latency-us tree/ll 6.5\nbroadcast -> ring/simple channels=2\n",
    "allreduce,0,65536,tree,simple,2,-1,-1,-1,1\nreduce, 1, 2, ring, simple, 0, -1, -1, -1, -1\n",
    "nccl-tuner-table 1\nallreduce -> ring", "", "\0\xff", "nccl-tuner-table 1\n",
};
/* clang-format on */
static const char explores[] =
    "nccl-tuner-table 1\nallreduce bytes=1K.. -> explore ring/ll | nccl every=2 block=3 calls=9\n";

static const char *folder;
static atomic_bool stops;
static atomic_ulong decided[FILES][MOST_LOCAL + 1]
                           [MOST_VERSION + 1]; /* by nodes, local ranks, version; 0: nobody yet */
static atomic_ulong opened_count, call_count, replaced_count, event_count, step_count, ended_count;

struct worker {
    struct source source;
    void *contexts[SLOTS];
    int versions[SLOTS]; /* 0: closed */
    uint64_t number;
};

static void path_of(char *path, const char *name, size_t number) {
    CHECK(snprintf(path, PATH_MAX, "%s/%zu%s", folder, number, name) < PATH_MAX);
}

/* One way in which a file becomes another: each of them may be met by a reader at any moment. */
static void replace(struct source *source, size_t number) {
    char path[PATH_MAX], following[PATH_MAX];
    path_of(path, ".table", number);
    path_of(following, ".new", number);
    size_t which = below(source, sizeof contents / sizeof *contents);
    const char *text = number == EXPLORES + 1 && below(source, 2) ? explores : contents[which];
    switch (below(source, 8)) {
    case 0:
        remove(path);
        break;
    case 1:
        remove(path);
        CHECK(mkdir(path, 0700) == 0 || errno == EEXIST);
        break;
    case 2:
        remove(path);
        CHECK(mkfifo(path, 0600) == 0 || errno == EEXIST);
        break;
    default: {
        FILE *file = fopen(following, "w");
        CHECK(file && fwrite(text, 1, strlen(text), file) == strlen(text) && fclose(file) == 0);
        if (rename(following, path) != 0) { /* a folder is there */
            remove(path);
        }
    }
    }
    atomic_fetch_add(&replaced_count, 1);
}

/* A line as the command adds it: after those that are there, and of a time that no job here has reached. */
static void append_to_switch(struct source *source, const char *mode) {
    char path[PATH_MAX];
    path_of(path, ".switch", 0);
    FILE *file = fopen(path, mode);
    CHECK(file);
    CHECK(fprintf(file, "%s %lu\n", below(source, 2) ? "off" : "on", (unsigned long)time(NULL) + 1000) > 0);
    CHECK(fclose(file) == 0);
}

static void *replace_all(void *argument) {
    struct source source = {.seed = *(uint64_t *)argument};
    struct timespec pause = {.tv_nsec = 200000};
    while (!atomic_load(&stops)) {
        replace(&source, 1 + below(&source, FILES));
        if (below(&source, 10) == 0) {
            append_to_switch(&source, "a");
        }
        nanosleep(&pause, NULL);
    }
    atomic_fetch_add(&ended_count, 1);
    return NULL;
}

static uint64_t mixed(uint64_t sum, const void *bytes, size_t size) {
    for (size_t i = 0; i < size; i++) {
        sum = (sum ^ ((const uint8_t *)bytes)[i]) * 1099511628211u;
    }
    return sum;
}

/* A call with memory of exactly its size, and a sum over what was decided. */
static uint64_t ask(int version, void *context, struct source *source) {
    struct call call = {.collective = (int)below(source, 5), .bytes = draw_size(source), .pipelined = 1};
    call.registered = version > 3 ? (int)below(source, 2) : 0;
    int algorithm = -7, protocol = -7, channels = -7;
    size_t chunk_bytes = 12345, size = CELLS * sizeof(float);
    atomic_fetch_add(&call_count, 1);
    if (version < 3) {
        CHECK(call_by_name(version, context, &call, &algorithm, &protocol, &channels) == RESULT_SUCCESS);
        int said[] = {algorithm, protocol, channels};
        return mixed(1, said, sizeof said);
    }
    float *cells = malloc(size);
    CHECK(cells);
    for (int cell = 0; cell < CELLS; cell++) {
        cells[cell] = (float)(1 + below(source, 1000));
    }
    struct cost_cells costs = {cells, ALGORITHMS, PROTOCOLS};
    CHECK(call_with_costs(version, context, &call, costs, &channels) == RESULT_SUCCESS);
    if (version >= 6) {
        struct chunk_call chunk = {call.bytes, call.collective, (int)below(source, ALGORITHMS), 2, 4};
        CHECK(call_chunk_size(version, context, &chunk, &chunk_bytes) == RESULT_SUCCESS);
    }
    uint64_t sum = mixed(mixed(mixed(1, cells, size), &channels, sizeof channels), &chunk_bytes, sizeof chunk_bytes);
    free(cells);
    return sum;
}

/* The same calls of every communicator of this size and version come to the same. */
static void check_alike(int version, void *context, size_t nodes, size_t local) {
    if (version == 1 || nodes == EXPLORES + 1) { /* version 1 has one state for all sizes */
        return;
    }
    struct source probes = {.seed = 7};
    unsigned long sum = 1, unset = 0;
    for (int i = 0; i < PROBES; i++) {
        sum = sum * 31 + ask(version, context, &probes);
    }
    sum += !sum;
    if (!atomic_compare_exchange_strong(&decided[nodes - 1][local][version], &unset, sum)) {
        CHECK(unset == sum);
    }
}

static void step(struct worker *worker) {
    struct source *source = &worker->source;
    size_t slot = below(source, SLOTS);
    int *version = &worker->versions[slot];
    void **context = &worker->contexts[slot];
    if (*version == 0) {
        size_t nodes = 1 + below(source, FILES), local = 1 + below(source, MOST_LOCAL);
        double constants[MOST_CONSTANTS] = {0};
        struct call_communicator described = {nodes * local, nodes, 0};
        *version = LEAST_VERSION + (int)below(source, MOST_VERSION);
        CHECK(call_init(*version, &described, NULL, constants, context) == RESULT_SUCCESS);
        atomic_fetch_add(&opened_count, 1);
        check_alike(*version, *context, nodes, local);
    } else if (below(source, 8) == 0) {
        CHECK(call_finalize(*version, *context) == RESULT_SUCCESS);
        *version = 0;
    } else {
        for (size_t calls = below(source, 50); calls > 0; calls--) {
            ask(*version, *context, source);
        }
    }
}

/* Collectives as NCCL tells of them: launched, seen on their channels, and the communicator ended. */
static void profile(struct worker *worker) {
    void *context = open_context(draw(&worker->source), (int)worker->number);
    for (size_t calls = below(&worker->source, 40), i = 0; i < calls; i++) {
        void *handle = launch(context, i, 1024u << below(&worker->source, 4), (int)below(&worker->source, 6));
        for (unsigned channel = 0; channel < CHANNELS; channel++) {
            kernel(context, handle, channel, 1000 * i, 1000 * i + 500 + channel);
        }
        atomic_fetch_add(&event_count, 1);
    }
    ncclProfiler_v6.finalize(context);
}

static void *work(void *argument) {
    struct worker *worker = argument;
    for (int i = 0; i < STEPS; i++) {
        if (below(&worker->source, 20) == 0) {
            profile(worker);
        } else {
            step(worker);
        }
        atomic_fetch_add(&step_count, 1);
    }
    for (int slot = 0; slot < SLOTS; slot++) {
        CHECK(!worker->versions[slot] ||
              call_finalize(worker->versions[slot], worker->contexts[slot]) == RESULT_SUCCESS);
    }
    atomic_fetch_add(&ended_count, 1);
    return NULL;
}

/* Until so many threads have ended. Joining them could not tell a busy machine from a lock that nobody gives back. */
static void wait_for(unsigned long threads) {
    struct timespec pause = {.tv_nsec = PAUSE_MS * 1000000L};
    unsigned long before = 0, steps;
    for (int pauses = 0; atomic_load(&ended_count) < threads; pauses++) {
        nanosleep(&pause, NULL);
        if ((steps = atomic_load(&step_count) + atomic_load(&ended_count)) != before) {
            before = steps;
            pauses = 0;
        }
        if (pauses >= MOST_PAUSES) {
            printf("no step of any thread in %d s: %lu of %lu threads have ended, after %lu steps\n",
                   MOST_PAUSES * PAUSE_MS / 1000, atomic_load(&ended_count), threads, atomic_load(&step_count));
            fflush(stdout);
            abort();
        }
    }
}

static void set(const char *name, const char *suffix, bool is) {
    char path[PATH_MAX];
    CHECK(snprintf(path, sizeof path, "%s/%s", folder, suffix) < (int)sizeof path);
    CHECK((is ? setenv(name, path, 1) : unsetenv(name)) == 0);
}

static void live_once(struct source *source) {
    char text[32], path[PATH_MAX];
    set("NCCL_TUNER_TABLE", "%n.table", true);
    set("NCCL_TUNER_SWITCH", "0.switch", below(source, 2));
    set("NCCL_TUNER_LIVE", "live", below(source, 2));
    set("NCCL_TUNER_STATS", "stats", below(source, 2));
    set("NCCL_TUNER_JOB", "job", true);
    snprintf(text, sizeof text, "%lu", (unsigned long)time(NULL));
    setenv("NCCL_TUNER_JOB_TIME", text, 1);
    setenv("NCCL_TUNER_UNCHECKED", below(source, 2) ? "1" : "0", 1);
    setenv("NCCL_TUNER_CONSTANTS", below(source, 2) ? "1" : "0", 1);
    snprintf(path, sizeof path, "%s/stats", folder);
    remove(path);
    append_to_switch(source, "w");
    memset(decided, 0, sizeof decided);
    for (size_t number = 1; number <= FILES; number++) {
        replace(source, number);
    }
    pthread_t threads[WORKERS], replacing;
    struct worker workers[WORKERS] = {0};
    uint64_t seed = draw(source);
    atomic_store(&stops, false);
    atomic_store(&ended_count, 0);
    atomic_store(&step_count, 0);
    CHECK(pthread_create(&replacing, NULL, replace_all, &seed) == 0);
    for (int i = 0; i < WORKERS; i++) {
        workers[i].number = (uint64_t)i;
        workers[i].source.seed = draw(source);
        CHECK(pthread_create(&threads[i], NULL, work, &workers[i]) == 0);
    }
    wait_for(WORKERS);
    atomic_store(&stops, true);
    wait_for(WORKERS + 1);
    for (int i = 0; i < WORKERS; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0);
    }
    CHECK(pthread_join(replacing, NULL) == 0);
    call_forget_tables(); /* as if in another process */
}

int main(int count, char **words) {
    CHECK(count == 4);
    folder = words[1];
    time_t end = time(NULL) + atol(words[2]);
    struct source source = {.seed = strtoull(words[3], NULL, 10)};
    unsigned long lives = 0;
    do {
        live_once(&source);
        lives++;
    } while (time(NULL) < end);
    printf("%lu lives, %lu communicators, %lu calls, %lu collectives profiled, %lu files replaced: nothing found\n",
           lives, atomic_load(&opened_count), atomic_load(&call_count), atomic_load(&event_count),
           atomic_load(&replaced_count));
    return 0;
}
