#include "settings.h"

#include <stdlib.h>
#include <string.h>

#include "log.h"

static const char *value_of(const char *variable) {
    const char *value = getenv(variable);
    return value && value[0] ? value : NULL;
}

static bool is_on(const char *variable, nccl_logger logger) {
    const char *value = value_of(variable);
    if (!value || strcmp(value, "0") == 0) {
        return false;
    }
    if (strcmp(value, "1") != 0) {
        log_warn(logger, "%s=%.64s is taken for 0 (valid: 0, 1)", variable, value);
        return false;
    }
    return true;
}

struct settings settings_read(nccl_logger logger) {
    struct settings settings = {.table = value_of(TABLE_VARIABLE), .variable = TABLE_VARIABLE};
    const char *csv = value_of(CSV_VARIABLE);
    if (settings.table) {
        settings.unread = csv;
    } else if (csv) {
        settings.table = csv;
        settings.variable = CSV_VARIABLE;
    }
    settings.masked_by = getenv("NCCL_ALGO") ? "NCCL_ALGO" : getenv("NCCL_PROTO") ? "NCCL_PROTO" : NULL;
    settings.mask = settings.masked_by ? getenv(settings.masked_by) : NULL;
    settings.strict = is_on(STRICT_VARIABLE, logger);
    settings.constants = is_on(CONSTANTS_VARIABLE, logger);
    settings.unchecked = is_on(UNCHECKED_VARIABLE, logger);
    return settings;
}
