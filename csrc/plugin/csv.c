#include "csv.h"

#include <stdint.h>

#include "abi.h"
#include "names.h"

enum { COLLECTIVE, LEAST, MOST, ALGORITHM, PROTOCOL, CHANNELS, NODES, RANKS, PIPELINED, REGISTERED, FIELDS };
enum { LEAST_FIELDS = RANKS + 1 };

bool csv_is_row(struct slice line) {
    struct slice before, after;
    return cut(line, ',', &before, &after);
}

/* The number of fields; what is past the last known one is counted, not kept. */
static int split(struct slice line, struct slice fields[FIELDS]) {
    int count = 0;
    struct slice field, rest = line;
    for (bool more = true; more; count++) {
        more = cut(rest, ',', &field, &rest);
        if (count < FIELDS) {
            fields[count] = trimmed(more ? field : rest);
        }
    }
    return count;
}

static bool read_bytes(struct slice field, size_t *bytes, struct table_error *error) {
    bool overflow = false;
    if (slice_is(field, "-1")) { /* NVIDIA's strtoull makes the largest number of it */
        *bytes = SIZE_MAX;
        return true;
    }
    return read_number(field, bytes, &overflow) ||
           table_fail(error, "'%s' is not a number of bytes", show(field).text);
}

/* A number up to `most`, or -1 for any. */
static bool read_exact(struct slice field, const char *what, uint32_t most, struct counts *counts,
                       struct table_error *error) {
    size_t number;
    bool overflow;
    if (slice_is(field, "-1")) {
        return true;
    }
    if (!read_number(field, &number, &overflow) || number > most) {
        return table_fail(error, "%s '%s' is neither -1 nor a number up to %u", what, show(field).text, most);
    }
    *counts = (struct counts){(uint32_t)number, (uint32_t)number};
    return true;
}

/* NVIDIA's words have an underscore where ours have none. */
static int read_algorithm(struct slice field) {
    static const struct {
        const char *name;
        int number;
    } others[] = {{"collnet_direct", ALGORITHM_COLLNET_DIRECT},
                  {"collnet_chain", ALGORITHM_COLLNET_CHAIN},
                  {"nvls_tree", ALGORITHM_NVLS_TREE}};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        if (slice_is_any_case(field, others[i].name)) {
            return others[i].number;
        }
    }
    return algorithm_by_name(field);
}

static bool read_choice(const struct slice *fields, struct choice *choice, struct table_error *error) {
    int algorithm = read_algorithm(fields[ALGORITHM]), protocol = protocol_by_name(fields[PROTOCOL]);
    if (algorithm < 0) {
        return table_fail(error,
                          "unknown algorithm '%s' (valid: tree, ring, collnet_direct, collnet_chain, nvls, nvls_tree, "
                          "pat)",
                          show(fields[ALGORITHM]).text);
    }
    if (protocol < 0) {
        return table_fail(error, "unknown protocol '%s' (%s)", show(fields[PROTOCOL]).text, VALID_PROTOCOLS);
    }
    struct counts channels = {0, 0};
    if (!read_exact(fields[CHANNELS], "channels", MAX_CHANNELS, &channels, error)) {
        return false;
    }
    *choice = (struct choice){
        .algorithm = (int8_t)algorithm, .protocol = (int8_t)protocol, .channels = (int8_t)channels.low};
    return true;
}

static bool read_condition(const struct slice *fields, int count, struct condition *when, struct table_error *error) {
    int collective = collective_by_name(fields[COLLECTIVE]);
    if (collective < 0) {
        return table_fail(error, "unknown collective '%s' (%s)", show(fields[COLLECTIVE]).text, VALID_COLLECTIVES);
    }
    *when = condition_of(collective);
    struct counts registered = {UINT32_MAX, UINT32_MAX};
    if (!read_bytes(fields[LEAST], &when->bytes.low, error) || !read_bytes(fields[MOST], &when->bytes.high, error) ||
        !read_exact(fields[NODES], "nNodes", INT32_MAX, &when->nodes, error) ||
        !read_exact(fields[RANKS], "nRanks", INT32_MAX, &when->ranks, error) ||
        (count > PIPELINED && !read_exact(fields[PIPELINED], "numPipeOps", INT32_MAX, &when->pipelined, error)) ||
        (count > REGISTERED && !read_exact(fields[REGISTERED], "regBuff", 1, &registered, error))) {
        return false;
    }
    if (when->bytes.low > when->bytes.high) {
        return table_fail(error, "min_bytes is above max_bytes");
    }
    when->registered = registered.low > 1 ? -1 : (int8_t)registered.low;
    return true;
}

bool csv_read(struct slice line, struct table *table, struct table_error *error) {
    struct slice fields[FIELDS];
    int count = split(line, fields);
    if (count < LEAST_FIELDS || count > FIELDS) {
        return table_fail(error,
                          "%d fields, not 8 to 10: collective,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,"
                          "nRanks[,numPipeOps[,regBuff]]",
                          count);
    }
    struct decision decision = {.choice = (uint32_t)table->choice_count};
    struct choice choice;
    return read_condition(fields, count, &decision.when, error) && read_choice(fields, &choice, error) &&
           table_add_choice(table, choice, error) && table_add_decision(table, decision, error);
}
