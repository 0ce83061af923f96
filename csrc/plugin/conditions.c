#include "conditions.h"

#include "fields.h"
#include "names.h"

enum { BYTES, BYTES_PER_RANK, RANKS, NODES, RANKS_PER_NODE, NVLINK_DOMAINS, REGISTERED, PIPELINED, CONDITIONS };
static const char *const condition_names[CONDITIONS] = {"bytes",          "bytes-per-rank", "ranks",      "nodes",
                                                        "ranks-per-node", "nvlink-domains", "registered", "pipelined"};

static bool read_registered(struct slice value, int8_t *registered, struct table_error *error) {
    *registered = slice_is(value, "yes");
    return *registered || slice_is(value, "no") ||
           table_fail(error, "registered=%s is neither yes nor no", show(value).text);
}

static bool read_condition(size_t key, struct slice value, struct condition *when, struct table_error *error) {
    switch (key) {
    case BYTES_PER_RANK:
        when->per_rank = true;
        return read_interval(value, &of_bytes, &when->bytes, error);
    case RANKS:
        return read_counts(value, &of_ranks, &when->ranks, error);
    case NODES:
        return read_counts(value, &of_ranks, &when->nodes, error);
    case RANKS_PER_NODE:
        return read_counts(value, &of_ranks, &when->ranks_per_node, error);
    case NVLINK_DOMAINS:
        return read_counts(value, &of_ranks, &when->nvlink_domains, error);
    case REGISTERED:
        return read_registered(value, &when->registered, error);
    case PIPELINED:
        return read_counts(value, &of_operations, &when->pipelined, error);
    default:
        return read_interval(value, &of_bytes, &when->bytes, error);
    }
}

bool read_conditions(struct slice *line, enum row_kind kind, struct condition *when, struct table_error *error) {
    static const struct keys keys_of[] = {
        [ROW_OF_DECISION] = {condition_names, CONDITIONS,
                             "valid before '->': bytes, bytes-per-rank, ranks, nodes, ranks-per-node, "
                             "nvlink-domains, registered, pipelined",
                             0},
        [ROW_OF_COST] = {condition_names, REGISTERED,
                         "valid before '->' of a cost: bytes, bytes-per-rank, ranks, nodes, ranks-per-node, "
                         "nvlink-domains",
                         0}};
    struct keys keys = keys_of[kind];
    struct slice word = {0}, value;
    take_word(line, &word);
    int collective = collective_by_name(word);
    if (!is_known(collective, "collective", word, VALID_COLLECTIVES, error)) {
        return false;
    }
    *when = condition_of(collective);
    while (take_word(line, &word)) {
        if (slice_is(word, "->")) {
            return true;
        }
        size_t key;
        if (!read_key(word, &keys, &key, &value, error) || !read_condition(key, value, when, error)) {
            return false;
        }
        if ((keys.seen >> BYTES & 1) && (keys.seen >> BYTES_PER_RANK & 1)) {
            return table_fail(error, "'bytes' and 'bytes-per-rank' in one row; valid: one of them");
        }
    }
    return table_fail(error, "no '->' with an algorithm/protocol after it");
}
