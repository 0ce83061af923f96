#include "rows.h"

#include "abi.h"
#include "conditions.h"
#include "fields.h"
#include "rows_model.h"

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

static bool read_decision(struct slice line, struct table *table, struct table_error *error) {
    struct decision decision = {.choice = (uint32_t)table->choice_count};
    if (!read_conditions(&line, ROW_OF_DECISION, &decision.when, error) || !read_choices(&line, table, error)) {
        return false;
    }
    if (table->choice_count == decision.choice) {
        decision.choice = 0; /* nccl, and nothing else */
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
