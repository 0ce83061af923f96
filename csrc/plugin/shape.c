#include "shape.h"

#include <stdint.h>

static bool holds(struct counts counts, size_t number) {
    return counts.low <= number && (number <= counts.high || counts.high == UINT32_MAX);
}

static bool is_any(struct counts counts) {
    return counts.low <= 1 && counts.high == UINT32_MAX;
}

/* Any number at all, and none where there is no whole one. */
static bool is_any_share(struct counts counts) {
    return counts.low == 0;
}

static bool asks_for_shape(const struct condition *when) {
    return when->per_rank || !is_any(when->ranks) || !is_any(when->nodes) || !is_any_share(when->ranks_per_node) ||
           !is_any(when->nvlink_domains);
}

static bool holds_ranks_per_node(const struct shape *shape, struct counts counts) {
    if (is_any_share(counts)) {
        return true;
    }
    return shape->nodes > 0 && shape->ranks % shape->nodes == 0 && holds(counts, shape->ranks / shape->nodes);
}

enum match shape_match(const struct shape *shape, const struct condition *when) {
    if (!shape->known) {
        return asks_for_shape(when) ? MATCH_UNKNOWN : MATCH_YES;
    }
    bool yes = holds(when->ranks, shape->ranks) && holds(when->nodes, shape->nodes) &&
               holds_ranks_per_node(shape, when->ranks_per_node);
    if (!yes || is_any(when->nvlink_domains)) {
        return yes ? MATCH_YES : MATCH_NO;
    }
    return shape->domains == 0 ? MATCH_UNKNOWN : holds(when->nvlink_domains, shape->domains) ? MATCH_YES : MATCH_NO;
}

bool shape_bytes(const struct shape *shape, const struct condition *when, struct sizes *bytes) {
    *bytes = when->bytes;
    if (!when->per_rank) {
        return true;
    }
    if (!shape->known || shape->ranks == 0) {
        *bytes = (struct sizes){0, SIZE_MAX};
        return true;
    }
    /* nBytes / ranks is rounded down: the interval ends just before the next whole number of bytes per rank. */
    size_t most = SIZE_MAX / shape->ranks;
    if (bytes->low > most) {
        return false;
    }
    bytes->low *= shape->ranks;
    bytes->high = bytes->high >= most ? SIZE_MAX : bytes->high * shape->ranks + (shape->ranks - 1);
    return true;
}
