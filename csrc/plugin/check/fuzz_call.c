#define _POSIX_C_SOURCE 200809L /* mkstemp, setenv */

/* libFuzzer: which plugin is called, with which arguments and cost cells, over a few tables. `make fuzz`. */
#include <string.h>
#include <unistd.h>

#include "checks.h"

int LLVMFuzzerInitialize(int *count, char ***words);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static const char *const texts[] = {
    "nccl-tuner-table 1\n"
    "allreduce pipelined=2..7 bytes=..1M -> nccl\n"
    "allreduce bytes=64K..4M ranks=..16 -> tree/simple channels=8 chunk=64K | ring/ll | nvls/simple channels=4\n"
    "allreduce ranks-per-node=1..8 bytes=100..4G -> nvlstree/simple channels=3 | collnetchain/simple channels=64\n"
    "allreduce -> ring/ll128 channels=64 | ring/ll channels=1 chunk=1M | ring/simple\n"
    "allgather registered=yes -> nvls/simple channels=6 chunk=32K | ring/simple\n"
    "allgather bytes-per-rank=..1M -> pat/simple channels=7 chunk=1G | ring/ll\n"
    "reduce bytes=1000.. -> ring/simple channels=9\n"
    "broadcast registered=no pipelined=1 -> ring/ll\n",

    "nccl-tuner-table 1\n"
    "cost allreduce -> ring/ll latency-us=12.5 bandwidth-gbs=48\n"
    "cost allreduce bytes=1M.. ranks=2.. -> tree/ll128 latency-us=3 bandwidth-gbs=1e-3 batch=4\n"
    "cost allreduce -> tree/simple latency-us=3e38 bandwidth-gbs=3e38\n"
    "cost reduce bytes-per-rank=..7 -> ring/simple never\n"
    "cost reducescatter -> ring/simple latency-us=0 bandwidth-gbs=1\n"
    "allreduce bytes=..64M -> tree/ll128 channels=2 | ring/ll | nccl\n"
    "reducescatter pipelined=..3 -> ring/simple channels=1 chunk=4K\n",

    "allreduce,0,65536,tree,simple,2,-1,-1,-1,1\n"
    "allreduce,65537,-1,ring,ll128,-1,2,16\n"
    "broadcast,0,4294967295,ring,simple,32,-1,-1,1,-1\n",
};
enum { TEXTS = sizeof texts / sizeof texts[0] };

static struct table tables[TEXTS];
static struct communicator communicators[TEXTS][MOST_VERSION + 1];

/* All of a version 1 share a table: those of the first. */
static const struct communicator *pick_communicator(struct source *source) {
    int version = LEAST_VERSION + (int)below(source, MOST_VERSION);
    size_t text = below(source, TEXTS);
    return &communicators[version == 1 ? 0 : text][version];
}

int LLVMFuzzerInitialize(int *count, char ***words) {
    (void)count, (void)words;
    unsetenv("NCCL_ALGO");
    unsetenv("NCCL_PROTO");
    for (int i = 0; i < TEXTS; i++) {
        char path[] = "/tmp/nccl-tuner-fuzz-XXXXXX";
        struct table_error error;
        size_t length = strlen(texts[i]);
        int file = mkstemp(path);
        CHECK(file >= 0 && write(file, texts[i], length) == (ssize_t)length && close(file) == 0);
        CHECK(table_parse((struct slice){texts[i], length}, &tables[i], &error));
        setenv("NCCL_TUNER_TABLE", path, 1);
        for (int version = i ? 2 : LEAST_VERSION; version <= MOST_VERSION; version++) {
            communicators[i][version].table = &tables[i];
            communicator_open(&communicators[i][version], version, 16, 2, false);
        }
        unlink(path);
    }
    return 0;
}

/* Some calls one after the other: a chunk size is that of the last one. */
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    struct source source = {.bytes = bytes, .left = size};
    do {
        check_call(pick_communicator(&source), &source);
    } while (source.left > 0);
    return 0;
}
