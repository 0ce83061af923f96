#include "lookup.h"

#include <string.h>

_Static_assert(sizeof(struct pick_row) == 16, "compiled.py lays rows out by these offsets");
_Static_assert(sizeof(struct number_octave) == 16, "tuner/engines/lookup.py lays octaves out by these offsets");

/* The bucket of a size above 0: its highest bit, and the bits below that one. */
static inline size_t bucket_of(uint64_t bytes) {
    unsigned high = 63u - (unsigned)__builtin_clzll(bytes);
    uint64_t below = (bytes << (63 - high)) << 1 >> (64 - PICK_FRACTION_BITS);
    return ((size_t)high << PICK_FRACTION_BITS) | (size_t)below;
}

__attribute__((visibility("default"))) size_t nccl_tuner_pick(const struct pick_table *table, const uint64_t *bytes,
                                                              size_t count, int8_t *algorithm, int8_t *protocol,
                                                              float *time_us, uint16_t *channels, uint16_t *threads) {
    const uint64_t *from_bytes = table->from_bytes;
    const uint64_t first = from_bytes[0], beyond = from_bytes[table->count];
    size_t unanswered = 0;
    for (size_t i = 0; i < count; i++) {
        if (bytes[i] < first || bytes[i] >= beyond) {
            channels[i] = 0;
            unanswered++;
            continue;
        }
        size_t at = table->buckets[bucket_of(bytes[i])];
        while (bytes[i] >= from_bytes[at + 1]) {
            at++;
        }
        const struct pick_row *row = &table->rows[at];
        algorithm[i] = row->algorithm;
        protocol[i] = row->protocol;
        channels[i] = row->channels;
        threads[i] = row->threads;
        unanswered += row->channels == 0;
        float time = (float)bytes[i] / row->bytes_per_us;
        time_us[i] = time + row->latency_us;
    }
    return unanswered;
}

/* Where the octave of a size below 2^53 lies behind the first of its kind, in bytes: by the exponent of a double, without
   the wait for the last result that x86's own instruction for the highest bit has. Of larger sizes it may be the next
   one, of 0 it is any. */
static inline size_t octave_of(uint64_t bytes) {
    double number = (double)(int64_t)bytes;
    uint64_t bits;
    memcpy(&bits, &number, sizeof bits);
    return bits >> 48 & 63 * sizeof(struct number_octave);
}

__attribute__((visibility("default"))) int nccl_tuner_numbers(const struct number_table *table, const uint64_t *bytes,
                                                              size_t count, int8_t *number) {
    const uint16_t *octaves_of = table->octaves_of;
    const char *octaves = (const char *)table->octaves;
    uint64_t beyond = 0;
    for (size_t i = 0; i < count; i++) {
        uint64_t size = bytes[i];
        const void *at = octaves + octaves_of[size & 255] + octave_of(size);
        const struct number_octave *octave = at;
        int8_t found = octave->numbers[size >= octave->border];
        if (__builtin_expect(found < 0, 0)) {
            size_t kind = octaves_of[size & 255] / sizeof(struct number_octave) / 64;
            const uint64_t *from_bytes = &table->from_bytes[kind * table->count];
            size_t range = 0;
            while (range + 1 < table->count && size >= from_bytes[range + 1]) {
                range++;
            }
            found = table->numbers[kind * table->count + range];
        }
        number[i] = found;
        beyond |= size - 1;
    }
    return beyond >> 62 == 0;
}
