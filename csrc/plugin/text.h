/* Pieces of a text that is not terminated and may hold any bytes. */
#ifndef PLUGIN_TEXT_H
#define PLUGIN_TEXT_H

#include <stdbool.h>
#include <stddef.h>

struct slice {
    const char *start;
    size_t length;
};

/* Takes the next line off `text`, without its end ("\n" or "\r\n"); false when nothing is left. */
bool take_line(struct slice *text, struct slice *line);

/* Takes the next word off `line`, words being separated by blanks and tabs; false when none is left. */
bool take_word(struct slice *line, struct slice *word);

/* What precedes the first '#'. */
struct slice without_comment(struct slice line);

/* Without the blanks and tabs around it. */
struct slice trimmed(struct slice text);

/* Cuts at the first `separator`: `before` gets what precedes it, `after` what follows; false when there is none. */
bool cut(struct slice text, char separator, struct slice *before, struct slice *after);

/* The same at the first "..". */
bool cut_at_dots(struct slice text, struct slice *before, struct slice *after);

bool slice_is(struct slice text, const char *word);
bool slice_is_any_case(struct slice text, const char *word);
bool slice_is_slice_any_case(struct slice text, struct slice word);

/* Whether each letter is one of these. */
bool slice_is_made_of(struct slice text, const char *letters);

/* Where the text stands among `count` words, `is` being one of the two above, or -1. */
int slice_among(struct slice text, const char *const *words, int count, bool (*is)(struct slice, const char *));

/* Decimal digits only; `overflow` tells a number past SIZE_MAX from something that is no number. */
bool read_number(struct slice digits, size_t *number, bool *overflow);

/* A number of bytes: digits, then nothing or K, M, G, T (KiB, MiB, GiB, TiB), powers of 1024. */
bool read_size(struct slice size, size_t *number, bool *overflow);

/* Digits, then perhaps a fraction, then perhaps an exponent; false for anything else. May be infinite. */
bool read_decimal(struct slice text, double *number);

/* A word from the table as it may appear in a log: one line, printable, short. */
struct shown {
    char text[48];
};
struct shown show(struct slice text);

#endif
