/* Drives the plugin's C code without NCCL, for builds under the sanitizers: random bytes through the parser, random
 * calls through the exported plugin, many communicators at once. Exits 0, or stops at the first thing that is wrong.
 *
 *     driver bytes SEED COUNT      the parser and the lookup on tables made of random pieces
 *     driver calls SEED COUNT      getCollInfo on random cost tables; NCCL_TUNER_TABLE names the table
 *     driver threads SEED COUNT    the same from eight threads, a communicator each, opened and closed again and again
 */
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../abi.h"
#include "../lookup.h"
#include "../table.h"

/* The plugin as NCCL sees it. */
extern const struct {
    const char *name;
    int (*init)(void **, uint64_t, size_t, size_t, nccl_logger, void *, void *);
    int (*get_coll_info)(void *, int, size_t, int, float **, int, int, int, int *);
    int (*finalize)(void *);
} ncclTunerPlugin_v5;

#define CHECK(condition)                                                       \
    do {                                                                       \
        if (!(condition)) {                                                    \
            fprintf(stderr, "%s:%d: not %s\n", __FILE__, __LINE__, #condition); \
            exit(1);                                                           \
        }                                                                      \
    } while (0)

/* splitmix64 */
static uint64_t draw(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static size_t below(uint64_t *state, size_t bound) {
    return (size_t)(draw(state) % bound);
}

static size_t draw_size(uint64_t *state) {
    return draw(state) >> below(state, 64);
}

static const char *const pieces[] = {
    "allreduce", "AllGather", "reduce", "REDUCESCATTER", "broadcast", " ", " ", " ", " ", "\t", "\n", "\n", "\r\n", "\r",
    "bytes=", "ranks=", "nodes=", "channels=", "..", "..", "0", "1", "64K", "4MiB", "64", "65", "8G", "16", "2",
    "18446744073709551615", "18446744073709551616", "16777216T", "99999999999999999999999", "-1", "=", "->", " -> ",
    "ring/ll128", "tree/simple", "NVLS/Simple", "pat/ll", "ring/", "/ll", "#", "# comment", "\xff", "\xc3\xa9", "%s%n",
};

static const char *const whole_rows[] = {
    "allreduce -> ring/ll\n",
    "allreduce bytes=64K..4M ranks=16 nodes=2 -> tree/simple channels=8\n",
    "allgather bytes=..1G -> nvls/simple channels=64\n",
    "broadcast bytes=8G.. ranks=2..16 -> ring/ll128\n",
    "reducescatter bytes=0 -> pat/simple\n",
};

/* A table of random pieces in memory of exactly its length, so that a read past its end is seen. */
static struct slice draw_table(uint64_t *state) {
    char text[4096];
    size_t length = 0;
    if (below(state, 8)) {
        length = (size_t)sprintf(text, "nccl-tuner-table 1\n");
    }
    for (size_t count = below(state, 40); count > 0 && length < sizeof text - 128; count--) {
        if (below(state, 64) == 0) {
            text[length++] = (char)draw(state); /* any byte, zero included */
        } else if (below(state, 2)) {
            const char *piece = pieces[below(state, sizeof pieces / sizeof pieces[0])];
            length += (size_t)sprintf(text + length, "%s", piece);
        } else {
            const char *row = whole_rows[below(state, sizeof whole_rows / sizeof whole_rows[0])];
            length += (size_t)sprintf(text + length, "%s", row);
        }
    }
    char *copy = malloc(length ? length : 1);
    CHECK(copy);
    memcpy(copy, text, length);
    return (struct slice){copy, length};
}

static struct choice first_match(const struct table *table, int collective, size_t bytes, size_t ranks, size_t nodes) {
    for (size_t i = 0; i < table->count; i++) {
        const struct row *row = &table->rows[i];
        if (row->collective == collective && interval_holds(row->bytes, bytes) && interval_holds(row->ranks, ranks) &&
            interval_holds(row->nodes, nodes)) {
            return (struct choice){(int8_t)row->algorithm, (int8_t)row->protocol, (int8_t)row->channels};
        }
    }
    return (struct choice){-1, -1, 0};
}

static void check_table(struct slice text, uint64_t *state, size_t *accepted) {
    struct table table;
    struct table_error error;
    if (!table_parse(text, &table, &error)) {
        CHECK(table.rows == NULL && table.count == 0);
        CHECK(error.line >= 1 && strlen(error.reason) > 0 && strlen(error.reason) < sizeof error.reason - 1);
        for (const char *letter = error.reason; *letter; letter++) {
            CHECK(*letter >= ' ' && *letter <= '~');
        }
        return;
    }
    ++*accepted;
    struct lookup lookup;
    size_t ranks = 1 + below(state, 20), nodes = 1 + below(state, 3);
    CHECK(lookup_build(&table, ranks, nodes, &lookup));
    for (int query = 0; query < 8; query++) {
        int collective = (int)below(state, COLLECTIVES);
        size_t bytes = draw_size(state);
        struct choice found = lookup_find(&lookup, collective, bytes);
        struct choice expected = first_match(&table, collective, bytes, ranks, nodes);
        CHECK(found.algorithm == expected.algorithm && found.protocol == expected.protocol);
        CHECK(found.channels == expected.channels || (found.channels == 0 && lookup.channels_withheld > 0));
    }
    lookup_free(&lookup);
    table_free(&table);
}

static void check_bytes(uint64_t seed, size_t count) {
    size_t accepted = 0;
    for (size_t i = 0; i < count; i++) {
        struct slice text = draw_table(&seed);
        check_table(text, &seed, &accepted);
        free((void *)text.start);
    }
    printf("%zu tables, %zu accepted\n", count, accepted);
    CHECK(count < 1000 || (accepted > count / 100 && accepted < count / 2));
}

static float draw_cost(uint64_t *state) {
    static const float odd[] = {-1.0f, -1.0f, -1024.0f, 0.0f, -0.0f, 1e-45f, 8.0f, 8.0f, 3.6e9f, 3.4e38f};
    switch (below(state, 16)) {
    case 0:
        return NAN;
    case 1:
        return INFINITY;
    case 2:
    case 3:
    case 4:
        return odd[below(state, sizeof odd / sizeof odd[0])];
    default:
        return (float)below(state, 1000000) / 64.0f;
    }
}

/* What NCCL 2.28.9 takes from a cost table: -1 when nothing is left. */
static int pick(const float *cells, int count) {
    float best = 3600000000.0f;
    int found = -1;
    for (int cell = 0; cell < count; cell++) {
        if (cells[cell] != -1.0f && cells[cell] >= 0.0f && cells[cell] < best) {
            found = cell;
            best = cells[cell];
        }
    }
    return found;
}

static void check_call(void *context, uint64_t *state) {
    int algorithms = (int)below(state, 9), protocols = (int)below(state, 5), count = algorithms * protocols;
    size_t size = (size_t)count * sizeof(float);
    float *before = malloc(size + 1), *after = malloc(size + 1); /* never both empty and NULL */
    CHECK(before && after);
    for (int cell = 0; cell < count; cell++) {
        before[cell] = draw_cost(state);
    }
    if (count) {
        memcpy(after, before, size);
    }
    int channels = -7, collective = (int)below(state, 17) - 1;
    size_t bytes = draw_size(state);
    int result = ncclTunerPlugin_v5.get_coll_info(context, collective, bytes, 1, (float **)(void *)after, algorithms,
                                                  protocols, 0, below(state, 8) ? &channels : NULL);
    CHECK(result == RESULT_SUCCESS);
    result = ncclTunerPlugin_v5.get_coll_info(context, collective, bytes, 1, NULL, algorithms, protocols, 0, &channels);
    CHECK(result == RESULT_SUCCESS);
    CHECK(channels == -7 || (channels >= 1 && channels <= MAX_CHANNELS));
    int picked_before = pick(before, count), picked = pick(after, count);
    CHECK((picked_before < 0) == (picked < 0));
    bool changed = false;
    for (int cell = 0; cell < count; cell++) {
        if (memcmp(&before[cell], &after[cell], sizeof(float)) != 0) {
            changed = true;
            CHECK(before[cell] >= 0.0f && after[cell] > before[cell] && after[cell] <= 3.6e9f);
        }
    }
    /* Whatever changed: the taken cell still has its own time. */
    CHECK(picked < 0 || memcmp(&before[picked], &after[picked], sizeof(float)) == 0);
    CHECK(!changed || picked != picked_before || before[picked] == before[picked_before]);
    free(before);
    free(after);
}

/* As NCCL's own logger: a variadic function that formats what it gets. */
__attribute__((format(printf, 5, 6))) static void listen(int level, unsigned long flags, const char *file, int line,
                                                         const char *format, ...) {
    char text[4096];
    va_list values;
    va_start(values, format);
    int length = vsnprintf(text, sizeof text, format, values);
    va_end(values);
    CHECK(strcmp(format, "%s") == 0);
    CHECK(length > 0 && length < 1024 && strncmp(text, "TUNER/nccl-tuner: ", 18) == 0);
    CHECK(level == LEVEL_WARN ? flags == SUBSYSTEM_ALL : level == LEVEL_INFO && flags == 0x41);
    CHECK(file != NULL && line >= 0);
}

static void *open_communicator(uint64_t *state) {
    void *context = &context;
    size_t nodes = 1 + below(state, 4);
    nccl_logger logger = below(state, 4) ? listen : NULL;
    int result =
        ncclTunerPlugin_v5.init(&context, draw(state), nodes * (1 + below(state, 8)), nodes, logger, NULL, NULL);
    CHECK(result == RESULT_SUCCESS);
    return context;
}

static void check_calls(uint64_t seed, size_t count) {
    void *context = open_communicator(&seed);
    for (size_t i = 0; i < count; i++) {
        check_call(context, &seed);
    }
    CHECK(ncclTunerPlugin_v5.finalize(context) == RESULT_SUCCESS);
}

struct work {
    uint64_t seed;
    size_t count;
};

static void *check_communicators(void *argument) {
    const struct work *work = argument;
    for (uint64_t life = 0; life < 8; life++) {
        check_calls(work->seed + life, work->count);
    }
    return NULL;
}

static void check_threads(uint64_t seed, size_t count) {
    enum { THREADS = 8 };
    pthread_t threads[THREADS];
    struct work works[THREADS];
    for (int i = 0; i < THREADS; i++) {
        works[i] = (struct work){seed + 1000 * (uint64_t)i, count};
        CHECK(pthread_create(&threads[i], NULL, check_communicators, &works[i]) == 0);
    }
    for (int i = 0; i < THREADS; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0);
    }
}

int main(int count, char **words) {
    CHECK(count == 4);
    uint64_t seed = strtoull(words[2], NULL, 10);
    size_t times = strtoull(words[3], NULL, 10);
    if (strcmp(words[1], "bytes") == 0) {
        check_bytes(seed, times);
    } else if (strcmp(words[1], "calls") == 0) {
        check_calls(seed, times);
    } else {
        CHECK(strcmp(words[1], "threads") == 0);
        check_threads(seed, times);
    }
    return 0;
}
