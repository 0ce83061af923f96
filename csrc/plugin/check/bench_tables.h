/* The tables that bench.c measures. */
#ifndef CHECK_BENCH_TABLES_H
#define CHECK_BENCH_TABLES_H

#include <stddef.h>

enum { RANKS = 16, NODES = 2 };

struct row {
    int collective, algorithm, protocol, channels, nodes, ranks, pipelined, registered;
    size_t least, most;
};

/* Rows side by side over 0 .. 1 GiB for each collective in turn. */
struct row row_of(size_t number, size_t rows);

/* They end the program where they cannot: in our format, in NVIDIA's CSV, and of rows in that which all hold the same
 * sizes and that NCCL cannot run, before one that it can. */
void write_table(const char *path, size_t rows);
void write_csv(const char *path, size_t rows);
void write_failing_table(const char *path, size_t rows);

_Noreturn void stop(const char *reason);

#endif
