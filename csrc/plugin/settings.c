#include "settings.h"

#include <stdlib.h>
#include <string.h>

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
    settings.hashes = value_of(HASHES_VARIABLE);
    settings.wrong = settings.hashes && !are_hashes(settings.hashes, logger);
    settings.strict = is_on(STRICT_VARIABLE, true, &settings.wrong, logger);
    settings.constants = is_on(CONSTANTS_VARIABLE, false, &settings.wrong, logger);
    settings.unchecked = is_on(UNCHECKED_VARIABLE, false, &settings.wrong, logger);
    return settings;
}
