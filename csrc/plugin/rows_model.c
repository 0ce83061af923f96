#include "rows_model.h"

#include <float.h>

#include "conditions.h"
#include "constants.h"
#include "fields.h"
#include "names.h"

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

bool rows_read_cost(struct slice line, struct table *table, struct table_error *error) {
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

bool rows_read_constant(struct slice line, struct table *table, struct table_error *error) {
    struct slice name = {0}, word = {0};
    take_word(&line, &name);
    struct constant constant;
    bool over_link = slice_is(name, "link-latency-us"), latency = over_link || slice_is(name, "base-latency-us");
    if (!(latency ? read_latency(over_link, &line, &constant.number, error)
                  : read_cap(name, &line, &constant.number, error))) {
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
