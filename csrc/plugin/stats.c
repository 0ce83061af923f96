#define _POSIX_C_SOURCE 200809L /* O_CLOEXEC, gethostname */

#include "stats.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "log.h"
#include "table.h"

/* Text that grows, and JSON's strings. */

struct json {
    char *bytes; /* terminated, or NULL */
    size_t count, room;
    bool lost; /* there was no memory */
};

static bool make_room(struct json *json, size_t more) {
    if (json->lost || more <= json->room - json->count) {
        return !json->lost;
    }
    size_t room = 2 * json->room + more;
    char *bytes = realloc(json->bytes, room);
    json->lost = !bytes;
    if (bytes) {
        json->bytes = bytes;
        json->room = room;
    }
    return bytes;
}

__attribute__((format(printf, 2, 3))) static void json_add(struct json *json, const char *format, ...) {
    va_list values, again;
    va_start(values, format);
    va_copy(again, values);
    int length = vsnprintf(NULL, 0, format, values);
    if (length >= 0 && make_room(json, (size_t)length + 1)) {
        vsnprintf(json->bytes + json->count, (size_t)length + 1, format, again);
        json->count += (size_t)length;
    }
    va_end(again);
    va_end(values);
}

/* As a string in quotation marks. */
static void json_add_text(struct json *json, const char *text) {
    json_add(json, "\"");
    for (const char *at = text; *at; at++) {
        bool plain = (unsigned char)*at >= ' ' && *at != '"' && *at != '\\';
        if (plain) {
            json_add(json, "%c", *at);
        } else {
            json_add(json, "\\u%04x", (unsigned)(unsigned char)*at);
        }
    }
    json_add(json, "\"");
}

static void json_free(struct json *json) {
    free(json->bytes);
    *json = (struct json){0};
}

#ifndef NCCL_TUNER_SOURCES
#define NCCL_TUNER_SOURCES "unknown"
#endif

#ifndef NCCL_TUNER_VERSION
#define NCCL_TUNER_VERSION "unversioned"
#endif

const char build_id[] = "nccl-tuner-plugin " NCCL_TUNER_VERSION " sources " NCCL_TUNER_SOURCES;

struct host host_of(const char *name) {
    struct host host;
    size_t length = strcspn(name, ".");
    length = length < sizeof host.name ? length : sizeof host.name - 1;
    memcpy(host.name, name, length);
    host.name[length] = '\0';
    return host;
}

struct host this_host(void) {
    char name[256] = "";
    return host_of(gethostname(name, sizeof name - 1) == 0 ? name : "unknown");
}

long launcher_rank(void) {
    static const char *const variables[] = {"RANK",      "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK", "PMI_RANK",
                                            "PMIX_RANK", "SLURM_PROCID"};
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) {
        const char *value = getenv(variables[i]);
        if (value && value[0] >= '0' && value[0] <= '9') {
            return strtol(value, NULL, 10);
        }
    }
    return -1;
}

/* %h, %p and %c of the pattern; %% is a percent sign. False at anything else. */
static bool expand(const char *pattern, const struct stats *stats, struct json *path) {
    for (const char *at = pattern; *at; at++) {
        if (*at != '%') {
            json_add(path, "%c", *at);
            continue;
        }
        switch (*++at) {
        case 'h':
            json_add(path, "%s", this_host().name);
            break;
        case 'p':
            json_add(path, "%ld", (long)getpid());
            break;
        case 'c':
            json_add(path, "%016" PRIx64, stats->communicator);
            break;
        case '%':
            json_add(path, "%%");
            break;
        default:
            return false;
        }
    }
    return true;
}

static size_t value_of(const atomic_size_t *counter) {
    return atomic_load_explicit(counter, memory_order_relaxed);
}

/* Lines of rows that matched no call, neighbours as one range. */
struct ranges {
    struct json *json;
    uint32_t first, last; /* 0: none yet */
    bool some;
};

static void end_range(struct ranges *ranges) {
    if (ranges->first) {
        json_add(ranges->json, "%s[%u, %u]", ranges->some ? ", " : "", ranges->first, ranges->last);
        ranges->some = true;
    }
}

static void add_line(struct ranges *ranges, uint32_t line) {
    if (ranges->first && line == ranges->last + 1) {
        ranges->last = line;
        return;
    }
    end_range(ranges);
    ranges->first = ranges->last = line;
}

static void sum_row(const struct table *table, const struct counters *counters, const struct decision *row,
                    size_t *decided, size_t *unavailable) {
    uint32_t choice = row->choice;
    *decided = 0;
    *unavailable = choice >= FIRST_CHOICE ? value_of(&counters->unavailable[choice]) : 0;
    do {
        *decided += choice >= FIRST_CHOICE ? value_of(&counters->decided[choice]) : 0;
    } while (table->choices[choice++].more);
}

static void add_rows(const struct stats *stats, const struct counters *counters, struct json *json) {
    const struct table *table = &stats->loaded->table;
    const char *before = "";
    json_add(json, ", \"rows\": [");
    for (size_t i = 0; i < table->decision_count; i++) {
        size_t decided, unavailable;
        sum_row(table, counters, &table->decisions[i], &decided, &unavailable);
        if (decided || unavailable) {
            json_add(json, "%s{\"line\": %u, \"decided\": %zu, \"could_not_run\": %zu}", before,
                     table->decisions[i].line, decided, unavailable);
            before = ", ";
        }
    }
    json_add(json, "], \"costs\": [");
    before = "";
    for (size_t i = 0; i < table->cost_count; i++) {
        size_t calls = value_of(&counters->costs[i]);
        if (calls) {
            json_add(json, "%s{\"line\": %u, \"calls\": %zu}", before, table->costs[i].line, calls);
            before = ", ";
        }
    }
    json_add(json, "]");
}

/* A row that leaves the choice to NCCL counts as one that matches: calls do not tell it from none. */
static void add_unmatched(const struct stats *stats, const struct counters *counters, struct json *json) {
    const struct table *table = &stats->loaded->table;
    struct ranges ranges = {.json = json};
    json_add(json, ", \"never_matched\": [");
    for (size_t i = 0; i < table->decision_count; i++) {
        size_t decided, unavailable;
        sum_row(table, counters, &table->decisions[i], &decided, &unavailable);
        bool is_own = table->choices[table->decisions[i].choice].algorithm < 0;
        if (!is_own && !decided && !unavailable) {
            add_line(&ranges, table->decisions[i].line);
        }
    }
    for (size_t i = 0; i < table->cost_count; i++) {
        if (!value_of(&counters->costs[i])) {
            add_line(&ranges, table->costs[i].line);
        }
    }
    end_range(&ranges);
    json_add(json, "]");
}

static void add_undecided(const struct counters *counters, struct json *json) {
    static const char *const reasons[UNDECIDED] = {"no row", "could not run"};
    const char *before = "";
    json_add(json, ", \"undecided\": [");
    for (int collective = 0; collective < COLLECTIVES; collective++) {
        for (int why = 0; why < UNDECIDED; why++) {
            for (int class = 0; class < SIZE_CLASSES; class ++) {
                const struct size_count *count = &counters->sizes[collective][why][class];
                if (value_of(&count->calls)) {
                    json_add(json,
                             "%s{\"collective\": \"%s\", \"reason\": \"%s\", \"least_bytes\": %zu, "
                             "\"most_bytes\": %zu, \"calls\": %zu, \"bytes\": %zu}",
                             before, collective_name(collective), reasons[why], value_of(&count->least),
                             value_of(&count->most), value_of(&count->calls), value_of(&count->bytes));
                    before = ", ";
                }
            }
        }
    }
    json_add(json, "]");
}

static void add_identity(const struct stats *stats, bool usable, struct json *json) {
    json_add(json, "{\"nccl_tuner_stats\": 1, \"host\": ");
    json_add_text(json, this_host().name);
    json_add(json, ", \"pid\": %ld, \"commId\": ", (long)getpid());
    if (stats->communicator) {
        json_add(json, "\"0x%" PRIx64 "\"", stats->communicator);
    } else {
        json_add(json, "null");
    }
    if (launcher_rank() >= 0) {
        json_add(json, ", \"rank\": %ld", launcher_rank());
    } else {
        json_add(json, ", \"rank\": null");
    }
    json_add(json, ", \"started\": %" PRIu64 ", \"ended\": %" PRIu64, stats->started_s, (uint64_t)time(NULL));
    if (stats->nccl) {
        json_add(json, ", \"nccl\": \"%d.%d.%d\"", stats->nccl / 10000, stats->nccl / 100 % 100, stats->nccl % 100);
    } else {
        json_add(json, ", \"nccl\": null");
    }
    json_add(json, ", \"build\": \"%s\"", build_id);
    json_add(json, ", \"ranks\": %zu, \"nodes\": %zu, \"table\": ", stats->shape.ranks, stats->shape.nodes);
    json_add_text(json, stats->loaded->path);
    if (usable) {
        json_add(json, ", \"sha256\": \"%s\"", stats->loaded->sha256.text);
    } else {
        json_add(json, ", \"sha256\": null");
    }
}

static void add_counts(const struct stats *stats, const struct decider *decider, struct json *json) {
    const struct counters *counters = &decider->counters;
    struct call_counts counts = counters_sum(counters);
    json_add(json, ", \"calls\": %zu, \"decided\": %zu, \"could_not_run\": %zu, \"costed\": %zu", counts.calls,
             counts.decided, counts.unavailable, counts.costed);
    add_rows(stats, counters, json);
    add_unmatched(stats, counters, json);
    add_undecided(counters, json);
}

static sigset_t too_large(void) {
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGXFSZ);
    return signals;
}

bool stats_hold_signal(void) {
    sigset_t signals = too_large(), before;
    sigprocmask(SIG_BLOCK, &signals, &before); /* the calling thread's alone, on Linux */
    return sigismember(&before, SIGXFSZ) == 1;
}

void stats_let_signal(bool held, int wrong) {
    const struct timespec at_once = {0, 0};
    sigset_t signals = too_large();
    while (wrong == EFBIG && !held && sigtimedwait(&signals, NULL, &at_once) > 0) {
    }
    if (!held) {
        sigprocmask(SIG_UNBLOCK, &signals, NULL);
    }
}

/* 0, or the errno. Never waits: not at a pipe that nobody reads, and no signal comes from one that nobody reads on. */
static int append(const char *path, const char *bytes, size_t count) {
    int file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | O_NOFOLLOW, 0666);
    if (file < 0) {
        return errno;
    }
    int wrong = lseek(file, 0, SEEK_END) < 0 ? errno : 0;
    bool held = stats_hold_signal();
    while (!wrong && count > 0) { /* at once, but for a full disk: lines of several processes stay whole */
        ssize_t written = write(file, bytes, count);
        if (written > 0) {
            bytes += written;
            count -= (size_t)written;
        } else if (written == 0 || errno != EINTR) {
            wrong = written == 0 ? EIO : errno;
        }
    }
    stats_let_signal(held, wrong);
    if (close(file) != 0 && !wrong) {
        wrong = errno;
    }
    return wrong;
}

void stats_open(struct stats *stats) {
    const char *pattern = getenv(STATS_VARIABLE);
    stats->path = NULL;
    if (!pattern || !pattern[0]) {
        return;
    }
    struct json path = {0};
    if (!expand(pattern, stats, &path)) {
        log_warn(stats->logger, STATS_VARIABLE "=%.256s: valid after a percent sign: h, p, c, %%; no statistics",
                 pattern);
    } else if (path.lost) {
        log_warn(stats->logger, STATS_VARIABLE ": out of memory; no statistics");
    } else {
        stats->path = path.bytes;
        return;
    }
    json_free(&path);
}

void stats_write(struct stats *stats, const struct decider *decider) {
    if (!stats->path) {
        return;
    }
    struct json line = {0};
    int kept = errno;
    add_identity(stats, decider, &line);
    if (decider) {
        add_counts(stats, decider, &line);
    }
    json_add(&line, "}\n");
    int wrong = line.lost ? ENOMEM : append(stats->path, line.bytes, line.count);
    if (wrong) {
        log_warn(stats->logger, "%.512s: errno %d; no statistics (" STATS_VARIABLE ")", stats->path, wrong);
    }
    json_free(&line);
    free(stats->path);
    stats->path = NULL;
    errno = kept;
}
