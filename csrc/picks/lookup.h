/* Picks by look-up: which row of a table a size lies in, and what that row says.

   tuner/emulator/compiled.py makes the tables, and says when one holds. */
#ifndef NCCL_TUNER_PICKS_LOOKUP_H
#define NCCL_TUNER_PICKS_LOOKUP_H

#include <stddef.h>
#include <stdint.h>

enum { PICK_FRACTION_BITS = 5, PICK_BUCKETS = 64 << PICK_FRACTION_BITS };

/* What a range of sizes gets. The time of a size is (float)size / bytes_per_us + latency_us, each step rounded to float:
   NCCL's own order of operations (topoGetAlgoTime, src/graph/tuning.cc, v2.28.9-1). */
struct pick_row {
    float bytes_per_us;
    float latency_us;
    uint16_t channels; /* 0: this range is not answered here, as its time takes another form */
    uint16_t threads;
    int8_t algorithm;
    int8_t protocol;
};

/* Sizes from from_bytes[0] up to, but without, from_bytes[count], in ranges that touch. A bucket is a power of two and one
   of its 32 equal parts; buckets[] has the range in which its first size lies, from where few steps lead on. */
struct pick_table {
    const uint64_t *from_bytes;  /* [count + 1] */
    const struct pick_row *rows; /* [count] */
    const uint32_t *buckets;     /* [PICK_BUCKETS] */
    uint64_t count;
};

/* The picks of `count` sizes. Returns how many of them the table does not answer, which have 0 channels. */
size_t nccl_tuner_pick(const struct pick_table *table, const uint64_t *bytes, size_t count, int8_t *algorithm,
                       int8_t *protocol, float *time_us, uint16_t *channels, uint16_t *threads);

#endif
