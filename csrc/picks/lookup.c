#include "lookup.h"

_Static_assert(sizeof(struct pick_row) == 16, "compiled.py lays rows out by these offsets");

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
