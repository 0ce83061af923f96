#include "tuner.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cost.h"
#include "file.h"
#include "log.h"
#include "lookup.h"
#include "sha256.h"
#include "table.h"

#define LOG_NAME "TUNER/" TUNER_NAME ": "
#define TABLE_VARIABLE "NCCL_TUNER_TABLE"

struct tuner {
    struct lookup lookup;
    nccl_logger logger;
    atomic_size_t calls, overrides, unavailable;
};

/* NCCL makes the calls of one communicator one after the other, so a plain load and store counts exactly and costs a
 * tenth of a locked addition; were they ever to overlap, a count would be low and nothing else wrong. */
static void count(atomic_size_t *counter) {
    size_t value = atomic_load_explicit(counter, memory_order_relaxed);
    atomic_store_explicit(counter, value + 1, memory_order_relaxed);
}

/* The end of a long path is what tells it from others, and the reason after it has to fit on NCCL's line too. */
struct shown_path {
    char text[512];
};

static struct shown_path show_path(const char *path) {
    struct shown_path shown;
    size_t room = sizeof shown.text - sizeof "...", length = strlen(path);
    bool fits = length <= room;
    snprintf(shown.text, sizeof shown.text, "%s%s", fits ? "" : "...", fits ? path : path + length - room);
    return shown;
}

static struct tuner *build(const struct table *table, size_t ranks, size_t nodes, nccl_logger logger) {
    struct tuner *tuner = calloc(1, sizeof *tuner);
    if (!tuner || !lookup_build(table, ranks, nodes, &tuner->lookup)) {
        free(tuner);
        return NULL;
    }
    tuner->logger = logger;
    return tuner;
}

static struct tuner *use(const struct file *file, size_t ranks, size_t nodes, nccl_logger logger) {
    struct shown_path path = show_path(file->path);
    struct slice content = {file->bytes, file->size};
    struct table table;
    struct table_error error;
    if (!table_parse(content, &table, &error)) {
        log_warn(logger, LOG_NAME "%s:%zu: %s; the whole table is ignored", path.text, error.line, error.reason);
        return NULL;
    }
    struct tuner *tuner = build(&table, ranks, nodes, logger);
    if (tuner) {
        log_info(logger, LOG_NAME "table %s (sha256 %s): %zu rows, %zu of them for %zu ranks on %zu nodes", path.text,
                 sha256_short(content).text, table.count, tuner->lookup.rows, ranks, nodes);
    } else {
        log_warn(logger, LOG_NAME "%s: out of memory; the whole table is ignored", path.text);
    }
    if (tuner && tuner->lookup.channels_withheld > 0) {
        log_info(logger,
                 LOG_NAME "%zu rows set channels for CollNet, or NVLS across nodes, where NCCL does not check them: its "
                          "own number stays there",
                 tuner->lookup.channels_withheld);
    }
    table_free(&table);
    return tuner;
}

struct tuner *tuner_open(size_t ranks, size_t nodes, nccl_logger logger) {
    const char *name = getenv(TABLE_VARIABLE);
    if (!name || !name[0]) {
        log_info(logger, LOG_NAME TABLE_VARIABLE " is not set: every choice is NCCL's own");
        return NULL;
    }
    struct tuner *tuner = NULL;
    struct file file;
    struct file_error error;
    if (file_read(name, &file, &error)) {
        tuner = use(&file, ranks, nodes, logger);
    } else {
        struct shown_path path = show_path(file.path ? file.path : name);
        log_warn(logger, LOG_NAME "%s: %s; there is no table (" TABLE_VARIABLE "=%s)", path.text, error.reason,
                 show_path(name).text);
    }
    file_free(&file);
    return tuner;
}

void tuner_decide(struct tuner *tuner, int collective, size_t bytes, float *cells, int algorithms, int protocols,
                  int *channels) {
    if (!tuner || !cells) {
        return;
    }
    count(&tuner->calls);
    struct choice choice = lookup_find(&tuner->lookup, collective, bytes);
    if (choice.algorithm < 0) {
        return;
    }
    if (!cost_prefer(cells, algorithms, protocols, choice.algorithm, choice.protocol)) {
        count(&tuner->unavailable);
        return;
    }
    count(&tuner->overrides);
    if (choice.channels > 0 && channels) {
        *channels = choice.channels;
    }
}

void tuner_close(struct tuner *tuner) {
    if (!tuner) {
        return;
    }
    log_info(tuner->logger, LOG_NAME "%zu calls: %zu decided by the table, %zu matched a row that NCCL cannot run here",
             atomic_load_explicit(&tuner->calls, memory_order_relaxed),
             atomic_load_explicit(&tuner->overrides, memory_order_relaxed),
             atomic_load_explicit(&tuner->unavailable, memory_order_relaxed));
    lookup_free(&tuner->lookup);
    free(tuner);
}
