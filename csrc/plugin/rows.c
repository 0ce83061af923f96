#include "rows.h"

#include <float.h>

#include "abi.h"
#include "interface.h"
#include "table.h"
#include "text.h"

/* What the rows of our own format are made of: numbers, intervals, keys, algorithm/protocol. Each reader returns false
 * with the reason set. */

/* What the ends of an interval are made of. */
struct kind {
    bool (*read)(struct slice text, size_t *number, bool *overflow);
    const char *what;
    size_t least, most;
};
extern const struct kind of_bytes, of_ranks, of_operations;

/* The keys that may stand somewhere, and those that have stood there. */
struct keys {
    const char *const *names;
    size_t count;
    const char *where; /* with the valid ones, for messages */
    unsigned seen;
};

/* The conditions of a row of our own format. */

enum row_kind { ROW_OF_DECISION, ROW_OF_COST };

/* Rows of our own format about times: costs, and constants of NCCL's model. */

/* Whether the word has a number, which is -1 for one that is not among the valid. */
static bool is_known(int number, const char *what, struct slice word, const char *valid, struct table_error *error) {
    return number >= 0 || table_fail(error, "unknown %s '%s' (%s)", what, show(word).text, valid);
}

const struct kind of_bytes = {read_size, "a number of bytes such as 65536, 64K or 64KiB (K, M, G, T: powers of 1024)",
                              0, SIZE_MAX};
const struct kind of_ranks = {read_number, "a number", 1, UINT32_MAX};
const struct kind of_operations = {read_number, "a number", 0, UINT32_MAX};

/* One end of an interval; an end that is not given keeps its value. */
static bool read_end(struct slice text, const struct kind *kind, size_t *end, struct table_error *error) {
    bool overflow = false;
    if (text.length == 0) {
        return true;
    }
    if (!kind->read(text, end, &overflow) && !overflow) {
        return table_fail(error, "'%s' is not %s", show(text).text, kind->what);
    }
    if (overflow || *end > kind->most) {
        return table_fail(error, "'%s' is past the largest number, %zu", show(text).text, kind->most);
    }
    return true;
}

/* "A..B", "A..", "..B" or "A". */
static bool read_interval(struct slice text, const struct kind *kind, struct sizes *interval,
                          struct table_error *error) {
    struct slice low = text, high = text;
    bool is_range = cut_at_dots(text, &low, &high);
    if (is_range ? low.length + high.length == 0 : text.length == 0) {
        return table_fail(error, "'%s' is not %s or an interval of it, A..B, A.. or ..B", show(text).text, kind->what);
    }
    *interval = (struct sizes){kind->least, kind->most};
    if (!read_end(low, kind, &interval->low, error) || !read_end(high, kind, &interval->high, error)) {
        return false;
    }
    if (interval->low < kind->least || interval->high < kind->least) {
        return table_fail(error, "'%s': at least %zu", show(text).text, kind->least);
    }
    if (interval->low > interval->high) {
        return table_fail(error, "'%s': the first number is above the second", show(text).text);
    }
    return true;
}

static bool read_counts(struct slice text, const struct kind *kind, struct counts *counts, struct table_error *error) {
    struct sizes interval;
    if (!read_interval(text, kind, &interval, error)) {
        return false;
    }
    *counts = (struct counts){(uint32_t)interval.low, (uint32_t)interval.high};
    return true;
}

/* "key=value" into its halves; a key may come once. */
static bool read_key(struct slice word, struct keys *keys, size_t *key, struct slice *value,
                     struct table_error *error) {
    struct slice name;
    if (!cut(word, '=', &name, value)) {
        return table_fail(error, "'%s' is not key=value (%s)", show(word).text, keys->where);
    }
    for (*key = 0; *key < keys->count; (*key)++) {
        if (slice_is(name, keys->names[*key])) {
            if (keys->seen & 1u << *key) {
                return table_fail(error, "'%s' twice", keys->names[*key]);
            }
            keys->seen |= 1u << *key;
            return true;
        }
    }
    return table_fail(error, "unknown key '%s' (%s)", show(name).text, keys->where);
}

static bool read_pair(struct slice word, int8_t *algorithm, int8_t *protocol, struct table_error *error) {
    struct slice first, second;
    if (!cut(word, '/', &first, &second)) {
        return table_fail(error, "'%s' is not algorithm/protocol, such as ring/ll128", show(word).text);
    }
    *algorithm = (int8_t)algorithm_by_name(first);
    *protocol = (int8_t)protocol_by_name(second);
    return is_known(*algorithm, "algorithm", first, VALID_ALGORITHMS, error) &&
           is_known(*protocol, "protocol", second, VALID_PROTOCOLS, error);
}

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

/* Takes them off the line, from the collective up to and including the arrow. */
static bool read_conditions(struct slice *line, enum row_kind kind, struct condition *when, struct table_error *error) {
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

static bool read_float(struct slice text, const char *key, bool positive, float *number, struct table_error *error) {
    double value;
    if (!read_decimal(text, &value) || value > FLT_MAX || (positive && (float)value == 0.0f)) {
        return table_fail(error, "%s=%s is not a number %s", key, show(text).text,
                          positive ? "above 0" : "of at least 0");
    }
    *number = (float)value;
    return true;
}

static bool read_batch(struct slice text, uint32_t *batch, struct table_error *error) {
    size_t number;
    bool overflow;
    if (!read_number(text, &number, &overflow) || number < 1 || number > UINT32_MAX) {
        return table_fail(error, "batch=%s is not a number from 1 to %u", show(text).text, UINT32_MAX);
    }
    *batch = (uint32_t)number;
    return true;
}

static bool read_times(struct slice *line, struct cost *cost, struct table_error *error) {
    enum { LATENCY, BANDWIDTH, BATCH, TIMES };
    static const char *const names[TIMES] = {"latency-us", "bandwidth-gbs", "batch"};
    struct keys keys = {names, TIMES, "valid after '->' of a cost: never, or latency-us, bandwidth-gbs, batch", 0};
    struct slice word, value;
    cost->batch = 1;
    while (take_word(line, &word)) {
        size_t key;
        if (slice_is(word, "never") && !keys.seen && !cost->never) {
            cost->never = true;
            continue;
        }
        if (cost->never) {
            return table_fail(error, "'%s' beside never", show(word).text);
        }
        if (!read_key(word, &keys, &key, &value, error) ||
            !(key == LATENCY     ? read_float(value, names[LATENCY], false, &cost->latency_us, error)
              : key == BANDWIDTH ? read_float(value, names[BANDWIDTH], true, &cost->bandwidth_gbs, error)
                                 : read_batch(value, &cost->batch, error))) {
            return false;
        }
    }
    bool complete = (keys.seen >> LATENCY & 1) && (keys.seen >> BANDWIDTH & 1);
    return cost->never || complete || table_fail(error, "a cost needs latency-us and bandwidth-gbs, or never");
}

/* What follows the word "cost", or "constant". */
static bool rows_read_cost(struct slice line, struct table *table, struct table_error *error) {
    struct cost cost = {0};
    struct slice word = {0};
    if (!read_conditions(&line, ROW_OF_COST, &cost.when, error)) {
        return false;
    }
    take_word(&line, &word);
    return read_pair(word, &cost.algorithm, &cost.protocol, error) && read_times(&line, &cost, error) &&
           table_add_cost(table, cost, error);
}

/* The words between a latency's name and its value, of which the first is a link where there is one. */
static bool read_latency(bool over_link, struct slice *line, int *number, struct table_error *error) {
    struct slice word;
    int8_t algorithm, protocol;
    int link = 0;
    if (over_link) {
        take_word(line, &word);
        link = link_by_name(word);
        if (!is_known(link, "link", word, VALID_LINKS, error)) {
            return false;
        }
    }
    take_word(line, &word);
    if (!read_pair(word, &algorithm, &protocol, error)) {
        return false;
    }
    *number = over_link ? constant_link_latency(link, algorithm, protocol) : constant_base_latency(algorithm, protocol);
    return true;
}

static bool read_cap(struct slice name, struct slice *line, int *number, struct table_error *error) {
    int cap = cap_by_name(name);
    if (!is_known(cap, "constant", name, VALID_CONSTANTS, error)) {
        return false;
    }
    struct slice generation_word, nodes_word;
    take_word(line, &generation_word);
    take_word(line, &nodes_word);
    int generation = generation_by_name(generation_word), nodes = node_count_by_name(nodes_word);
    *number = constant_cap(cap, generation, nodes);
    return is_known(generation, "generation", generation_word, VALID_GENERATIONS, error) &&
           is_known(nodes, "number of nodes", nodes_word, VALID_NODE_COUNTS, error);
}

static bool rows_read_constant(struct slice line, struct table *table, struct table_error *error) {
    struct slice name = {0}, word = {0};
    take_word(&line, &name);
    struct constant constant;
    bool over_link = slice_is(name, "link-latency-us"), latency = over_link || slice_is(name, "base-latency-us");
    bool named = latency ? read_latency(over_link, &line, &constant.number, error)
                         : read_cap(name, &line, &constant.number, error);
    if (!named) {
        return false;
    }
    take_word(&line, &word);
    if (!read_decimal(word, &constant.value) || constant.value > DBL_MAX) {
        return table_fail(error, "'%s' is not a number of at least 0", show(word).text);
    }
    if (take_word(&line, &word)) {
        return table_fail(error, "'%s' after the constant's value", show(word).text);
    }
    for (size_t i = 0; i < table->constant_count; i++) {
        if (table->constants[i].number == constant.number) {
            return table_fail(error, "this %s twice", show(name).text);
        }
    }
    return table_add_constant(table, constant, error);
}

const char rows_header[] = "nccl-tuner-table 1";

enum { LEAST_CHUNK_BYTES = 4 << 10, MOST_CHUNK_BYTES = 1 << 30 };

bool rows_read_header(struct slice line, struct table_error *error) {
    struct slice rest = line, name, version, more;
    if (!take_word(&rest, &name) || !slice_is(name, "nccl-tuner-table")) {
        return table_fail(error, "the first line has to be '%s', not '%s'", rows_header, show(trimmed(line)).text);
    }
    if (!take_word(&rest, &version) || !slice_is(version, "1")) {
        return table_fail(error, "version '%s' of the table format is unknown (valid: 1)", show(version).text);
    }
    if (take_word(&rest, &more)) {
        return table_fail(error, "'%s' after the version", show(more).text);
    }
    return true;
}

static bool read_channels(struct slice text, int8_t *channels, struct table_error *error) {
    size_t number;
    bool overflow;
    if (!read_number(text, &number, &overflow) || number < 1 || number > MAX_CHANNELS) {
        return table_fail(error, "channels=%s is not a number from 1 to %d", show(text).text, MAX_CHANNELS);
    }
    *channels = (int8_t)number;
    return true;
}

static bool read_chunk(struct slice text, uint32_t *chunk_bytes, struct table_error *error) {
    size_t number;
    bool overflow;
    if (!read_size(text, &number, &overflow) || number < LEAST_CHUNK_BYTES || number > MOST_CHUNK_BYTES) {
        return table_fail(error, "chunk=%s is not a size from 4K to 1G", show(text).text);
    }
    *chunk_bytes = (uint32_t)number;
    return true;
}

/* The settings of one choice, up to the end of the line or a '|'; `more` tells which. */
static bool read_settings(struct slice *line, struct choice *choice, struct table_error *error) {
    enum { CHANNELS, CHUNK, SETTINGS };
    static const char *const names[SETTINGS] = {"channels", "chunk"};
    struct keys keys = {names, SETTINGS, "valid after '->': channels, chunk, and '|' before another choice", 0};
    struct slice word, value;
    while (take_word(line, &word)) {
        size_t key;
        if (slice_is(word, "|")) {
            choice->more = true;
            return true;
        }
        if (!read_key(word, &keys, &key, &value, error) ||
            !(key == CHANNELS ? read_channels(value, &choice->channels, error)
                              : read_chunk(value, &choice->chunk_bytes, error))) {
            return false;
        }
    }
    return true;
}

/* After the arrow: the choices, the best first. `nccl` ends them as the end of the line does. */
static bool read_choices(struct slice *line, struct table *table, struct table_error *error) {
    uint32_t seen = 0;
    struct choice choice = {.more = true};
    while (choice.more) {
        struct slice word = {0}, rest;
        take_word(line, &word);
        if (slice_is_any_case(word, "nccl")) {
            if (take_word(line, &rest)) {
                return table_fail(error, "'%s' after nccl, which ends a row", show(rest).text);
            }
            if (seen) {
                table->choices[table->choice_count - 1].more = false;
                table->choices[table->choice_count - 1].own = true;
            }
            return true;
        }
        choice = (struct choice){0};
        if (!read_pair(word, &choice.algorithm, &choice.protocol, error)) {
            return false;
        }
        uint32_t bit = (uint32_t)1 << (choice.algorithm * PROTOCOLS + choice.protocol);
        if (seen & bit) {
            return table_fail(error, "'%s' twice", show(word).text);
        }
        seen |= bit;
        if (!read_settings(line, &choice, error) || !table_add_choice(table, choice, error)) {
            return false;
        }
    }
    return true;
}

static bool read_bounded(const char *name, struct slice value, size_t least, size_t most, size_t *number,
                         struct table_error *error) {
    bool overflow = false;
    return (read_number(value, number, &overflow) && *number >= least && *number <= most) ||
           table_fail(error, "%s=%s is not a number from %zu to %zu", name, show(value).text, least, most);
}

/* The settings of one arm, up to the end of the line or a '|'; behind the last one stands how often arms are taken. */
static bool read_arm_settings(struct slice *line, struct choice *arm, struct schedule *schedule, bool *more,
                              struct table_error *error) {
    enum { CHANNELS, EVERY, BLOCK, CALLS, SETTINGS };
    static const char *const names[SETTINGS] = {"channels", "every", "block", "calls"};
    struct keys keys = {names, SETTINGS,
                        "valid after explore: channels, '|' before another arm, and every, block, calls at the end", 0};
    struct slice word, value;
    size_t key, number = 0;
    *more = false;
    while (!*more && take_word(line, &word)) {
        *more = slice_is(word, "|");
        if (*more) {
            break;
        }
        if (!read_key(word, &keys, &key, &value, error)) {
            return false;
        }
        if (key == CHANNELS && arm->algorithm < 0) {
            return table_fail(error, "nccl takes no channels");
        }
        const size_t least[SETTINGS] = {[EVERY] = 2, [BLOCK] = 1, [CALLS] = 1};
        const size_t most[SETTINGS] = {[EVERY] = MOST_EVERY, [BLOCK] = MOST_BLOCK, [CALLS] = UINT32_MAX};
        bool good = key == CHANNELS ? read_channels(value, &arm->channels, error)
                                    : read_bounded(names[key], value, least[key], most[key], &number, error);
        if (!good) {
            return false;
        }
        schedule->every = key == EVERY ? (uint32_t)number : schedule->every;
        schedule->block = key == BLOCK ? (uint32_t)number : schedule->block;
        schedule->calls = key == CALLS ? number : schedule->calls;
    }
    return !*more || !(keys.seen & ~(1u << CHANNELS)) ||
           table_fail(error, "every, block and calls stand behind the last arm");
}

/* "explore ARM | ARM ... every=N block=N [calls=N]", of which the first word is taken already. */
static bool read_arms(struct slice *line, struct table *table, struct table_error *error) {
    struct schedule schedule = {.calls = CALLS_EXPLORED};
    struct choice row = {.algorithm = -1, .more = true, .explores = (uint16_t)(table->schedule_count + 1)};
    bool more = true, others = false;
    if (!table_add_choice(table, row, error)) {
        return false;
    }
    while (more) {
        struct slice word = {0};
        struct choice arm = {.algorithm = -1};
        take_word(line, &word);
        bool own = slice_is_any_case(word, "nccl");
        others |= !own;
        if ((!own && !read_pair(word, &arm.algorithm, &arm.protocol, error)) ||
            !read_arm_settings(line, &arm, &schedule, &more, error)) {
            return false;
        }
        if (schedule.arms == MOST_ARMS) {
            return table_fail(error, "more than %d arms", MOST_ARMS);
        }
        for (size_t i = table->choice_count - schedule.arms; i < table->choice_count; i++) {
            const struct choice *other = &table->choices[i];
            if (other->algorithm == arm.algorithm && other->protocol == arm.protocol &&
                other->channels == arm.channels) {
                return table_fail(error, "'%s' twice with the same channels", show(word).text);
            }
        }
        arm.more = more;
        schedule.arms++;
        if (!table_add_choice(table, arm, error)) {
            return false;
        }
    }
    if (!others) {
        return table_fail(error, "nothing to explore but nccl");
    }
    if (schedule.every == 0 || schedule.block == 0) {
        return table_fail(error, "no %s=N behind the last arm", schedule.every == 0 ? "every" : "block");
    }
    return table_add_schedule(table, schedule, error);
}

/* What one rank alone knows would have ranks count other calls than others. */
static bool read_row_choices(struct slice *line, const struct condition *when, struct table *table,
                             struct table_error *error) {
    struct slice rest = *line, word = {0};
    if (!take_word(&rest, &word) || !slice_is_any_case(word, "explore")) {
        return read_choices(line, table, error);
    }
    *line = rest;
    if (when->registered >= 0) {
        return table_fail(error,
                          "registered= in a row that explores: ranks whose buffers differ would choose differently");
    }
    return read_arms(line, table, error);
}

static bool read_decision(struct slice line, struct table *table, struct table_error *error) {
    struct decision decision = {.choice = (uint32_t)table->choice_count};
    if (!read_conditions(&line, ROW_OF_DECISION, &decision.when, error) ||
        !read_row_choices(&line, &decision.when, table, error)) {
        return false;
    }
    if (table->choice_count == decision.choice) {
        decision.choice = CHOICE_OWN; /* nccl, and nothing else */
    }
    return table_add_decision(table, decision, error);
}

bool rows_read(struct slice line, struct table *table, struct table_error *error) {
    struct slice rest = line, word = {0};
    take_word(&rest, &word);
    if (slice_is(word, "cost")) {
        return rows_read_cost(rest, table, error);
    }
    if (slice_is(word, "constant")) {
        return rows_read_constant(rest, table, error);
    }
    return read_decision(line, table, error);
}
