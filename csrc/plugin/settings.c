#include "settings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "file.h"
#include "hardware.h"
#include "log.h"
#include "sha256.h"
#include "text.h"

static const char *value_of(const char *variable) {
    const char *value = getenv(variable);
    return value && value[0] ? value : NULL;
}

static struct slice slice_of(const char *text) {
    return (struct slice){text, strlen(text)};
}

/* A word that is not known counts as `otherwise`. */
static bool is_on(const char *variable, bool otherwise, bool *wrong, nccl_logger logger) {
    static const char *const words[] = {"0", "1", "false", "true", "no", "yes", "off", "on"};
    const char *value = value_of(variable);
    if (!value) {
        return false;
    }
    int word = slice_among(trimmed(slice_of(value)), words, sizeof words / sizeof words[0], slice_is_any_case);
    if (word < 0) {
        log_warn(logger, "%s=%.64s is taken for %d (valid: 0, 1, false, true, no, yes, off, on)", variable, value,
                 otherwise);
        *wrong = true;
        return otherwise;
    }
    return word % 2;
}

/* The next of the hashes; false when none is left. */
static bool take_hash(struct slice *list, struct slice *hash) {
    if (!list->start) {
        return false;
    }
    struct slice rest;
    if (cut(*list, ',', hash, &rest)) {
        *list = rest;
    } else {
        *hash = *list;
        list->start = NULL;
    }
    *hash = trimmed(*hash);
    return true;
}

static bool is_hash(struct slice word) {
    return word.length == HASH_DIGITS && slice_is_made_of(word, "0123456789abcdefABCDEF");
}

static bool are_hashes(const char *text, nccl_logger logger) {
    struct slice list = slice_of(text), hash;
    while (take_hash(&list, &hash)) {
        if (!is_hash(hash)) {
            log_warn(logger, HASHES_VARIABLE ": '%s' is not the 64 hexadecimal digits that sha256sum prints",
                     show(hash).text);
            return false;
        }
    }
    return true;
}

bool settings_allow(const struct settings *settings, const char *hash) {
    if (!settings->hashes) {
        return true;
    }
    struct slice list = slice_of(settings->hashes), allowed;
    while (take_hash(&list, &allowed)) {
        if (slice_is_any_case(allowed, hash)) {
            return true;
        }
    }
    return false;
}

/* 0 where it is not set, and where it is no number. */
static uint64_t read_time(bool *wrong, nccl_logger logger) {
    const char *value = value_of(TIME_VARIABLE);
    size_t seconds = 0;
    bool overflow;
    if (value && (!read_number(slice_of(value), &seconds, &overflow) || seconds == 0)) {
        log_warn(logger, TIME_VARIABLE "=%.64s is not a number of seconds since 1970, as 'date +%%s' prints it", value);
        *wrong = true;
        return 0;
    }
    return seconds;
}

struct settings settings_read(nccl_logger logger) {
    struct settings settings = {.table = value_of(TABLE_VARIABLE), .variable = TABLE_VARIABLE};
    const char *csv = value_of(CSV_VARIABLE);
    if (settings.table) {
        settings.unread = csv;
        settings.expands = true;
    } else if (csv) {
        settings.table = csv;
        settings.variable = CSV_VARIABLE;
    }
    settings.next = value_of(NEXT_VARIABLE);
    settings.masked_by = getenv("NCCL_ALGO") ? "NCCL_ALGO" : getenv("NCCL_PROTO") ? "NCCL_PROTO" : NULL;
    settings.mask = settings.masked_by ? getenv(settings.masked_by) : NULL;
    settings.hashes = getenv(HASHES_VARIABLE); /* an empty one allows nothing: what was to fill it has failed */
    settings.wrong = settings.hashes && !are_hashes(settings.hashes, logger);
    settings.switch_file = value_of(SWITCH_VARIABLE);
    settings.job_s = read_time(&settings.wrong, logger);
    settings.strict = is_on(STRICT_VARIABLE, true, &settings.wrong, logger);
    settings.constants = is_on(CONSTANTS_VARIABLE, false, &settings.wrong, logger);
    settings.unchecked = is_on(UNCHECKED_VARIABLE, false, &settings.wrong, logger);
    return settings;
}

/* One line; what follows '#' is a comment. */
static bool read_switch_line(struct slice line, uint64_t job_s, uint64_t *before_s, struct switched *switched) {
    struct slice word, digits, more;
    size_t seconds;
    bool overflow;
    line = without_comment(line);
    if (!take_word(&line, &word)) {
        return true;
    }
    bool off = slice_is(word, "off");
    if ((!off && !slice_is(word, "on")) || !take_word(&line, &digits) || !read_number(digits, &seconds, &overflow) ||
        take_word(&line, &more) || seconds < *before_s) {
        return false;
    }
    *before_s = seconds;
    if (seconds <= job_s) {
        switched->off = off;
        switched->since_s = seconds;
    }
    return true;
}

/* A line that is being written does not end yet, and is of a time after this job's begin: it does not count. */
bool settings_read_switch(const struct settings *settings, struct switched *switched) {
    struct file file;
    struct file_error error;
    *switched = (struct switched){.off = false};
    if (!file_read_growing(settings->switch_file, &file, &error)) {
        file_free(&file);
        snprintf(switched->reason, sizeof switched->reason, "%s", error.reason);
        return false;
    }
    struct slice text = {file.bytes, file.size}, line;
    uint64_t before_s = 0;
    size_t number = 1;
    bool good = true;
    for (; good && text.length > 0 && memchr(text.start, '\n', text.length) && take_line(&text, &line); number++) {
        good = read_switch_line(line, settings->job_s, &before_s, switched);
    }
    if (!good) {
        snprintf(switched->reason, sizeof switched->reason,
                 "line %zu is not 'off SECONDS' or 'on SECONDS', in the order of their times", number - 1);
    }
    file_free(&file);
    return good;
}

static bool fail(struct expanded *expanded, const char *reason) {
    snprintf(expanded->reason, sizeof expanded->reason, "%s", reason);
    return false;
}

/* "NVIDIA H100 80GB HBM3" as "nvidia-h100-80gb-hbm3": one part of a path, whatever the name is. */
static void as_file_name(struct gpu_name *name) {
    for (char *letter = name->text; *letter; letter++) {
        bool upper = *letter >= 'A' && *letter <= 'Z', lower = *letter >= 'a' && *letter <= 'z';
        bool digit = *letter >= '0' && *letter <= '9';
        *letter = upper ? (char)(*letter - 'A' + 'a') : lower || digit ? *letter : '-';
    }
}

struct word {
    char text[96];
};

static bool expand_word(char letter, const struct shape *shape, struct word *word, struct expanded *expanded) {
    struct gpu_name name;
    size_t number = shape->nodes;
    switch (letter) {
    case '%':
        snprintf(word->text, sizeof word->text, "%%");
        return true;
    case 'g':
        if (!gpu_read_name(&name)) {
            return fail(expanded, "%g: the process has no NVML that gives all GPUs of the node one name");
        }
        as_file_name(&name);
        snprintf(word->text, sizeof word->text, "%s", name.text);
        return true;
    case 'l':
        if (shape->nodes == 0 || shape->ranks % shape->nodes != 0) {
            return fail(expanded, "%l: the nodes have different numbers of ranks");
        }
        number = shape->ranks / shape->nodes;
        break;
    case 'n':
        break;
    default:
        return fail(expanded, "an unknown word after % (valid: %g GPU, %n nodes, %l ranks per node, %%)");
    }
    if (!shape->known) {
        return fail(expanded, "%n and %l: this NCCL does not say which communicator asks");
    }
    snprintf(word->text, sizeof word->text, "%zu", number);
    return true;
}

bool expand(const char *name, const struct shape *shape, struct expanded *expanded) {
    *expanded = (struct expanded){.path = ""};
    size_t length = 0;
    for (const char *at = name; *at; at++) {
        struct word word = {{*at, '\0'}};
        if (*at == '%' && !expand_word(*++at, shape, &word, expanded)) {
            return false;
        }
        size_t more = strlen(word.text);
        if (length + more >= sizeof expanded->path) {
            return fail(expanded, "File name too long");
        }
        memcpy(expanded->path + length, word.text, more + 1);
        length += more;
    }
    return true;
}
