#include "tuner.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "decider.h"
#include "file.h"
#include "legacy.h"
#include "log.h"
#include "parse.h"
#include "settings.h"
#include "sha256.h"
#include "table.h"

struct tuner {
    struct decider decider;
    nccl_logger logger;
};

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
    if (!tuner || !decider_build(table, &opening->shape, settings->unchecked, &tuner->decider)) {
        free(tuner);
        return NULL;
    }
    tuner->logger = opening->logger;
    return tuner;
}

static void say_rows(const struct tuner *tuner, const struct table *table, const char *path, const char *hash) {
    const struct decider *decider = &tuner->decider;
    size_t rows = table->decision_count + table->cost_count, ours = decider->lookup.rows + decider->costs.rows;
    size_t shapeless = decider->lookup.shapeless + decider->costs.shapeless;
    if (decider->shape.known) {
        log_info(tuner->logger, "table %s (sha256 %s): %zu rows, %zu of them for %zu ranks on %zu nodes", path, hash,
                 rows, ours, decider->shape.ranks, decider->shape.nodes);
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
    if (decider->lookup.channels_withheld > 0) {
        log_info(tuner->logger,
                 "%zu choices set channels for CollNet, or NVLS across nodes, where NCCL does not check them: its own "
                 "number stays there",
                 decider->lookup.channels_withheld);
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
    struct opening used = *asked, *opening = &used;
    used.shape.known |= settings.unchecked;
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

void tuner_decide(struct tuner *tuner, int collective, size_t bytes, int pipelined, int registered, float *cells,
                  int algorithms, int protocols, int *channels) {
    if (tuner && cells) {
        decider_decide(&tuner->decider, collective, bytes, pipelined, registered, cells, algorithms, protocols,
                       channels);
    }
}

void tuner_choose(struct tuner *tuner, int collective, size_t bytes, int pipelined, int collnet, int nvls,
                  int *algorithm, int *protocol, int *channels) {
    if (tuner && algorithm && protocol) {
        struct decider *decider = &tuner->decider;
        float cells[CELLS];
        legacy_fill(cells, collective, collnet == 1, nvls == 1, &decider->shape, decider->unchecked);
        decider_choose(decider, collective, bytes, pipelined, cells, algorithm, protocol, channels);
    }
}

void tuner_chunk(const struct tuner *tuner, int collective, int algorithm, int protocol, size_t *chunk_bytes) {
    if (tuner && chunk_bytes) {
        decider_chunk(&tuner->decider, collective, algorithm, protocol, chunk_bytes);
    }
}

const struct decider *tuner_decider(const struct tuner *tuner) {
    return tuner ? &tuner->decider : NULL;
}

bool tuner_is_unchecked(const struct tuner *tuner) {
    return tuner && tuner->decider.unchecked;
}

void tuner_close(struct tuner *tuner) {
    if (!tuner) {
        return;
    }
    struct decider *decider = &tuner->decider;
    log_info(tuner->logger,
             "%zu calls: %zu decided by the table, %zu with its costs, %zu matched a row that NCCL cannot run here",
             atomic_load_explicit(&decider->calls, memory_order_relaxed),
             atomic_load_explicit(&decider->decided, memory_order_relaxed),
             atomic_load_explicit(&decider->costed, memory_order_relaxed),
             atomic_load_explicit(&decider->unavailable, memory_order_relaxed));
    decider_free(decider);
    free(tuner);
}
