#define _GNU_SOURCE /* strtod_l */

#include "text.h"

#include <locale.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static struct slice from(struct slice text, size_t offset) {
    return (struct slice){text.start + offset, text.length - offset};
}

static char lower(char letter) {
    /* Not tolower(): that depends on the locale of the process. */
    return letter >= 'A' && letter <= 'Z' ? (char)(letter - 'A' + 'a') : letter;
}

static bool is_blank(char letter) {
    return letter == ' ' || letter == '\t';
}

bool take_line(struct slice *text, struct slice *line) {
    if (text->length == 0) {
        return false;
    }
    const char *newline = memchr(text->start, '\n', text->length);
    size_t length = newline ? (size_t)(newline - text->start) : text->length;
    *line = (struct slice){text->start, length};
    *text = from(*text, newline ? length + 1 : length);
    if (line->length > 0 && line->start[line->length - 1] == '\r') {
        line->length--;
    }
    return true;
}

bool take_word(struct slice *line, struct slice *word) {
    size_t start = 0;
    while (start < line->length && is_blank(line->start[start])) {
        start++;
    }
    size_t end = start;
    while (end < line->length && !is_blank(line->start[end])) {
        end++;
    }
    *word = (struct slice){line->start + start, end - start};
    *line = from(*line, end);
    return word->length > 0;
}

struct slice without_comment(struct slice line) {
    struct slice content, comment;
    return cut(line, '#', &content, &comment) ? content : line;
}

struct slice trimmed(struct slice text) {
    while (text.length > 0 && is_blank(text.start[0])) {
        text = from(text, 1);
    }
    while (text.length > 0 && is_blank(text.start[text.length - 1])) {
        text.length--;
    }
    return text;
}

static void cut_at(struct slice text, size_t at, size_t width, struct slice *before, struct slice *after) {
    *before = (struct slice){text.start, at};
    *after = from(text, at + width);
}

bool cut(struct slice text, char separator, struct slice *before, struct slice *after) {
    const char *found = text.length > 0 ? memchr(text.start, separator, text.length) : NULL;
    if (found) {
        cut_at(text, (size_t)(found - text.start), 1, before, after);
    }
    return found;
}

bool cut_at_dots(struct slice text, struct slice *before, struct slice *after) {
    for (size_t at = 0; at + 1 < text.length; at++) {
        if (text.start[at] == '.' && text.start[at + 1] == '.') {
            cut_at(text, at, 2, before, after);
            return true;
        }
    }
    return false;
}

bool slice_is(struct slice text, const char *word) {
    return text.length == strlen(word) && memcmp(text.start, word, text.length) == 0;
}

bool slice_is_slice_any_case(struct slice text, struct slice word) {
    if (text.length != word.length) {
        return false;
    }
    for (size_t at = 0; at < text.length; at++) {
        if (lower(text.start[at]) != lower(word.start[at])) {
            return false;
        }
    }
    return true;
}

bool slice_is_any_case(struct slice text, const char *word) {
    return slice_is_slice_any_case(text, (struct slice){word, strlen(word)});
}

bool slice_is_made_of(struct slice text, const char *letters) {
    for (size_t at = 0; at < text.length; at++) {
        if (!text.start[at] || !strchr(letters, text.start[at])) {
            return false;
        }
    }
    return true;
}

int slice_among(struct slice text, const char *const *words, int count, bool (*is)(struct slice, const char *)) {
    for (int place = 0; place < count; place++) {
        if (is(text, words[place])) {
            return place;
        }
    }
    return -1;
}

static size_t count_digits(struct slice text, size_t at) {
    size_t end = at;
    while (end < text.length && text.start[end] >= '0' && text.start[end] <= '9') {
        end++;
    }
    return end - at;
}

/* A number of so many digits fits in 64 bits. */
enum { SAFE_DIGITS = 19 };

bool read_number(struct slice digits, size_t *number, bool *overflow) {
    *overflow = false;
    if (digits.length == 0) {
        return false;
    }
    size_t value = 0;
    bool fits = true;
    for (size_t at = 0; at < digits.length; at++) {
        if (digits.start[at] < '0' || digits.start[at] > '9') {
            return false;
        }
        size_t digit = (size_t)(digits.start[at] - '0');
        /* Reads on after an overflow: "99...9x" is no number, whatever its length. */
        fits = fits && (at < SAFE_DIGITS || value <= (SIZE_MAX - digit) / 10);
        value = fits ? value * 10 + digit : 0;
    }
    *number = value;
    *overflow = !fits;
    return fits;
}

static int shift_of_unit(struct slice unit) {
    static const char *const units[] = {"", "K", "M", "G", "T"};
    static const char *const long_units[] = {"", "KiB", "MiB", "GiB", "TiB"};
    for (int power = 0; power < (int)(sizeof units / sizeof units[0]); power++) {
        if (slice_is_any_case(unit, units[power]) || slice_is_any_case(unit, long_units[power])) {
            return 10 * power;
        }
    }
    return -1;
}

bool read_size(struct slice size, size_t *number, bool *overflow) {
    size_t digits = count_digits(size, 0);
    *overflow = false;
    int shift = shift_of_unit(from(size, digits));
    if (shift < 0 || !read_number((struct slice){size.start, digits}, number, overflow)) {
        return false;
    }
    if (*number > SIZE_MAX >> shift) {
        *overflow = true;
        return false;
    }
    *number <<= shift;
    return true;
}

static bool is_decimal(struct slice text) {
    size_t at = count_digits(text, 0), digits = at;
    if (digits > 0 && at < text.length && text.start[at] == '.') {
        digits = count_digits(text, ++at);
        at += digits;
    }
    if (digits > 0 && at < text.length && lower(text.start[at]) == 'e') {
        at++;
        at += at < text.length && (text.start[at] == '+' || text.start[at] == '-');
        digits = count_digits(text, at);
        at += digits;
    }
    return digits > 0 && at == text.length;
}

bool read_decimal(struct slice text, double *number) {
    char copy[64];
    if (text.length >= sizeof copy || !is_decimal(text)) {
        return false;
    }
    memcpy(copy, text.start, text.length);
    copy[text.length] = '\0';
    /* Not strtod(): the locale of the process may want a comma. */
    locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!plain) {
        return false;
    }
    *number = strtod_l(copy, NULL, plain);
    freelocale(plain);
    return true;
}

struct shown show(struct slice text) {
    struct shown shown;
    size_t room = sizeof shown.text - sizeof "...";
    size_t length = text.length < room ? text.length : room;
    for (size_t at = 0; at < length; at++) {
        char letter = text.start[at];
        shown.text[at] = letter >= ' ' && letter <= '~' ? letter : '?';
    }
    strcpy(shown.text + length, text.length > length ? "..." : "");
    return shown;
}
