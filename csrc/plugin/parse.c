#include "parse.h"

#include <stdint.h>
#include <string.h>

#include "abi.h"
#include "rows.h"
#include "sha256.h"
#include "table.h"
#include "text.h"

/* The CSV of NVIDIA's example tuner plugin (plugins/tuner/example, v2.30.3-1):
 * collective,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks[,numPipeOps[,regBuff]], -1 for any.
 * What that plugin would quietly take for something else is an error here. */

enum { COLLECTIVE, LEAST, MOST, ALGORITHM, PROTOCOL, CHANNELS, NODES, RANKS, PIPELINED, REGISTERED, FIELDS };
enum { LEAST_FIELDS = RANKS + 1 };

#define MOST_COUNT (UINT32_MAX - 1) /* the largest stands for no end */

/* Whether a file whose first line is this one is such a CSV. */
static bool csv_is_row(struct slice line) {
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
    return read_number(field, bytes, &overflow) || table_fail(error, "'%s' is not a number of bytes", show(field).text);
}

/* A number, or -1 for any. */
static bool read_exact(struct slice field, const char *what, uint32_t least, uint32_t most, struct counts *counts,
                       struct table_error *error) {
    size_t number;
    bool overflow;
    if (slice_is(field, "-1")) {
        return true;
    }
    if (!read_number(field, &number, &overflow) || number < least || number > most) {
        return table_fail(error, "%s '%s' is neither -1 nor a number from %u to %u", what, show(field).text, least,
                          most);
    }
    *counts = (struct counts){(uint32_t)number, (uint32_t)number};
    return true;
}

/* Exactly as NVIDIA's reader spells them: it takes every other word, "LL128" among them, for its default. */
static const char *const collectives[COLLECTIVES] = {"broadcast", "reduce", "allgather", "reducescatter", "allreduce"};
static const char *const algorithms[ALGORITHMS] = {"tree",      "ring", "collnet_direct", "collnet_chain", "nvls",
                                                   "nvls_tree", "pat"};
static const char *const protocols[PROTOCOLS] = {"ll", "ll128", "simple"};

static bool read_choice(const struct slice *fields, struct choice *choice, struct table_error *error) {
    int algorithm = slice_among(fields[ALGORITHM], algorithms, ALGORITHMS, slice_is);
    int protocol = slice_among(fields[PROTOCOL], protocols, PROTOCOLS, slice_is);
    if (algorithm < 0) {
        return table_fail(error,
                          "unknown algorithm '%s' (valid: tree, ring, collnet_direct, collnet_chain, nvls, nvls_tree, "
                          "pat)",
                          show(fields[ALGORITHM]).text);
    }
    if (protocol < 0) {
        return table_fail(error, "unknown protocol '%s' (valid: ll, ll128, simple)", show(fields[PROTOCOL]).text);
    }
    struct counts channels = {0, 0};
    if (!read_exact(fields[CHANNELS], "channels", 0, MAX_CHANNELS, &channels, error)) {
        return false;
    }
    *choice =
        (struct choice){.algorithm = (int8_t)algorithm, .protocol = (int8_t)protocol, .channels = (int8_t)channels.low};
    return true;
}

static bool read_condition(const struct slice *fields, int count, struct condition *when, struct table_error *error) {
    int collective = slice_among(fields[COLLECTIVE], collectives, COLLECTIVES, slice_is);
    if (collective < 0) {
        return table_fail(error,
                          "unknown collective '%s' (valid: broadcast, reduce, allgather, reducescatter, allreduce)",
                          show(fields[COLLECTIVE]).text);
    }
    *when = condition_of(collective);
    struct counts registered = {UINT32_MAX, UINT32_MAX};
    if (!read_bytes(fields[LEAST], &when->bytes.low, error) ||
        (!slice_is(fields[MOST], "-1") && !read_bytes(fields[MOST], &when->bytes.high, error)) ||
        !read_exact(fields[NODES], "nNodes", 1, MOST_COUNT, &when->nodes, error) ||
        !read_exact(fields[RANKS], "nRanks", 1, MOST_COUNT, &when->ranks, error) ||
        (count > PIPELINED && !read_exact(fields[PIPELINED], "numPipeOps", 0, MOST_COUNT, &when->pipelined, error)) ||
        (count > REGISTERED && !read_exact(fields[REGISTERED], "regBuff", 0, 1, &registered, error))) {
        return false;
    }
    if (when->bytes.low > when->bytes.high) {
        return table_fail(error, "min_bytes is above max_bytes");
    }
    when->registered = registered.low > 1 ? -1 : (int8_t)registered.low;
    return true;
}

static bool csv_read(struct slice line, struct table *table, struct table_error *error) {
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

enum { DAY_S = 24 * 60 * 60 };

/* What the last comment "# rows: N" says; line 0 for none. */
struct announced {
    size_t rows, line;
};

/* Whether the line is a comment whose first word is the key; `said` is what follows it. */
static bool is_comment(struct slice line, const char *key, bool (*is)(struct slice, const char *), struct slice *said) {
    struct slice before, word;
    return cut(line, '#', &before, said) && before.length == 0 && take_word(said, &word) && is(word, key);
}

/* The first of a kind is the one that counts. */
static void read_comment(struct slice line, const char *key, struct comment *comment) {
    struct slice said;
    if (!comment->text[0] && is_comment(line, key, slice_is, &said)) {
        said = trimmed(said);
        for (size_t at = 0; at < said.length && at < sizeof comment->text - 1; at++) {
            comment->text[at] = said.start[at] >= ' ' && said.start[at] <= '~' ? said.start[at] : '?';
        }
    }
}

/* Days from 1970-01-01 to a day of the Gregorian calendar from there on. */
static uint64_t days_to(size_t year, size_t month, size_t day) {
    size_t years = year - (month <= 2), since_march = (month + 9) % 12;
    return 365 * years + years / 4 - years / 100 + years / 400 + (153 * since_march + 2) / 5 + day - 1 - 719468;
}

/* "2026-11-01", as the seconds since 1970 at which it begins in UTC. */
static bool read_day(struct slice text, uint64_t *seconds) {
    struct slice parts[3], rest = text;
    size_t numbers[3];
    bool overflow;
    bool cuts = cut(rest, '-', &parts[0], &rest) && cut(rest, '-', &parts[1], &parts[2]);
    for (int part = 0; cuts && part < 3; part++) {
        cuts = parts[part].length == (part ? 2 : 4) && read_number(parts[part], &numbers[part], &overflow);
    }
    if (!cuts || numbers[0] < 1970 || numbers[1] < 1 || numbers[1] > 12 || numbers[2] < 1 || numbers[2] > 31) {
        return false;
    }
    *seconds = days_to(numbers[0], numbers[1], numbers[2]) * DAY_S;
    return true;
}

/* "# valid: DAY..DAY", either of which may be missing; the last day belongs to it. */
static bool read_valid(struct slice line, struct table *table, struct table_error *error) {
    struct slice said, low, high;
    if (!is_comment(line, "valid:", slice_is, &said)) {
        return true;
    }
    said = trimmed(said);
    bool good = cut_at_dots(said, &low, &high) && low.length + high.length > 0 &&
                (low.length == 0 || read_day(low, &table->valid_from)) &&
                (high.length == 0 || read_day(high, &table->valid_to));
    if (good && high.length > 0) {
        table->valid_to += DAY_S - 1;
    }
    return (good && table->valid_from <= table->valid_to) ||
           table_fail(error, "'# valid: %s' is not DAY..DAY, DAY.. or ..DAY, such as 2026-11-01..2027-01-31",
                      show(said).text);
}

/* "# rows: N", or "# rows: N sha256 HASH" of all that comes before this line. What looks like one and is none would
 * switch the mark off without a word. `before` is what precedes the line. */
static bool read_mark(struct slice line, struct slice before, struct announced *said, struct table *table,
                      struct table_error *error) {
    struct slice words, digits, word, hash;
    size_t rows;
    bool overflow;
    if (!is_comment(line, "rows:", slice_is_any_case, &words)) {
        return true;
    }
    bool good = is_comment(line, "rows:", slice_is, &words) && take_word(&words, &digits) &&
                read_number(digits, &rows, &overflow);
    bool hashed = good && take_word(&words, &word);
    good = good && (!hashed || (slice_is(word, "sha256") && take_word(&words, &hash) && !take_word(&words, &word)));
    if (!good) {
        return table_fail(error, "'%s' is not '# rows: N' or '# rows: N sha256 HASH'", show(line).text);
    }
    if (said->line > 0 && rows != said->rows) {
        return table_fail(error, "%zu %s announced here, and %zu in line %zu", COUNTED(rows, "row is", "rows are"),
                          said->rows, said->line);
    }
    if (hashed && !slice_is_any_case(hash, sha256_of(before).text)) {
        return table_fail(error, "what comes before has another sha256: the file was changed by hand, or in part");
    }
    *said = (struct announced){rows, error->line};
    table->mark = hashed ? MARK_HASHED : MARK_COUNTED;
    return true;
}

/* A file that was cut, or is being written, has to show: it ends with its last line, and has the rows it announces. */
static bool check_whole(struct slice text, struct table *table, const struct announced *said, size_t lines,
                        struct table_error *error) {
    if (text.length > 0 && text.start[text.length - 1] != '\n') {
        error->line = lines;
        return table_fail(error, "the last line does not end: the file is cut, or is being written");
    }
    size_t rows = table->decision_count + table->cost_count + table->constant_count;
    if (said->line > 0 && said->rows != rows) {
        error->line = said->line;
        return table_fail(error, "%zu %s announced, and there are %zu: the file is cut, or is being written",
                          COUNTED(said->rows, "row is", "rows are"), rows);
    }
    if (said->line < lines) {
        if (table->mark == MARK_HASHED) {
            error->line = said->line + 1;
            return table_fail(error, "something follows the line with the hash, which ends a table");
        }
        table->mark = MARK_NONE;
    }
    return true;
}

typedef bool (*line_reader)(struct slice line, struct table *table, struct table_error *error);

static bool read_comments(struct slice line, struct slice before, struct announced *said, struct table *table,
                          struct table_error *error) {
    read_comment(line, "gpus:", &table->gpus);
    read_comment(line, "nccl:", &table->releases);
    return read_valid(line, table, error) && read_mark(line, before, said, table, error);
}

/* The first line with something on it tells our format by its name; NVIDIA's has no header. */
static bool parse_lines(struct slice text, struct table *table, struct table_error *error) {
    line_reader read_row = NULL;
    struct slice whole = text, line, rest, word;
    struct announced said = {0, 0};
    for (error->line = 1; take_line(&text, &line); error->line++) {
        if (line.length > 0 && memchr(line.start, '\0', line.length)) {
            return table_fail(error, "a zero byte: this is not a text file");
        }
        struct slice before = {whole.start, (size_t)(line.start - whole.start)};
        if (!read_comments(line, before, &said, table, error)) {
            return false;
        }
        line = without_comment(line);
        rest = line;
        if (!take_word(&rest, &word)) {
            continue;
        }
        bool is_header = !read_row && !csv_is_row(line);
        if (!read_row) {
            read_row = is_header ? rows_read : csv_read;
            table->falls_through = !is_header;
        }
        if (is_header ? !rows_read_header(line, error) : !read_row(line, table, error)) {
            return false;
        }
    }
    if (!read_row) {
        error->line = 1;
        return table_fail(error, "empty: the first line has to be '%s'", rows_header);
    }
    return check_whole(whole, table, &said, error->line - 1, error);
}

bool table_parse(struct slice text, struct table *table, struct table_error *error) {
    static const struct choice none = {.algorithm = -1, .protocol = -1};
    static const struct choice own = {.algorithm = -1, .protocol = -1, .own = true};
    *table = (struct table){.valid_to = UINT64_MAX};
    if (table_add_choice(table, none, error) && table_add_choice(table, own, error) &&
        parse_lines(text, table, error)) {
        return true;
    }
    table_free(table);
    return false;
}
