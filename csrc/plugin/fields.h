/* What the rows of our own format are made of: numbers, intervals, keys, algorithm/protocol. Each reader returns false
 * with the reason set. */
#ifndef PLUGIN_FIELDS_H
#define PLUGIN_FIELDS_H

#include "table.h"
#include "text.h"

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

/* "key=value" into its halves; a key may come once. */
bool read_key(struct slice word, struct keys *keys, size_t *key, struct slice *value, struct table_error *error);

/* "A..B", "A..", "..B" or "A". */
bool read_interval(struct slice text, const struct kind *kind, struct sizes *interval, struct table_error *error);
bool read_counts(struct slice text, const struct kind *kind, struct counts *counts, struct table_error *error);

bool read_pair(struct slice word, int8_t *algorithm, int8_t *protocol, struct table_error *error);

/* Whether the word has a number, which is -1 for one that is not among the valid. */
bool is_known(int number, const char *what, struct slice word, const char *valid, struct table_error *error);

#endif
