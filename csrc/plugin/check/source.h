/* Where the checks take their values from: a seed, or the bytes that a fuzzer gives. */
#ifndef CHECK_SOURCE_H
#define CHECK_SOURCE_H

#include <stddef.h>
#include <stdint.h>

struct source {
    const uint8_t *bytes; /* NULL: random ones */
    size_t left;          /* bytes after the last one are zero */
    uint64_t seed;
};

uint64_t draw(struct source *source);

/* Less than `bound`, which is not 0. */
size_t below(struct source *source, size_t bound);

/* Small numbers as often as large ones. */
size_t draw_size(struct source *source);
int draw_int(struct source *source);

/* A time as it may stand in NCCL's cost table, or as it never should. */
float draw_cost(struct source *source);

#endif
