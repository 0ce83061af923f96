#include "bench_tables.h"

#include <stdio.h>
#include <stdlib.h>

#include "../abi.h"

void stop(const char *reason) {
    fprintf(stderr, "bench: %s\n", reason);
    exit(2);
}

struct row row_of(size_t number, size_t rows) {
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

void write_table(const char *path, size_t rows) {
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
void write_csv(const char *path, size_t rows) {
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
void write_failing_table(const char *path, size_t rows) {
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
