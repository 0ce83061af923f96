#include "force.h"

#include <float.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "../plugin/cells.h"
#include "../plugin/decider.h"
#include "../plugin/interface.h"
#include "../plugin/log.h"
#include "../plugin/parse.h"
#include "../plugin/settings.h"
#include "../plugin/table.h"
#include "../plugin/tuner.h"

/* A lock that needs no thread library, for what is seldom held at once: whoever waits lets others run. */
static void lock_take(atomic_flag *lock) {
    while (atomic_flag_test_and_set_explicit(lock, memory_order_acquire)) {
        sched_yield();
    }
}

static void lock_release(atomic_flag *lock) {
    atomic_flag_clear_explicit(lock, memory_order_release);
}

/* A communicator's. */
struct tuner {
    struct rules rules; /* of the table in use, where `decides` */
    struct decider decider;
    bool decides, hands_cells, unchecked, silent;
    struct shape shape;
    struct tuner *next;
};

/* What the communicators of the process share, under one lock: here nothing has to be fast. */
static struct {
    atomic_flag held;
    struct tuner *first;
    struct table table;
    bool has_table;
    struct nccl_tuner_seen last; /* its counts are not used */
    char reason[320];
} shared = {.held = ATOMIC_FLAG_INIT, .last = {.collective = -1}};

static void stop_following(struct tuner *tuner) {
    if (tuner->decides) {
        counters_free(&tuner->decider.counters);
        rules_free(&tuner->rules);
        tuner->decides = false;
    }
}

/* False when there is no memory: the communicator's choices are NCCL's own then. */
static bool follow(struct tuner *tuner) {
    stop_following(tuner);
    bool asked = shared.has_table && !tuner->silent;
    if (!asked || !rules_build(&shared.table, &tuner->shape, &tuner->rules)) {
        return !asked;
    }
    decider_start(&tuner->rules, tuner->hands_cells, tuner->unchecked, &tuner->decider);
    tuner->decider.guard_us = FLT_MAX; /* what is to be measured runs, whatever NCCL thinks of it */
    tuner->decides = counters_start(&shared.table, NULL, NULL, &tuner->decider.counters);
    if (!tuner->decides) {
        rules_free(&tuner->rules);
    }
    return tuner->decides;
}

static bool read_table(const char *text, size_t bytes, struct table *table) {
    struct table_error error;
    if (table_parse((struct slice){text, bytes}, table, &error)) {
        return true;
    }
    snprintf(shared.reason, sizeof shared.reason, "%zu: %s", error.line, error.reason);
    return false;
}

__attribute__((visibility("default"))) const char *nccl_tuner_use_table(const char *text, size_t bytes) {
    const char *wrong = NULL;
    struct table table = {0};
    lock_take(&shared.held);
    if (text && !read_table(text, bytes, &table)) {
        wrong = shared.reason;
    } else {
        if (shared.has_table) {
            table_free(&shared.table);
        }
        shared.table = table;
        shared.has_table = text;
        for (struct tuner *tuner = shared.first; tuner; tuner = tuner->next) {
            if (!follow(tuner)) {
                wrong = "0: out of memory";
            }
        }
    }
    lock_release(&shared.held);
    return wrong;
}

__attribute__((visibility("default"))) void nccl_tuner_see(struct nccl_tuner_seen *seen) {
    lock_take(&shared.held);
    *seen = shared.last;
    seen->calls = seen->decided = seen->costed = seen->unavailable = 0;
    for (const struct tuner *tuner = shared.first; tuner; tuner = tuner->next) {
        if (tuner->decides) {
            struct call_counts counts = counters_sum(&tuner->decider.counters);
            seen->calls += counts.calls;
            seen->decided += counts.decided;
            seen->costed += counts.costed;
            seen->unavailable += counts.unavailable;
        }
    }
    lock_release(&shared.held);
}

int tuner_open(const struct opening *opening, struct tuner **opened) {
    struct tuner *tuner = calloc(1, sizeof *tuner);
    if (!tuner) {
        return RESULT_INVALID_USAGE;
    }
    tuner->unchecked = settings_read(opening->logger).unchecked;
    tuner->hands_cells = opening->hands_cells;
    tuner->shape = opening->shape;
    tuner->shape.known |= tuner->unchecked;
    lock_take(&shared.held);
    follow(tuner);
    tuner->next = shared.first;
    shared.first = tuner;
    lock_release(&shared.held);
    log_info(opening->logger, "forcing: the process that measures says what is taken, and no file does");
    *opened = tuner;
    return RESULT_SUCCESS;
}

static void note(const struct call *call, struct cost_cells cells) {
    shared.last.collective = call->collective;
    shared.last.bytes = call->bytes;
    for (int cell = 0; cell < CELLS; cell++) {
        int algorithm = cell / PROTOCOLS, protocol = cell % PROTOCOLS;
        bool there = algorithm < cells.algorithms && protocol < cells.protocols;
        shared.last.costs_us[cell] = there ? cells.us[algorithm * cells.protocols + protocol] : IGNORED_US;
    }
}

void tuner_decide(struct tuner *tuner, const struct call *call, struct cost_cells cells, int *channels) {
    lock_take(&shared.held);
    note(call, cells);
    if (tuner->decides) {
        decider_decide(&tuner->decider, call, cells, channels);
    }
    lock_release(&shared.held);
}

void tuner_choose(struct tuner *tuner, const struct call *call, int *algorithm, int *protocol, int *channels) {
    float cells[CELLS];
    if (!tuner) { /* 2.19 and 2.20 call on after the last communicator is gone */
        return;
    }
    legacy_fill(cells, call, &tuner->shape, tuner->unchecked);
    lock_take(&shared.held);
    note(call, (struct cost_cells){cells, ALGORITHMS, PROTOCOLS});
    if (tuner->decides) {
        decider_choose(&tuner->decider, call, cells, algorithm, protocol, tuner->shape.known ? channels : NULL);
    }
    lock_release(&shared.held);
}

/* Tables come later. */
bool tuner_sets_chunks(const struct tuner *tuner) {
    return tuner;
}

void tuner_chunk(struct tuner *tuner, const struct chunk_call *call, size_t *chunk_bytes) {
    lock_take(&shared.held);
    if (tuner->decides) {
        decider_chunk(&tuner->decider, call->collective, call->algorithm, call->protocol, chunk_bytes);
    }
    lock_release(&shared.held);
}

/* No other tuner is asked while a process measures. */
void tuner_join(struct tuner *tuner, const struct opening *opening) {
    (void)tuner, (void)opening;
}

void tuner_leave(struct tuner *tuner) {
    (void)tuner;
}

bool tuner_silence(struct tuner *tuner) {
    lock_take(&shared.held);
    bool had_a_say = !tuner->silent;
    tuner->silent = true;
    follow(tuner);
    lock_release(&shared.held);
    return had_a_say;
}

bool tuner_is_unchecked(const struct tuner *tuner) {
    return tuner && tuner->unchecked;
}

bool tuner_is_chained(const struct tuner *tuner) {
    (void)tuner;
    return false;
}

void tuner_close(struct tuner *tuner) {
    if (!tuner) {
        return;
    }
    lock_take(&shared.held);
    struct tuner **at = &shared.first;
    while (*at != tuner) {
        at = &(*at)->next;
    }
    *at = tuner->next;
    lock_release(&shared.held);
    stop_following(tuner);
    free(tuner);
}

/* Tables come from the process: there is none to try. */
const struct trial tuner_trial = {0};
