#include "parse.h"

#include <string.h>

#include "csv.h"
#include "rows.h"

/* What a comment "# rows: N" says; line 0 for none. */
struct announced {
    size_t rows, line;
};

/* Whether this line is such a comment: its writer says how many rows the whole table has. */
static bool read_announced(struct slice line, size_t *rows) {
    struct slice before, comment, digits, word;
    bool overflow;
    return cut(line, '#', &before, &comment) && before.length == 0 && take_word(&comment, &word) &&
           slice_is(word, "rows:") && take_word(&comment, &digits) && read_number(digits, rows, &overflow) &&
           !take_word(&comment, &word);
}

/* The first "# gpus: NAME, NAME" is the one that counts. */
static void read_gpus(struct slice line, struct gpus *gpus) {
    struct slice before, comment, word;
    if (!gpus->text[0] && cut(line, '#', &before, &comment) && before.length == 0 && take_word(&comment, &word) &&
        slice_is(word, "gpus:")) {
        comment = trimmed(comment);
        for (size_t at = 0; at < comment.length && at < sizeof gpus->text - 1; at++) {
            gpus->text[at] = comment.start[at] >= ' ' && comment.start[at] <= '~' ? comment.start[at] : '?';
        }
    }
}

/* A file that was cut, or is being written, has to show: it ends with its last line, and has the rows it announces. */
static bool check_whole(struct slice text, const struct table *table, const struct announced *said, size_t lines,
                        struct table_error *error) {
    if (text.length > 0 && text.start[text.length - 1] != '\n') {
        error->line = lines;
        return table_fail(error, "the last line does not end: the file is cut, or is being written");
    }
    size_t rows = table->decision_count + table->cost_count + table->constant_count;
    if (said->line > 0 && said->rows != rows) {
        error->line = said->line;
        return table_fail(error, "%zu rows are announced, and there are %zu: the file is cut, or is being written",
                          said->rows, rows);
    }
    return true;
}

typedef bool (*line_reader)(struct slice line, struct table *table, struct table_error *error);

/* The first line with something on it tells our format by its name; NVIDIA's has no header. */
static bool parse_lines(struct slice text, struct table *table, struct table_error *error) {
    line_reader read_row = NULL;
    struct slice whole = text, line, rest, word;
    struct announced said = {0, 0};
    for (error->line = 1; take_line(&text, &line); error->line++) {
        if (line.length > 0 && memchr(line.start, '\0', line.length)) {
            return table_fail(error, "a zero byte: this is not a text file");
        }
        size_t rows;
        if (read_announced(line, &rows)) {
            if (said.line > 0 && rows != said.rows) {
                return table_fail(error, "%zu rows are announced here, and %zu in line %zu", rows, said.rows,
                                  said.line);
            }
            said = (struct announced){rows, error->line};
        }
        read_gpus(line, &table->gpus);
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
    static const struct choice own = {.algorithm = -1, .protocol = -1};
    *table = (struct table){0};
    if (table_add_choice(table, own, error) && parse_lines(text, table, error)) {
        return true;
    }
    table_free(table);
    return false;
}
