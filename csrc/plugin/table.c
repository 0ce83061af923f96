#include "table.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "abi.h"
#include "text.h"

bool table_fail(struct table_error *error, const char *format, ...) {
    va_list values;
    va_start(values, format);
    vsnprintf(error->reason, sizeof error->reason, format, values);
    va_end(values);
    return false;
}

/* Space for one more item of `size` bytes; where the items are then, or NULL. */
static void *grow(void *items, size_t *room, size_t count, size_t size, struct table_error *error) {
    if (count < *room) {
        return items;
    }
    size_t more = *room ? *room * 2 : 64;
    void *grown = realloc(items, more * size);
    if (grown) {
        *room = more;
    } else {
        table_fail(error, "out of memory after %zu %s", COUNTED(count, "row", "rows"));
    }
    return grown;
}

bool table_add_choice(struct table *table, struct choice choice, struct table_error *error) {
    struct choice *grown = grow(table->choices, &table->choice_room, table->choice_count, sizeof choice, error);
    if (grown) {
        table->choices = grown;
        table->choices[table->choice_count++] = choice;
        table->sets_chunks |= choice.chunk_bytes > 0;
    }
    return grown;
}

bool table_add_schedule(struct table *table, struct schedule schedule, struct table_error *error) {
    if (table->schedule_count == UINT16_MAX) {
        return table_fail(error, "more than %d rows that explore", UINT16_MAX);
    }
    struct schedule *grown =
        grow(table->schedules, &table->schedule_room, table->schedule_count, sizeof schedule, error);
    if (grown) {
        table->schedules = grown;
        table->schedules[table->schedule_count++] = schedule;
    }
    return grown;
}

static bool add_pipelined_end(struct table *table, uint32_t end, struct table_error *error) {
    for (size_t i = 0; i < table->pipelined_end_count; i++) {
        if (table->pipelined_ends[i] == end) {
            return true;
        }
    }
    if (table->pipelined_end_count == MOST_PIPELINED_ENDS) {
        return table_fail(error, "more than %d different ends of 'pipelined' in the table", MOST_PIPELINED_ENDS);
    }
    table->pipelined_ends[table->pipelined_end_count++] = end;
    return true;
}

bool table_add_decision(struct table *table, struct decision decision, struct table_error *error) {
    struct counts pipelined = decision.when.pipelined;
    if ((pipelined.low > 0 && !add_pipelined_end(table, pipelined.low, error)) ||
        (pipelined.high < UINT32_MAX && !add_pipelined_end(table, pipelined.high + 1, error))) {
        return false;
    }
    decision.line = (uint32_t)error->line;
    struct decision *grown =
        grow(table->decisions, &table->decision_room, table->decision_count, sizeof decision, error);
    if (grown) {
        table->decisions = grown;
        table->decisions[table->decision_count++] = decision;
    }
    return grown;
}

bool table_add_cost(struct table *table, struct cost cost, struct table_error *error) {
    cost.line = (uint32_t)error->line;
    struct cost *grown = grow(table->costs, &table->cost_room, table->cost_count, sizeof cost, error);
    if (grown) {
        table->costs = grown;
        table->costs[table->cost_count++] = cost;
    }
    return grown;
}

bool table_add_constant(struct table *table, struct constant constant, struct table_error *error) {
    struct constant *grown =
        grow(table->constants, &table->constant_room, table->constant_count, sizeof constant, error);
    if (grown) {
        table->constants = grown;
        table->constants[table->constant_count++] = constant;
    }
    return grown;
}

static bool is_of_a_word(char letter) {
    return (letter >= '0' && letter <= '9') || (letter >= 'A' && letter <= 'Z') || (letter >= 'a' && letter <= 'z');
}

/* Whole words: "GH200" does not contain "H200". */
static bool contains(const char *text, struct slice part) {
    size_t length = strlen(text);
    for (size_t at = 0; part.length > 0 && at + part.length <= length; at++) {
        if (slice_is_slice_any_case((struct slice){text + at, part.length}, part) &&
            (at == 0 || !is_of_a_word(text[at - 1])) && !is_of_a_word(text[at + part.length])) {
            return true;
        }
    }
    return false;
}

bool table_names_gpu(const struct table *table, const char *name) {
    struct slice rest = {table->gpus.text, strlen(table->gpus.text)}, word;
    while (cut(rest, ',', &word, &rest)) {
        if (contains(name, trimmed(word))) {
            return true;
        }
    }
    return contains(name, trimmed(rest));
}

bool table_names_release(const struct table *table, int version) {
    char name[32];
    snprintf(name, sizeof name, "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
    struct slice rest = {table->releases.text, strlen(table->releases.text)}, word;
    while (cut(rest, ',', &word, &rest)) {
        if (slice_is(trimmed(word), name)) {
            return true;
        }
    }
    return slice_is(trimmed(rest), name);
}

struct condition condition_of(int collective) {
    static const struct counts from_0 = {0, UINT32_MAX}, from_1 = {1, UINT32_MAX};
    return (struct condition){.bytes = {0, SIZE_MAX},
                              .ranks = from_1,
                              .nodes = from_1,
                              .ranks_per_node = from_0, /* of 0 no row can speak: where there is no whole number, too */
                              .nvlink_domains = from_1,
                              .pipelined = from_0,
                              .collective = (int8_t)collective,
                              .registered = -1};
}

void table_free(struct table *table) {
    free(table->choices);
    free(table->decisions);
    free(table->costs);
    free(table->constants);
    free(table->schedules);
    *table = (struct table){0};
}

static bool holds(struct counts counts, size_t number) {
    return counts.low <= number && (number <= counts.high || counts.high == UINT32_MAX);
}

static bool is_any(struct counts counts) {
    return counts.low <= 1 && counts.high == UINT32_MAX;
}

/* Any number at all, and none where there is no whole one. */
static bool is_any_share(struct counts counts) {
    return counts.low == 0;
}

static bool asks_for_shape(const struct condition *when) {
    return when->per_rank || !is_any(when->ranks) || !is_any(when->nodes) || !is_any_share(when->ranks_per_node) ||
           !is_any(when->nvlink_domains);
}

static bool holds_ranks_per_node(const struct shape *shape, struct counts counts) {
    if (is_any_share(counts)) {
        return true;
    }
    return shape->nodes > 0 && shape->ranks % shape->nodes == 0 && holds(counts, shape->ranks / shape->nodes);
}

enum match shape_match(const struct shape *shape, const struct condition *when) {
    if (!shape->known) {
        return asks_for_shape(when) ? MATCH_UNKNOWN : MATCH_YES;
    }
    bool yes = holds(when->ranks, shape->ranks) && holds(when->nodes, shape->nodes) &&
               holds_ranks_per_node(shape, when->ranks_per_node);
    if (!yes || is_any(when->nvlink_domains)) {
        return yes ? MATCH_YES : MATCH_NO;
    }
    return shape->domains == 0 ? MATCH_UNKNOWN : holds(when->nvlink_domains, shape->domains) ? MATCH_YES : MATCH_NO;
}

bool shape_bytes(const struct shape *shape, const struct condition *when, struct sizes *bytes) {
    *bytes = when->bytes;
    if (!when->per_rank) {
        return true;
    }
    if (!shape->known || shape->ranks == 0) {
        *bytes = (struct sizes){0, SIZE_MAX};
        return true;
    }
    /* nBytes / ranks is rounded down: the interval ends just before the next whole number of bytes per rank. */
    size_t most = SIZE_MAX / shape->ranks;
    if (bytes->low > most) {
        return false;
    }
    bytes->low *= shape->ranks;
    bytes->high = bytes->high >= most ? SIZE_MAX : bytes->high * shape->ranks + (shape->ranks - 1);
    return true;
}

#define COUNT(names) ((int)(sizeof(names) / sizeof *(names)))

/* In the order of NCCL's numbers. */
static const char *const collectives[COLLECTIVES] = {"Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce"};
static const char *const algorithms[ALGORITHMS] = {"Tree",     "Ring", "CollNetDirect", "CollNetChain", "NVLS",
                                                   "NVLSTree", "PAT"};
static const char *const protocols[PROTOCOLS] = {"LL", "LL128", "Simple"};

/* In the order of ncclTunerConstants_v5_t. */
static const char *const links[] = {"nvlink", "pci", "net"};
static const char *const caps[] = {"ll-gbs", "ring-ll128-per-channel-gbs", "tree-ll128-per-channel-gbs",
                                   "tree-per-channel-gbs", "nvlstree-per-channel-gbs"};
static const char *const generations[] = {"volta", "ampere", "hopper", "blackwell"};
static const char *const node_counts[] = {"1", "2", "more"};

int collective_by_name(struct slice name) {
    return slice_among(name, collectives, COUNT(collectives), slice_is_any_case);
}

int algorithm_by_name(struct slice name) {
    return slice_among(name, algorithms, COUNT(algorithms), slice_is_any_case);
}

int protocol_by_name(struct slice name) {
    return slice_among(name, protocols, COUNT(protocols), slice_is_any_case);
}

int cap_by_name(struct slice name) {
    return slice_among(name, caps, COUNT(caps), slice_is);
}

int link_by_name(struct slice name) {
    return slice_among(name, links, COUNT(links), slice_is);
}

int generation_by_name(struct slice name) {
    return slice_among(name, generations, COUNT(generations), slice_is);
}

int node_count_by_name(struct slice name) {
    return slice_among(name, node_counts, COUNT(node_counts), slice_is);
}

const char *collective_name(int collective) {
    return collective >= 0 && collective < COLLECTIVES ? collectives[collective] : "?";
}

const char *algorithm_name(int algorithm) {
    return algorithm >= 0 && algorithm < ALGORITHMS ? algorithms[algorithm] : "?";
}

const char *protocol_name(int protocol) {
    return protocol >= 0 && protocol < PROTOCOLS ? protocols[protocol] : "?";
}
