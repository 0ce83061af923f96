/* Drives the plugin's C code without NCCL, for builds under the sanitizers and under valgrind. Exits 0, or stops at
 * the first thing that is wrong. The environment names the table, as for NCCL.
 *
 *     driver bytes SEED COUNT      tables made of random pieces: the parser, the lookup and the costs
 *     driver calls SEED COUNT      random calls through every version of the plugin
 *     driver threads SEED COUNT    the same from eight threads, communicators opened and closed again and again
 *     driver text                  standard input as a table, checked as `bytes` does; prints whether it is one
 *     driver hash                  the beginning of the SHA-256 of standard input
 */
#include <pthread.h>
#include <string.h>

#include "../../call/versions.h"
#include "../settings.h"
#include "../sha256.h"
#include "../tables.h"
#include "checks.h"

/* Its form would give each word a line. */
/* clang-format off */
static const char *const pieces[] = {
    "allreduce", "AllGather", "reduce", "REDUCESCATTER", "broadcast", " ", " ", " ", " ", "\t", "\n", "\n", "\r\n",
    "\r", "bytes=", "bytes-per-rank=", "ranks=", "nodes=", "ranks-per-node=", "registered=", "pipelined=", "channels=",
    "chunk=", "..", "..", "0", "1", "64K", "4MiB", "64", "65", "8G", "16", "2", "yes", "no", "4294967295",
    "18446744073709551615", "18446744073709551616", "16777216T", "99999999999999999999999", "-1", "=", "->", " -> ",
    " | ", "ring/ll128", "tree/simple", "NVLS/Simple", "pat/ll", "ring/", "/ll", "nccl", "never", "cost ",
    "latency-us=", "bandwidth-gbs=", "batch=", "1e-3", "1.5", "1e39", "1e-50", ".5", "constant ", "base-latency-us ",
    "link-latency-us ", "net ", "ll-gbs ", "hopper ", "more ", ",", ",", ",", "-1,", "nvls_tree", "collnet_direct",
    "explore ", "every=", "block=", "calls=", "#", "# comment", "\xff", "\xc3\xa9", "%s%n",
};
/* clang-format on */

static const char *const our_rows[] = {
    "allreduce -> ring/ll\n",
    "allreduce bytes=64K..4M ranks=16 nodes=2 -> tree/simple channels=8 | ring/ll chunk=64K | nccl\n",
    "allreduce nvlink-domains=2 bytes=..2M -> tree/ll\n",
    "allreduce pipelined=2..7 bytes=..1M -> nccl\n",
    "allgather bytes=..1G registered=yes -> nvls/simple channels=64 | pat/simple\n",
    "allgather bytes-per-rank=32K..1M ranks-per-node=8 -> pat/simple chunk=1G\n",
    "allreduce bytes=1M.. -> explore ring/ll channels=4 | nccl | tree/simple every=2 block=3 calls=100\n",
    "broadcast bytes=8G.. ranks=2..16 registered=no -> ring/ll128\n",
    "reducescatter bytes=0 pipelined=..4294967294 -> pat/simple | ring/simple channels=2\n",
    "cost allreduce -> ring/ll latency-us=12.5 bandwidth-gbs=48\n",
    "cost allreduce bytes=1M..2M ranks=2.. -> tree/ll128 latency-us=3 bandwidth-gbs=1e-3 batch=4\n",
    "cost reduce bytes-per-rank=..7 -> ring/simple never\n",
    "constant base-latency-us tree/ll 6.5\n",
    "constant ll-gbs hopper more 141\n",
};

static const char *const csv_rows[] = {
    "allreduce,0,65536,tree,simple,2,1,-1,-1,1\n",
    "allgather,65537,18446744073709551615,nvls_tree,ll128,-1,-1,16\n",
    "broadcast,0,-1,collnet_chain,ll,64,2,16,3\n",
    "reduce, 1, 2, pat, simple, 0, -1, -1, -1, -1\n",
};

#define ANY(words) (words)[below(source, sizeof(words) / sizeof *(words))]

/* A table of random pieces in memory of exactly its length, so that a read past its end is seen. */
static struct slice draw_table(struct source *source) {
    char text[4096];
    bool is_csv = below(source, 4) == 0;
    size_t length = 0, wild = below(source, 3);
    if (!is_csv && below(source, 16)) {
        length = (size_t)sprintf(text, "nccl-tuner-table 1\n");
    }
    for (size_t count = below(source, 24); count > 0 && length < sizeof text - 128; count--) {
        if (wild && below(source, 64) == 0) {
            text[length++] = (char)draw(source); /* any byte, zero included */
        } else {
            const char *more = wild && below(source, 8) < wild * 3 ? ANY(pieces)
                               : is_csv                            ? ANY(csv_rows)
                                                                   : ANY(our_rows);
            length += (size_t)sprintf(text + length, "%s", more);
        }
    }
    char *copy = malloc(length + !length);
    CHECK(copy);
    memcpy(copy, text, length);
    return (struct slice){copy, length};
}

static void check_bytes(struct source *source, size_t count) {
    size_t accepted = 0;
    for (size_t i = 0; i < count; i++) {
        struct slice text = draw_table(source);
        accepted += check_text(text, source, 8);
        free((void *)text.start);
    }
    printf("%zu tables, %zu accepted\n", count, accepted);
    CHECK(count < 1000 || (accepted > count / 10 && accepted < count / 2));
}

/* What the environment asks for, read as the plugin does; a table without rows where there is none. */
static struct table read_table(const struct settings *settings) {
    struct table table;
    struct table_error error;
    struct file file = {0};
    struct file_error file_error;
    struct slice nothing = {"nccl-tuner-table 1\n", 19}, text = nothing;
    if (settings->table && file_read(settings->table, &file, &file_error)) {
        text = (struct slice){file.bytes, file.size};
    }
    CHECK(table_parse(text, &table, &error) || table_parse(nothing, &table, &error));
    file_free(&file);
    return table;
}

struct work {
    struct source source;
    size_t count;
    const struct table *table;
    bool unchecked;
};

static void check_version(struct work *work, int version, bool shared) {
    struct source *source = &work->source;
    struct communicator communicator = {.table = work->table, .unchecked = work->unchecked, .shared = shared};
    communicator.domains = below(source, 4); /* 0: not said */
    size_t nodes = 1 + below(source, 4), ranks = nodes * (1 + below(source, 8)) + below(source, 2);
    communicator_open(&communicator, version, ranks, nodes, below(source, 4) > 0);
    for (size_t i = 0; i < work->count; i++) {
        check_call(&communicator, source);
    }
    communicator_close(&communicator);
}

static void check_calls(struct work *work) {
    for (int version = LEAST_VERSION; version <= MOST_VERSION; version++) {
        check_version(work, version, false);
    }
}

/* Every other communicator is one of version 1, for its state is the one that communicators share. */
static void *check_communicators(void *argument) {
    struct work *work = argument;
    for (int life = 0; life < 40; life++) {
        int version = life % 2 ? LEAST_VERSION : LEAST_VERSION + (int)below(&work->source, MOST_VERSION);
        check_version(work, version, version == LEAST_VERSION && work->unchecked);
    }
    return NULL;
}

static void check_threads(const struct work *work) {
    enum { THREADS = 8 };
    pthread_t threads[THREADS];
    struct work works[THREADS];
    for (int i = 0; i < THREADS; i++) {
        works[i] = *work;
        works[i].source.seed += 1000 * (uint64_t)i;
        CHECK(pthread_create(&threads[i], NULL, check_communicators, &works[i]) == 0);
    }
    for (int i = 0; i < THREADS; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0);
    }
}

static void check_input(const char *what) {
    static char text[1 << 16];
    struct slice slice = {text, fread(text, 1, sizeof text, stdin)};
    struct source source = {.seed = 1};
    if (strcmp(what, "hash") == 0) {
        puts(sha256_of(slice).text);
    } else {
        CHECK(strcmp(what, "text") == 0);
        puts(check_text(slice, &source, 8) ? "a table" : "not a table");
    }
}

int main(int count, char **words) {
    if (count == 2) {
        check_input(words[1]);
        return 0;
    }
    CHECK(count == 4);
    struct settings settings = settings_read(NULL);
    struct table table = read_table(&settings);
    struct work work = {
        {.seed = strtoull(words[2], NULL, 10)}, strtoull(words[3], NULL, 10), &table, settings.unchecked};
    if (strcmp(words[1], "bytes") == 0) {
        check_bytes(&work.source, work.count);
    } else if (strcmp(words[1], "calls") == 0) {
        check_calls(&work);
    } else {
        CHECK(strcmp(words[1], "threads") == 0);
        check_threads(&work);
    }
    table_free(&table);
    call_forget_tables();
    return 0;
}
