#include "tuner.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cells.h"
#include "chain.h"
#include "decider.h"
#include "hardware.h"
#include "interface.h"
#include "live.h"
#include "log.h"
#include "settings.h"
#include "stats.h"
#include "tables.h"

struct tuner {
    struct decider decider; /* without rules where there is no table */
    struct chain *chain;    /* NULL: what the table leaves is NCCL's */
    atomic_bool silent;     /* the table has no say */
    nccl_logger logger;
    struct loaded_table *loaded;
    struct shared_rules *shared;
    uint64_t communicator; /* 0 where it is not known */
    struct stats stats;
    struct live live;
};

/* Why a table that is asked for is not used. */
struct refusal {
    char text[1024];
};

__attribute__((format(printf, 2, 3))) static bool refuse(struct refusal *refusal, const char *format, ...) {
    va_list values;
    va_start(values, format);
    vsnprintf(refusal->text, sizeof refusal->text, format, values);
    va_end(values);
    return false;
}

/* The end of a long path is what tells it from others, and the reason after it has to fit on NCCL's line too. */
struct shown_path {
    char text[512];
};

struct shown_id {
    char text[32];
};

static struct shown_path show_path(const char *path) {
    struct shown_path shown;
    size_t room = sizeof shown.text - sizeof "...", length = strlen(path);
    bool fits = length <= room;
    snprintf(shown.text, sizeof shown.text, "%s%s", fits ? "" : "...", fits ? path : path + length - room);
    return shown;
}

static struct tuner *build(struct loaded_table *loaded, const struct opening *opening, const struct settings *settings,
                           const struct stats *stats) {
    struct tuner *tuner = calloc(1, sizeof *tuner);
    struct shared_rules *shared = tuner ? tables_take_rules(loaded, &opening->shape) : NULL;
    if (!shared) {
        free(tuner);
        return NULL;
    }
    decider_start(&shared->rules, opening->hands_cells, settings->unchecked, &tuner->decider);
    void *counts = live_open(stats, &tuner->live);
    if (!counters_start(&loaded->table, opening->logger, counts, &tuner->decider.counters)) {
        tables_let_go(loaded, shared);
        free(tuner);
        return NULL;
    }
    tuner->logger = opening->logger;
    tuner->loaded = loaded;
    tuner->shared = shared;
    tuner->communicator = opening->communicator;
    tuner->stats = *stats;
    return tuner;
}

/* NCCL's own lines have the commId in this form. */
static struct shown_id show_id(uint64_t communicator) {
    struct shown_id shown = {""};
    if (communicator) {
        snprintf(shown.text, sizeof shown.text, ", commId 0x%" PRIx64, communicator);
    }
    return shown;
}

static void say_rows(const struct tuner *tuner, const struct loaded_table *loaded) {
    const struct rules *rules = tuner->decider.rules;
    const char *hash = loaded->sha256.text;
    struct shown_path path = show_path(loaded->path);
    size_t rows = loaded->table.decision_count + loaded->table.cost_count;
    size_t ours = rules->lookup.rows + rules->costs.rows;
    size_t shapeless = rules->lookup.shapeless + rules->costs.shapeless;
    if (rules->shape.known) {
        log_info(tuner->logger, "table %s (sha256 %.12s): %zu %s, %zu of them for %zu %s on %zu %s%s", path.text, hash,
                 COUNTED(rows, "row", "rows"), ours, COUNTED(rules->shape.ranks, "rank", "ranks"),
                 COUNTED(rules->shape.nodes, "node", "nodes"), show_id(tuner->communicator).text);
    } else {
        log_info(tuner->logger, "table %s (sha256 %.12s): %zu %s, %zu of them for every communicator", path.text, hash,
                 COUNTED(rows, "row", "rows"), ours);
    }
    if (shapeless > 0 && rules->shape.known) {
        log_info(tuner->logger,
                 "%zu %s for NVLink domains, and this NCCL does not say how many there are: its own choice stays there",
                 COUNTED(shapeless, "row asks", "rows ask"));
    } else if (shapeless > 0) {
        log_info(tuner->logger,
                 "%zu %s for ranks or nodes, and this NCCL does not say which communicator asks: its own choice "
                 "stays there (" UNCHECKED_VARIABLE "=1 takes all communicators for alike)",
                 COUNTED(shapeless, "row asks", "rows ask"));
    }
    if (rules->lookup.channels_withheld > 0) {
        log_info(tuner->logger,
                 "%zu %s channels for CollNet, or NVLS across nodes, where NCCL does not check them: its own "
                 "number stays there",
                 COUNTED(rules->lookup.channels_withheld, "choice sets", "choices set"));
    }
}

static void use_constants(const struct table *table, const struct opening *opening, const struct settings *settings) {
    if (table->constant_count == 0) {
        return;
    }
    if (!settings->constants) {
        log_info(opening->logger, "%zu %s NCCL's own (" CONSTANTS_VARIABLE "=1 sets them)",
                 COUNTED(table->constant_count, "constant stays", "constants stay"));
    } else if (!opening->constants) {
        log_warn(opening->logger, "%zu %s NCCL's own: this NCCL hands none to a tuner (2.28 and later do)",
                 COUNTED(table->constant_count, "constant stays", "constants stay"));
    } else {
        for (size_t i = 0; i < table->constant_count; i++) {
            int place = constant_among(opening->generations, table->constants[i].number);
            opening->constants[place] = table->constants[i].value;
        }
        log_info(opening->logger, "%zu %s of NCCL's model set",
                 COUNTED(table->constant_count, "constant", "constants"));
    }
}

/* Rows that explore do so where the profiler of the same object counts the communicator's calls. */
static void explore(struct tuner *tuner, const struct loaded_table *loaded) {
    if (loaded->table.schedule_count == 0) {
        return;
    }
    tuner->decider.explorer = explorer_open(tuner->communicator, loaded->sha256.text, build_id);
    if (!tuner->decider.explorer) {
        log_warn(tuner->logger,
                 "%zu %s, which needs NCCL 2.28 or later, this object as NCCL_PROFILER_PLUGIN, and "
                 "NCCL_TUNER_JOB: every choice there is NCCL's own",
                 COUNTED(loaded->table.schedule_count, "row explores", "rows explore"));
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
                 "%s=%.64s is set, and this NCCL does not say what it leaves out: every choice is %s own",
                 settings->masked_by, settings->mask, opening->chained ? "the other tuner's" : "NCCL's");
        return false;
    }
    return true;
}

/* Of GPUs that are not the table's the ranks are told, and all of them go on with it: on a cluster of several kinds one
 * node that went without it would choose otherwise. False with NCCL_TUNER_STRICT, which fails the communicator. */
static bool check_gpus(const struct loaded_table *loaded, const struct settings *settings, nccl_logger logger,
                       struct refusal *refusal) {
    struct gpu_name name;
    struct shown_path path = show_path(loaded->path);
    const char *meant = loaded->table.gpus.text;
    if (!meant[0] || !gpu_read_name(&name) || table_names_gpu(&loaded->table, name.text)) {
        return true;
    }
    if (settings->strict) {
        return refuse(refusal, "%s is for GPUs '%s', and this node has '%s'", path.text, meant, name.text);
    }
    log_warn(logger, "%s is for GPUs '%s', and this node has '%s': it is used all the same", path.text, meant,
             name.text);
    return true;
}

/* NCCL refuses ranks of several releases from 2.23 on: what is ignored here is ignored everywhere. */
static bool check_release(const struct loaded_table *loaded, int version, struct refusal *refusal) {
    const struct table *table = &loaded->table;
    if (!table->releases.text[0] || version == 0 || table_names_release(table, version)) {
        return true;
    }
    return refuse(refusal, "%s is for NCCL '%s', and this is %d.%d.%d; the whole table is ignored",
                  show_path(loaded->path).text, table->releases.text, version / 10000, version / 100 % 100,
                  version % 100);
}

/* By when the job began, which all ranks are told alike, and never by a clock: else ranks that start at midnight would
 * choose differently. */
static bool check_time(const struct loaded_table *loaded, const struct settings *settings, nccl_logger logger,
                       struct refusal *refusal) {
    const struct table *table = &loaded->table;
    struct shown_path path = show_path(loaded->path);
    if (table->valid_from == 0 && table->valid_to == UINT64_MAX) {
        return true;
    }
    if (settings->job_s == 0 && settings->strict) {
        return refuse(refusal, "%s is valid for a time, and " TIME_VARIABLE " does not say when the job began",
                      path.text);
    }
    if (settings->job_s == 0) {
        log_warn(logger,
                 "%s is valid for a time, which is not checked: " TIME_VARIABLE " does not say when the job began",
                 path.text);
        return true;
    }
    if (settings->job_s < table->valid_from || settings->job_s > table->valid_to) {
        return refuse(refusal,
                      "%s is not valid for a job that began at %" PRIu64 " (" TIME_VARIABLE
                      "); the whole table is ignored",
                      path.text, settings->job_s);
    }
    return true;
}

/* With NCCL_TUNER_STRICT a file has to show that it is whole: one that is rewritten in place may be half of each. */
static bool check_whole(const struct loaded_table *loaded, const struct settings *settings, struct refusal *refusal) {
    const struct table *table = &loaded->table;
    struct shown_path path = show_path(loaded->path);
    if (!settings->strict || settings->hashes) {
        return true;
    }
    if (table->decision_count + table->cost_count + table->constant_count == 0) {
        return refuse(refusal, "%s has no row", path.text);
    }
    return table->mark == MARK_HASHED ||
           refuse(refusal,
                  "%s does not show that it is whole: " HASHES_VARIABLE " is not set, and its last line is not "
                  "'# rows: N sha256 HASH', which nccl-tuner writes",
                  path.text);
}

/* Whether the table can be used, or why not. */
static bool check(const struct loaded_table *loaded, const struct settings *settings, int version, nccl_logger logger,
                  struct refusal *refusal) {
    struct shown_path path = show_path(loaded->path);
    if (tables_changed(loaded)) {
        log_warn(logger, "%s has changed since this process read it: what was read then stays", path.text);
    }
    if (loaded->mistake_line > 0) {
        return refuse(refusal, "%s:%zu: %s; the whole table is ignored", path.text, loaded->mistake_line,
                      loaded->reason);
    }
    if (!loaded->usable) {
        return refuse(refusal, "%s: %s; there is no table (%s=%s)", path.text, loaded->reason, settings->variable,
                      show_path(settings->table).text);
    }
    if (!settings_allow(settings, loaded->sha256.text)) {
        return refuse(refusal, "%s: its sha256 %s is not in " HASHES_VARIABLE "; the whole table is ignored", path.text,
                      loaded->sha256.text);
    }
    return check_whole(loaded, settings, refusal) && check_release(loaded, version, refusal) &&
           check_time(loaded, settings, logger, refusal) && check_gpus(loaded, settings, logger, refusal);
}

/* False where there is no memory. */
static bool use(struct loaded_table *loaded, const struct opening *opening, const struct settings *settings,
                const struct stats *stats, struct tuner **tuner, struct refusal *refusal) {
    *tuner = build(loaded, opening, settings, stats);
    if (!*tuner) {
        return refuse(refusal, "%s: out of memory; the whole table is ignored", show_path(loaded->path).text);
    }
    say_rows(*tuner, loaded);
    use_constants(&loaded->table, opening, settings);
    explore(*tuner, loaded);
    if (!say_mask(opening, settings)) {
        (*tuner)->stats.path = NULL;
        tuner_close(*tuner);
        *tuner = NULL;
    }
    return true;
}

/* At WARN; where NCCL prints none, a process whose table is not used says so once on standard error. */
static void complain(struct loaded_table *loaded, nccl_logger logger, const struct refusal *refusal) {
    log_warn(logger, "%s", refusal->text);
    if (loaded && !log_prints(LEVEL_WARN) && !atomic_exchange(&loaded->complained, true)) {
        fprintf(stderr, "nccl-tuner: %s (%s.%ld)\n", refusal->text, this_host().name, (long)getpid());
    }
}

/* False where the table that is asked for cannot be used. */
static bool open_table(const struct opening *opening, const struct settings *settings, struct tuner **tuner) {
    if (settings->unread) {
        log_info(opening->logger, TABLE_VARIABLE " is set: " CSV_VARIABLE "=%s is not read",
                 show_path(settings->unread).text);
    }
    struct expanded expanded;
    struct refusal refusal;
    const char *name = settings->table;
    if (settings->expands) {
        if (!expand(name, &opening->shape, &expanded)) {
            log_warn(opening->logger, "%s: %s; there is no table (%s=%s)", show_path(name).text, expanded.reason,
                     settings->variable, show_path(name).text);
            return false;
        }
        name = expanded.path;
    }
    struct loaded_table *loaded = tables_get(name);
    if (!loaded) {
        log_warn(opening->logger, "out of memory; there is no table");
        return false;
    }
    struct stats stats = {.loaded = loaded,
                          .communicator = opening->communicator,
                          .shape = opening->shape,
                          .logger = opening->logger,
                          .started_s = (uint64_t)time(NULL),
                          .nccl = opening->nccl};
    stats_open(&stats);
    bool good = check(loaded, settings, opening->nccl, opening->logger, &refusal) &&
                use(loaded, opening, settings, &stats, tuner, &refusal);
    if (!good) {
        complain(loaded, opening->logger, &refusal);
        live_refuse(&stats, refusal.text);
    }
    if (!*tuner) {
        stats_write(&stats, NULL);
    }
    return good;
}

/* Whether jobs that began when this one did go without a table, by the switch that all ranks see. Not known: false, and
 * `wrong`. */
static bool is_switched_off(const struct settings *settings, nccl_logger logger, bool *wrong) {
    struct switched switched = {.reason = TIME_VARIABLE " does not say when the job began, by which ranks agree"};
    if (!settings->switch_file) {
        return false;
    }
    if (settings->job_s == 0 || !settings_read_switch(settings, &switched)) {
        log_warn(logger, SWITCH_VARIABLE "=%s: %s; there is no table", show_path(settings->switch_file).text,
                 switched.reason);
        *wrong = true;
        return true;
    }
    if (switched.off) {
        log_info(logger, SWITCH_VARIABLE "=%s is off since %" PRIu64 ": every choice is NCCL's own",
                 show_path(settings->switch_file).text, switched.since_s);
    }
    return switched.off;
}

static int open_any(const struct opening *opening, const struct settings *settings, struct tuner **tuner) {
    bool wrong = false;
    if (is_switched_off(settings, opening->logger, &wrong)) {
        return wrong && settings->strict ? RESULT_INVALID_USAGE : RESULT_SUCCESS;
    }
    if (settings->table) {
        bool good = open_table(opening, settings, tuner);
        return good || !settings->strict ? RESULT_SUCCESS : RESULT_INVALID_USAGE;
    }
    if (settings->strict) {
        log_warn(opening->logger, STRICT_VARIABLE " is set, and " TABLE_VARIABLE " is not: there is no table");
        return RESULT_INVALID_USAGE;
    }
    log_info(opening->logger, TABLE_VARIABLE " is not set: every choice is %s own",
             opening->chained ? "the other tuner's" : "NCCL's");
    return RESULT_SUCCESS;
}

static void say_build(const struct opening *opening) {
    if (opening->nccl) {
        log_info(opening->logger, "build %s under NCCL %d.%d.%d", build_id, opening->nccl / 10000,
                 opening->nccl / 100 % 100, opening->nccl % 100);
    } else {
        log_info(opening->logger, "build %s", build_id);
    }
}

/* The next tuner starts first: of the constants that both change, the table's hold. */
int tuner_open(const struct opening *asked, struct tuner **tuner) {
    *tuner = NULL;
    log_look();
    struct settings settings = settings_read(asked->logger);
    if (settings.strict && settings.wrong) {
        return RESULT_INVALID_USAGE;
    }
    struct chain *chain = chain_open(settings.next, asked);
    struct opening opening = *asked;
    opening.nccl = nccl_version(asked->logger);
    say_build(&opening);
    opening.shape.known |= settings.unchecked;
    opening.chained = chain;
    int result = open_any(&opening, &settings, tuner);
    if (!*tuner && chain && result == RESULT_SUCCESS) {
        *tuner = calloc(1, sizeof **tuner);
        if (*tuner) {
            (*tuner)->logger = opening.logger;
        }
    }
    if (*tuner) {
        (*tuner)->chain = chain;
    } else {
        chain_close(chain);
    }
    return result;
}

/* Whether the table may say something. */
static bool decides(const struct tuner *tuner) {
    return tuner->decider.rules && !atomic_load_explicit(&tuner->silent, memory_order_relaxed);
}

void tuner_decide(struct tuner *tuner, const struct call *call, struct cost_cells cells, int *channels) {
    if (!tuner || !cells.us) {
        return;
    }
    if (decides(tuner) && decider_decide(&tuner->decider, call, cells, channels) != DECIDED_NOTHING) {
        chain_pass_by(tuner->chain, call->collective);
    } else if (tuner->chain && channels) {
        chain_decide(tuner->chain, call, cells, channels);
    }
}

void tuner_choose(struct tuner *tuner, const struct call *call, int *algorithm, int *protocol, int *channels) {
    if (!tuner || !algorithm || !protocol) {
        return;
    }
    struct decider *decider = &tuner->decider;
    enum decided decided = DECIDED_NOTHING;
    if (decides(tuner)) {
        const struct shape *shape = &decider->rules->shape;
        float cells[CELLS];
        legacy_fill(cells, call, shape, decider->unchecked);
        /* 2.19 starts as many channels as it is asked for, whether or not they were set up. */
        decided = decider_choose(decider, call, cells, algorithm, protocol, shape->known ? channels : NULL);
    }
    if (decided == DECIDED_NOTHING && tuner->chain && channels) {
        chain_choose(tuner->chain, call, algorithm, protocol, channels);
    }
}

bool tuner_sets_chunks(const struct tuner *tuner) {
    return tuner && ((tuner->loaded && tuner->loaded->table.sets_chunks) || chain_sets_chunks(tuner->chain));
}

void tuner_chunk(struct tuner *tuner, const struct chunk_call *call, size_t *chunk_bytes) {
    if (tuner && chunk_bytes) {
        if (decides(tuner)) {
            decider_chunk(&tuner->decider, call->collective, call->algorithm, call->protocol, chunk_bytes);
        }
        chain_chunk(tuner->chain, call, chunk_bytes);
    }
}

void tuner_join(struct tuner *tuner, const struct opening *opening) {
    chain_join(tuner->chain, opening);
}

void tuner_leave(struct tuner *tuner) {
    chain_leave(tuner->chain);
}

bool tuner_silence(struct tuner *tuner) {
    return tuner->decider.rules && !atomic_exchange_explicit(&tuner->silent, true, memory_order_relaxed);
}

bool tuner_is_unchecked(const struct tuner *tuner) {
    return tuner && tuner->decider.unchecked;
}

bool tuner_is_chained(const struct tuner *tuner) {
    return tuner && tuner->chain;
}

void tuner_close(struct tuner *tuner) {
    if (!tuner) {
        return;
    }
    struct decider *decider = &tuner->decider;
    if (decider->rules) {
        struct call_counts counts = counters_sum(&decider->counters);
        log_info(tuner->logger,
                 "%zu calls: %zu decided by the table, %zu with its costs, %zu matched a row that NCCL cannot run here",
                 counts.calls, counts.decided, counts.costed, counts.unavailable);
    }
    chain_close(tuner->chain);
    stats_write(&tuner->stats, decider);
    counters_free(&decider->counters);
    live_close(&tuner->live);
    if (tuner->shared) {
        tables_let_go(tuner->loaded, tuner->shared);
    }
    free(tuner);
}

static void explain(int version, const void *context, const struct call *call, struct cost_cells cells,
                    struct explanation *explanation) {
    const struct tuner *tuner = version == 1 ? tuner_v1_deciding() : context;
    const struct decider *decider = tuner && decides(tuner) ? &tuner->decider : NULL;
    float own[CELLS];
    *explanation = (struct explanation){0};
    if (!decider) {
        return;
    }
    struct call asked = *call;
    if (version < 3) {
        legacy_fill(own, call, &decider->rules->shape, decider->unchecked);
        cells = (struct cost_cells){own, ALGORITHMS, PROTOCOLS};
    }
    if (version < 4) {
        asked.registered = 0;
    }
    decider_explain(decider, &asked, cells, explanation);
}

static void forget_tables(void) {
    tuner_v1_forget();
    tables_forget();
}

const struct trial tuner_trial = {explain, forget_tables};
