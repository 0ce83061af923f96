#include "log.h"

#include <stdarg.h>
#include <stdio.h>

/* NCCL cuts a line at 1024 bytes, its own beginning included. */
enum { LINE_BYTES = 1024 };

/* Always handed over as "%s" and one text: a path or a word of a table is never read as a format. */
static void say(nccl_logger logger, int level, unsigned long flags, const char *format, va_list values) {
    char text[LINE_BYTES] = LOG_NAME;
    vsnprintf(text + sizeof LOG_NAME - 1, sizeof text - sizeof LOG_NAME + 1, format, values);
    logger(level, flags, "nccl-tuner", 0, "%s", text);
}

void log_info(nccl_logger logger, const char *format, ...) {
    if (logger) {
        va_list values;
        va_start(values, format);
        say(logger, LEVEL_INFO, SUBSYSTEM_INIT | SUBSYSTEM_TUNING, format, values);
        va_end(values);
    }
}

void log_warn(nccl_logger logger, const char *format, ...) {
    if (logger) {
        va_list values;
        va_start(values, format);
        say(logger, LEVEL_WARN, SUBSYSTEM_ALL, format, values);
        va_end(values);
    }
}

void log_warn_text(nccl_logger logger, const char *text) {
    if (logger) {
        logger(LEVEL_WARN, SUBSYSTEM_ALL, "nccl-tuner", 0, "%s", text);
    }
}
