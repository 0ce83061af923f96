#include "table.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "abi.h"
#include "names.h"

static const char format_name[] = "nccl-tuner-table";
static const char format_version[] = "1";

/* Always false, so that a reader can end with it. */
__attribute__((format(printf, 2, 3))) static bool fail(struct table_error *error, const char *format, ...) {
    va_list values;
    va_start(values, format);
    vsnprintf(error->reason, sizeof error->reason, format, values);
    va_end(values);
    return false;
}

static bool parse_header(struct slice line, struct table_error *error) {
    struct slice rest = line, name, version, more;
    if (!take_word(&rest, &name) || !slice_is(name, format_name)) {
        return fail(error, "the first line has to be '%s %s', not '%s'", format_name, format_version, show(line).text);
    }
    if (!take_word(&rest, &version) || !slice_is(version, format_version)) {
        return fail(error, "version '%s' of the table format is unknown (valid: %s)", show(version).text,
                    format_version);
    }
    if (take_word(&rest, &more)) {
        return fail(error, "'%s' after the version", show(more).text);
    }
    return true;
}

typedef bool (*number_reader)(struct slice text, size_t *number, bool *overflow);

/* One end of an interval; an end that is not given keeps its value. */
static bool parse_end(struct slice text, number_reader read, const char *what, size_t *end, struct table_error *error) {
    bool overflow;
    if (text.length == 0 || read(text, end, &overflow)) {
        return true;
    }
    if (overflow) {
        return fail(error, "'%s' is past the largest number, %zu", show(text).text, (size_t)SIZE_MAX);
    }
    return fail(error, "'%s' is not %s", show(text).text, what);
}

/* "A..B", "A..", "..B" or "A". */
static bool parse_interval(struct slice text, number_reader read, const char *what, size_t least,
                           struct interval *interval, struct table_error *error) {
    struct slice low = text, high = text;
    bool is_range = cut(text, "..", &low, &high);
    if (is_range ? low.length + high.length == 0 : text.length == 0) {
        return fail(error, "'%s' is not %s or an interval of it, A..B, A.. or ..B", show(text).text, what);
    }
    *interval = (struct interval){least, SIZE_MAX};
    if (!parse_end(low, read, what, &interval->low, error) || !parse_end(high, read, what, &interval->high, error)) {
        return false;
    }
    if (interval->low < least || interval->high < least) {
        return fail(error, "'%s': at least %zu", show(text).text, least);
    }
    if (interval->low > interval->high) {
        return fail(error, "'%s': the first number is above the second", show(text).text);
    }
    return true;
}

static bool parse_bytes(struct slice text, struct interval *bytes, struct table_error *error) {
    return parse_interval(text, read_size, "a number of bytes such as 65536, 64K or 64KiB (K, M, G, T: powers of 1024)",
                          0, bytes, error);
}

static bool parse_count(struct slice text, struct interval *count, struct table_error *error) {
    return parse_interval(text, read_number, "a number", 1, count, error);
}

static bool parse_channels(struct slice text, int *channels, struct table_error *error) {
    size_t number;
    bool overflow;
    if (!read_number(text, &number, &overflow) || number < 1 || number > MAX_CHANNELS) {
        return fail(error, "channels=%s is not a number from 1 to %d", show(text).text, MAX_CHANNELS);
    }
    *channels = (int)number;
    return true;
}

/* "key=value" into its halves; a key may come once. `seen` has a bit for each key of the `keys`. */
static bool parse_key(struct slice word, const char *const *keys, size_t count, const char *valid, unsigned *seen,
                      size_t *key, struct slice *value, struct table_error *error) {
    struct slice name;
    if (!cut(word, "=", &name, value)) {
        return fail(error, "'%s' is not key=value (%s)", show(word).text, valid);
    }
    for (*key = 0; *key < count; (*key)++) {
        if (slice_is(name, keys[*key])) {
            if (*seen & 1u << *key) {
                return fail(error, "'%s' twice", keys[*key]);
            }
            *seen |= 1u << *key;
            return true;
        }
    }
    return fail(error, "unknown key '%s' (%s)", show(name).text, valid);
}

/* What a row applies to, up to and including the arrow. */
static bool parse_conditions(struct slice *line, struct row *row, struct table_error *error) {
    enum { BYTES, RANKS, NODES, KEYS };
    static const char *const keys[KEYS] = {"bytes", "ranks", "nodes"};
    unsigned seen = 0;
    struct slice word, value;
    while (take_word(line, &word)) {
        if (slice_is(word, "->")) {
            return true;
        }
        size_t key;
        if (!parse_key(word, keys, KEYS, "valid before '->': bytes, ranks, nodes", &seen, &key, &value, error)) {
            return false;
        }
        bool good = key == BYTES   ? parse_bytes(value, &row->bytes, error)
                    : key == RANKS ? parse_count(value, &row->ranks, error)
                                   : parse_count(value, &row->nodes, error);
        if (!good) {
            return false;
        }
    }
    return fail(error, "no '->' with an algorithm/protocol after it");
}

/* What a row says, after the arrow. */
static bool parse_choice(struct slice *line, struct row *row, struct table_error *error) {
    static const char *const keys[] = {"channels"};
    struct slice word, algorithm, protocol, value;
    if (!take_word(line, &word) || !cut(word, "/", &algorithm, &protocol)) {
        return fail(error, "'%s' is not algorithm/protocol, such as ring/ll128", show(word).text);
    }
    row->algorithm = algorithm_by_name(algorithm);
    if (row->algorithm < 0) {
        return fail(error, "unknown algorithm '%s' (%s)", show(algorithm).text, VALID_ALGORITHMS);
    }
    row->protocol = protocol_by_name(protocol);
    if (row->protocol < 0) {
        return fail(error, "unknown protocol '%s' (%s)", show(protocol).text, VALID_PROTOCOLS);
    }
    unsigned seen = 0;
    size_t key;
    while (take_word(line, &word)) {
        if (!parse_key(word, keys, 1, "valid after '->': channels", &seen, &key, &value, error) ||
            !parse_channels(value, &row->channels, error)) {
            return false;
        }
    }
    return true;
}

static bool parse_row(struct slice line, struct row *row, struct table_error *error) {
    static const struct interval any = {0, SIZE_MAX};
    *row = (struct row){.bytes = any, .ranks = any, .nodes = any};
    struct slice word;
    take_word(&line, &word);
    row->collective = collective_by_name(word);
    if (row->collective < 0) {
        return fail(error, "unknown collective '%s' (%s)", show(word).text, VALID_COLLECTIVES);
    }
    return parse_conditions(&line, row, error) && parse_choice(&line, row, error);
}

/* `room` is how many rows the array has space for. */
static bool append(struct table *table, size_t *room, struct row row, struct table_error *error) {
    if (table->count == *room) {
        size_t more = *room ? *room * 2 : 64;
        struct row *rows = realloc(table->rows, more * sizeof *rows);
        if (!rows) {
            return fail(error, "out of memory after %zu rows", table->count);
        }
        table->rows = rows;
        *room = more;
    }
    table->rows[table->count++] = row;
    return true;
}

static bool parse_lines(struct slice text, struct table *table, struct table_error *error) {
    bool has_header = false;
    size_t room = 0;
    struct slice line, comment, content, rest, word;
    for (error->line = 1; take_line(&text, &line); error->line++) {
        if (line.length > 0 && memchr(line.start, '\0', line.length)) {
            return fail(error, "a zero byte: this is not a text file");
        }
        if (!cut(line, "#", &content, &comment)) {
            content = line;
        }
        rest = content;
        if (!take_word(&rest, &word)) {
            continue;
        }
        if (!has_header) {
            if (!parse_header(content, error)) {
                return false;
            }
            has_header = true;
            continue;
        }
        struct row row;
        if (!parse_row(content, &row, error) || !append(table, &room, row, error)) {
            return false;
        }
    }
    if (!has_header) {
        error->line = 1;
        return fail(error, "empty: the first line has to be '%s %s'", format_name, format_version);
    }
    return true;
}

bool table_parse(struct slice text, struct table *table, struct table_error *error) {
    *table = (struct table){0};
    if (parse_lines(text, table, error)) {
        return true;
    }
    table_free(table);
    return false;
}

void table_free(struct table *table) {
    free(table->rows);
    *table = (struct table){0};
}

bool interval_holds(struct interval interval, size_t value) {
    return interval.low <= value && value <= interval.high;
}
