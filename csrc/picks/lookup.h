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

/* Sizes from one power of two up to the next: their number below `border` and from it on. -1 where more ranges meet,
   and from 2^53 on. */
struct number_octave {
    uint64_t border;
    int8_t numbers[8]; /* [2] are used */
};

/* Numbers of sizes, such as who carries a call: of each kind of size, by the powers of two up to 256 that divide it,
   ranges that touch. The octave from 2^n on is at n + 1023 modulo 64, as the exponents of doubles end. */
struct number_table {
    const uint16_t *octaves_of; /* [256]: where the octaves of a size's kind begin, in bytes; by its lowest byte */
    const struct number_octave *octaves; /* [kind][64] */
    const uint64_t *from_bytes;          /* [kind][count]: first size of each range, UINT64_MAX behind the last */
    const int8_t *numbers;               /* [kind][count] */
    uint64_t count;
};

/* The numbers of `count` sizes; 0 if any of them is not 1 to 2^62, whose number means nothing. */
int nccl_tuner_numbers(const struct number_table *table, const uint64_t *bytes, size_t count, int8_t *number);

#endif
