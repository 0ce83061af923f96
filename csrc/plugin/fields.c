#include "fields.h"

#include "names.h"

bool is_known(int number, const char *what, struct slice word, const char *valid, struct table_error *error) {
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

bool read_interval(struct slice text, const struct kind *kind, struct sizes *interval, struct table_error *error) {
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

bool read_counts(struct slice text, const struct kind *kind, struct counts *counts, struct table_error *error) {
    struct sizes interval;
    if (!read_interval(text, kind, &interval, error)) {
        return false;
    }
    *counts = (struct counts){(uint32_t)interval.low, (uint32_t)interval.high};
    return true;
}

bool read_key(struct slice word, struct keys *keys, size_t *key, struct slice *value, struct table_error *error) {
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

bool read_pair(struct slice word, int8_t *algorithm, int8_t *protocol, struct table_error *error) {
    struct slice first, second;
    if (!cut(word, '/', &first, &second)) {
        return table_fail(error, "'%s' is not algorithm/protocol, such as ring/ll128", show(word).text);
    }
    *algorithm = (int8_t)algorithm_by_name(first);
    *protocol = (int8_t)protocol_by_name(second);
    return is_known(*algorithm, "algorithm", first, VALID_ALGORITHMS, error) &&
           is_known(*protocol, "protocol", second, VALID_PROTOCOLS, error);
}
