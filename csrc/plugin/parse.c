#include "parse.h"

#include <string.h>

#include "csv.h"
#include "rows.h"

typedef bool (*line_reader)(struct slice line, struct table *table, struct table_error *error);

/* The first line with something on it tells our format by its name; NVIDIA's has no header. */
static bool parse_lines(struct slice text, struct table *table, struct table_error *error) {
    line_reader read_row = NULL;
    struct slice line, rest, word;
    for (error->line = 1; take_line(&text, &line); error->line++) {
        if (line.length > 0 && memchr(line.start, '\0', line.length)) {
            return table_fail(error, "a zero byte: this is not a text file");
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
    return true;
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
