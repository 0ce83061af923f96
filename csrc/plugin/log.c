#define _DEFAULT_SOURCE /* strcasecmp beside plain C11 */

#include "log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

/* NCCL cuts a line at 1024 bytes, its own beginning included. */
enum { LINE_BYTES = 1024 };

static atomic_int most; /* number of the last level that is printed */

/* The words are NCCL's (ncclDebugInit, src/debug.cc, v2.28.9-1); of an environment plugin, which may say the variable to
 * NCCL alone, it is not known. Its files of variables set them in the environment. */
void log_look(void) {
    static const char *const words[] = {"VERSION", "WARN", "INFO", "ABORT", "TRACE"};
    enum { WORDS = sizeof words / sizeof *words };
    const char *said = getenv("NCCL_DEBUG");
    int level = getenv("NCCL_ENV_PLUGIN") ? WORDS : 0;
    for (int word = 0; level == 0 && said && word < WORDS; word++) {
        level = strcasecmp(said, words[word]) == 0 ? word + 1 : 0;
    }
    atomic_store_explicit(&most, level, memory_order_relaxed);
}

bool log_prints(int level) {
    return atomic_load_explicit(&most, memory_order_relaxed) >= level;
}

/* Always handed over as "%s" and one text: a path or a word of a table is never read as a format. */
static void say(nccl_logger logger, int level, unsigned long flags, const char *format, va_list values) {
    char text[LINE_BYTES] = LOG_NAME;
    vsnprintf(text + sizeof LOG_NAME - 1, sizeof text - sizeof LOG_NAME + 1, format, values);
    logger(level, flags, "nccl-tuner", 0, "%s", text);
}

void log_info(nccl_logger logger, const char *format, ...) {
    if (logger && log_prints(LEVEL_INFO)) {
        va_list values;
        va_start(values, format);
        say(logger, LEVEL_INFO, SUBSYSTEM_INIT | SUBSYSTEM_TUNING, format, values);
        va_end(values);
    }
}

void log_asked_info(nccl_logger logger, const char *format, ...) {
    va_list values;
    va_start(values, format);
    say(logger, LEVEL_INFO, SUBSYSTEM_INIT | SUBSYSTEM_TUNING, format, values);
    va_end(values);
}

void log_warn(nccl_logger logger, const char *format, ...) {
    if (logger && log_prints(LEVEL_WARN)) {
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
