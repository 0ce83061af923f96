#include "source.h"

#include <float.h>
#include <limits.h>
#include <math.h>

static uint64_t take(struct source *source, size_t width) {
    uint64_t value = 0;
    for (; width > 0 && source->left > 0; width--, source->left--) {
        value = value << 8 | *source->bytes++;
    }
    return value;
}

/* splitmix64 */
static uint64_t random_bits(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

uint64_t draw(struct source *source) {
    return source->bytes ? take(source, 8) : random_bits(&source->seed);
}

size_t below(struct source *source, size_t bound) {
    uint64_t value = source->bytes && bound <= 256 ? take(source, 1) : draw(source);
    return (size_t)(value % bound);
}

size_t draw_size(struct source *source) {
    size_t shift = below(source, 64);
    return (size_t)(draw(source) >> shift);
}

int draw_int(struct source *source) {
    static const int odd[] = {INT_MIN, INT_MAX, -1, 0, 64, 1 << 20};
    size_t kind = below(source, 64);
    return kind < sizeof odd / sizeof odd[0] ? odd[kind] : (int)below(source, 8);
}

float draw_cost(struct source *source) {
    static const float odd[] = {-1.0f, -1.0f,       -1.0f, -1024.0f, 0.0f,   -0.0f,   1e-45f,   1.17549435e-38f,
                                8.0f,  FLT_MAX / 2, 2e9f,  3e9f,     3.6e9f, 3.4e38f, INFINITY, -INFINITY};
    size_t kind = below(source, 48);
    if (kind < sizeof odd / sizeof odd[0]) {
        return odd[kind];
    }
    return kind == 47 ? NAN : (float)below(source, 256) * (float)kind / 64.0f;
}
