#include "tuner.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cells.h"
#include "costs.h"
#include "file.h"
#include "legacy.h"
#include "log.h"
#include "lookup.h"
#include "settings.h"
#include "sha256.h"
#include "table.h"

struct tuner {
    struct lookup lookup;
    struct costs costs;
    struct shape shape;
    nccl_logger logger;
    bool unchecked;
    _Atomic(uint64_t) chunks[COLLECTIVES]; /* of the last decision each: chunk_key and the size */
    atomic_size_t calls, costed, decided, unavailable;
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

static struct tuner *build(const struct table *table, const struct opening *opening, const struct settings *settings) {
    struct tuner *tuner = calloc(1, sizeof *tuner);
    if (!tuner || !lookup_build(table, &opening->shape, &tuner->lookup)) {
        free(tuner);
        return NULL;
    }
    if (!costs_build(table, &opening->shape, &tuner->costs)) {
        lookup_free(&tuner->lookup);
        free(tuner);
        return NULL;
    }
    tuner->shape = opening->shape;
    tuner->logger = opening->logger;
    tuner->unchecked = settings->unchecked;
    return tuner;
}

static void say_rows(const struct tuner *tuner, const struct table *table, const char *path, const char *hash) {
    size_t rows = table->decision_count + table->cost_count, ours = tuner->lookup.rows + tuner->costs.rows;
    size_t shapeless = tuner->lookup.shapeless + tuner->costs.shapeless;
    if (tuner->shape.known) {
        log_info(tuner->logger, "table %s (sha256 %s): %zu rows, %zu of them for %zu ranks on %zu nodes", path, hash,
                 rows, ours, tuner->shape.ranks, tuner->shape.nodes);
    } else {
        log_info(tuner->logger, "table %s (sha256 %s): %zu rows, %zu of them for every communicator", path, hash, rows,
                 ours);
    }
    if (shapeless > 0) {
        log_info(tuner->logger,
                 "%zu rows ask for ranks or nodes, and this NCCL does not say which communicator asks: its own choice "
                 "stays there (" UNCHECKED_VARIABLE "=1 takes all communicators for alike)",
                 shapeless);
    }
    if (tuner->lookup.channels_withheld > 0) {
        log_info(tuner->logger,
                 "%zu choices set channels for CollNet, or NVLS across nodes, where NCCL does not check them: its own "
                 "number stays there",
                 tuner->lookup.channels_withheld);
    }
}

static void use_constants(const struct table *table, const struct opening *opening, const struct settings *settings) {
    if (table->constant_count == 0) {
        return;
    }
    if (!settings->constants) {
        log_info(opening->logger, "%zu constants stay NCCL's own (" CONSTANTS_VARIABLE "=1 sets them)",
                 table->constant_count);
    } else if (!opening->constants) {
        log_warn(opening->logger, "%zu constants stay NCCL's own: this NCCL hands none to a tuner (2.28 and later do)",
                 table->constant_count);
    } else {
        for (size_t i = 0; i < table->constant_count; i++) {
            opening->constants[table->constants[i].number] = table->constants[i].value;
        }
        log_info(opening->logger, "%zu constants of NCCL's model set", table->constant_count);
    }
}

/* False when the table has no say at all. */
static bool say_mask(const struct opening *opening, const struct settings *settings) {
    if (!settings->masked_by) {
        return true;
    }
    if (opening->hands_cells) {
        log_info(opening->logger, "%s=%.64s is set: what it leaves out stays out, the table decides among the rest",
                 settings->masked_by, settings->mask);
    } else if (settings->unchecked) {
        log_info(opening->logger, "%s=%.64s is set: where the table has a row, the row wins", settings->masked_by,
                 settings->mask);
    } else {
        log_info(opening->logger,
                 "%s=%.64s is set, and this NCCL does not say what it leaves out: every choice is NCCL's own",
                 settings->masked_by, settings->mask);
        return false;
    }
    return true;
}

static bool use(const struct file *file, const struct opening *opening, const struct settings *settings,
                struct tuner **tuner) {
    struct shown_path path = show_path(file->path);
    struct slice content = {file->bytes, file->size};
    struct table table;
    struct table_error error;
    if (!table_parse(content, &table, &error)) {
        log_warn(opening->logger, "%s:%zu: %s; the whole table is ignored", path.text, error.line, error.reason);
        return false;
    }
    *tuner = build(&table, opening, settings);
    if (*tuner) {
        say_rows(*tuner, &table, path.text, sha256_short(content).text);
        use_constants(&table, opening, settings);
    } else {
        log_warn(opening->logger, "%s: out of memory; the whole table is ignored", path.text);
    }
    table_free(&table);
    if (*tuner && !say_mask(opening, settings)) {
        tuner_close(*tuner);
        *tuner = NULL;
        return true;
    }
    return *tuner;
}

int tuner_open(const struct opening *asked, struct tuner **tuner) {
    *tuner = NULL;
    struct settings settings = settings_read(asked->logger);
    struct opening told = *asked, *opening = &told;
    told.shape.known |= settings.unchecked;
    if (!settings.table) {
        log_info(opening->logger, TABLE_VARIABLE " is not set: every choice is NCCL's own");
        return RESULT_SUCCESS;
    }
    if (settings.unread) {
        log_info(opening->logger, TABLE_VARIABLE " is set: " CSV_VARIABLE "=%s is not read",
                 show_path(settings.unread).text);
    }
    bool good = false;
    struct file file;
    struct file_error error;
    if (file_read(settings.table, &file, &error)) {
        good = use(&file, opening, &settings, tuner);
    } else {
        struct shown_path path = show_path(file.path ? file.path : settings.table);
        log_warn(opening->logger, "%s: %s; there is no table (%s=%s)", path.text, error.reason, settings.variable,
                 show_path(settings.table).text);
    }
    file_free(&file);
    return good || !settings.strict ? RESULT_SUCCESS : RESULT_INVALID_USAGE;
}

/* The first of the choices that NCCL can take, or NULL; it is preferred in the cells then. */
static const struct choice *prefer(const struct choice *choice, float *cells, int algorithms, int protocols) {
    while (!cells_prefer(cells, algorithms, protocols, choice->algorithm, choice->protocol)) {
        if (!choice->more) {
            return NULL;
        }
        choice++;
    }
    return choice;
}

static uint64_t chunk_key(int algorithm, int protocol) {
    return (uint64_t)(algorithm * PROTOCOLS + protocol) << 32;
}

/* NCCL asks for chunk sizes after all choices of a group, channel by channel and without the operation's size: what
 * was decided last is the best there is to go by, and the same on every rank. */
static void note_chunk(struct tuner *tuner, int collective, const struct choice *taken) {
    if (collective >= 0 && collective < COLLECTIVES) {
        uint64_t noted = taken ? chunk_key(taken->algorithm, taken->protocol) | taken->chunk_bytes : 0;
        atomic_store_explicit(&tuner->chunks[collective], noted, memory_order_relaxed);
    }
}

/* False when nothing was written. */
static bool decide(struct tuner *tuner, int collective, size_t bytes, int pipelined, int registered, float *cells,
                   int algorithms, int protocols, int *channels) {
    count(&tuner->calls);
    bool costed = costs_write(&tuner->costs, collective, bytes, pipelined, cells, algorithms, protocols) > 0;
    if (costed) {
        count(&tuner->costed);
    }
    const struct choice *row = lookup_find(&tuner->lookup, collective, bytes, pipelined, registered);
    const struct choice *taken = row->algorithm < 0 ? NULL : prefer(row, cells, algorithms, protocols);
    for (const struct choice *next = row; !taken && next && next->algorithm >= 0;) {
        next = lookup_next(&tuner->lookup, collective, bytes, pipelined, registered, next);
        taken = next ? prefer(next, cells, algorithms, protocols) : NULL;
    }
    note_chunk(tuner, collective, taken);
    if (taken) {
        count(&tuner->decided);
        if (taken->channels > 0 && channels) {
            *channels = taken->channels;
        }
    } else if (row->algorithm >= 0) {
        count(&tuner->unavailable);
    }
    return costed || taken;
}

void tuner_decide(struct tuner *tuner, int collective, size_t bytes, int pipelined, int registered, float *cells,
                  int algorithms, int protocols, int *channels) {
    if (tuner && cells) {
        decide(tuner, collective, bytes, pipelined, registered, cells, algorithms, protocols, channels);
    }
}

void tuner_choose(struct tuner *tuner, int collective, size_t bytes, int pipelined, int collnet, int nvls,
                  int *algorithm, int *protocol, int *channels) {
    if (!tuner || !algorithm || !protocol) {
        return;
    }
    float cells[CELLS];
    legacy_fill(cells, collective, collnet == 1, nvls == 1, &tuner->shape, tuner->unchecked);
    if (decide(tuner, collective, bytes, pipelined, 0, cells, ALGORITHMS, PROTOCOLS, channels)) {
        int cell = legacy_fastest(cells);
        *algorithm = cell / PROTOCOLS;
        *protocol = cell % PROTOCOLS;
    }
}

void tuner_chunk(const struct tuner *tuner, int collective, int algorithm, int protocol, size_t *chunk_bytes) {
    bool is_cell = algorithm >= 0 && algorithm < ALGORITHMS && protocol >= 0 && protocol < PROTOCOLS;
    if (!tuner || !chunk_bytes || collective < 0 || collective >= COLLECTIVES || !is_cell) {
        return;
    }
    uint64_t noted = atomic_load_explicit(&tuner->chunks[collective], memory_order_relaxed);
    uint32_t bytes = (uint32_t)noted;
    if (bytes > 0 && noted == (chunk_key(algorithm, protocol) | bytes)) {
        *chunk_bytes = bytes;
    }
}

bool tuner_is_unchecked(const struct tuner *tuner) {
    return tuner && tuner->unchecked;
}

void tuner_close(struct tuner *tuner) {
    if (!tuner) {
        return;
    }
    log_info(tuner->logger,
             "%zu calls: %zu decided by the table, %zu with its costs, %zu matched a row that NCCL cannot run here",
             atomic_load_explicit(&tuner->calls, memory_order_relaxed),
             atomic_load_explicit(&tuner->decided, memory_order_relaxed),
             atomic_load_explicit(&tuner->costed, memory_order_relaxed),
             atomic_load_explicit(&tuner->unavailable, memory_order_relaxed));
    lookup_free(&tuner->lookup);
    costs_free(&tuner->costs);
    free(tuner);
}
