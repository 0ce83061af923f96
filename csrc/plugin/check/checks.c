#include "checks.h"

#include <float.h>
#include <stdarg.h>
#include <string.h>

#include "../costs.h"
#include "../legacy.h"
#include "../lookup.h"
#include "plugins.h"

struct call {
    int collective, pipelined, registered;
    size_t bytes;
};

/* The rules of docs/decision-table.md, row by row */

static bool is_within(size_t number, struct counts counts) {
    return number >= counts.low && (counts.high == UINT32_MAX || number <= counts.high);
}

static bool has_ends(struct counts counts) {
    return counts.low > 1 || counts.high < UINT32_MAX;
}

static bool is_for_shape(const struct condition *when, const struct shape *shape) {
    bool whole = shape->ranks % shape->nodes == 0 && is_within(shape->ranks / shape->nodes, when->ranks_per_node);
    return is_within(shape->ranks, when->ranks) && is_within(shape->nodes, when->nodes) &&
           (whole || when->ranks_per_node.low == 0);
}

static bool asks_for_shape(const struct condition *when) {
    return when->per_rank || has_ends(when->ranks) || has_ends(when->nodes) || when->ranks_per_node.low > 0;
}

static bool is_for_call(const struct condition *when, const struct shape *shape, const struct call *call) {
    size_t bytes = when->per_rank ? call->bytes / shape->ranks : call->bytes;
    size_t pipelined = call->pipelined < 0 ? 0 : (size_t)call->pipelined;
    bool of_any_size = when->per_rank && !shape->known;
    return when->collective == call->collective && is_within(pipelined, when->pipelined) &&
           (when->registered < 0 || when->registered == (call->registered != 0)) &&
           (of_any_size || (bytes >= when->bytes.low && bytes <= when->bytes.high)) &&
           (!shape->known || is_for_shape(when, shape));
}

/* The first row that matches, or the choice that is NCCL's own. */
static const struct choice *scan_rows(const struct table *table, const struct shape *shape, const struct call *call) {
    for (size_t i = 0; i < table->decision_count; i++) {
        const struct decision *row = &table->decisions[i];
        if (is_for_call(&row->when, shape, call)) {
            return &table->choices[!shape->known && asks_for_shape(&row->when) ? 0 : row->choice];
        }
    }
    return &table->choices[0];
}

static float cost_us(const struct cost *cost, const struct call *call) {
    if (cost->never) {
        return 3e9f;
    }
    uint64_t operations = call->pipelined > 0 ? (uint64_t)call->pipelined : 0;
    uint64_t batches = (operations + cost->batch - 1) / cost->batch;
    float latency_us = cost->latency_us * (float)batches;
    float time_us = latency_us + (float)call->bytes / (1000.0f * cost->bandwidth_gbs);
    return time_us > 3e9f ? 3e9f : time_us;
}

static void scan_costs(const struct table *table, const struct shape *shape, const struct call *call, float *cells,
                       int algorithms, int protocols) {
    bool decided[CELLS] = {false};
    for (size_t i = 0; i < table->cost_count; i++) {
        const struct cost *cost = &table->costs[i];
        int own = cost->algorithm * PROTOCOLS + cost->protocol;
        if (decided[own] || cost->algorithm >= algorithms || cost->protocol >= protocols ||
            !is_for_call(&cost->when, shape, call)) {
            continue;
        }
        decided[own] = true;
        float *cell = &cells[cost->algorithm * protocols + cost->protocol];
        if (*cell >= 0.0f && (shape->known || !asks_for_shape(&cost->when))) {
            *cell = cost_us(cost, call);
        }
    }
}

static int kept_channels(const struct choice *choice, const struct shape *shape) {
    bool unsafe = choice->algorithm == ALGORITHM_COLLNET_DIRECT || choice->algorithm == ALGORITHM_COLLNET_CHAIN ||
                  (choice->algorithm == ALGORITHM_NVLS && !(shape->known && shape->nodes == 1));
    return unsafe ? 0 : choice->channels;
}

/* The first of the list that NCCL could take, or NULL. */
static const struct choice *first_possible(const struct choice *choice, const float *cells, int algorithms,
                                           int protocols) {
    for (; choice->algorithm >= 0; choice++) {
        bool is_cell = choice->algorithm < algorithms && choice->protocol < protocols;
        float time_us = is_cell ? cells[choice->algorithm * protocols + choice->protocol] : -1.0f;
        if (time_us >= 0.0f && time_us < 3.6e9f) {
            return choice;
        }
        if (!choice->more) {
            break;
        }
    }
    return NULL;
}

/* What the table decides: the first choice that NCCL could take, of the first row that matches, or of the first that
 * has one where rows pass calls on; or NULL. */
static const struct choice *scan_decisions(const struct table *table, const struct shape *shape,
                                           const struct call *call, const float *cells, int algorithms, int protocols) {
    const struct choice *taken = NULL;
    for (size_t i = 0; !taken && i < table->decision_count; i++) {
        const struct decision *row = &table->decisions[i];
        if (!is_for_call(&row->when, shape, call)) {
            continue;
        }
        bool unknown = !shape->known && asks_for_shape(&row->when);
        taken = unknown ? NULL : first_possible(&table->choices[row->choice], cells, algorithms, protocols);
        if (unknown || !table->falls_through) {
            return taken;
        }
    }
    return taken;
}

/* What NCCL 2.28.9 takes from a cost table: -1 when nothing is left. */
static int pick(const float *cells, int count) {
    float best = 3600000000.0f;
    int found = -1;
    for (int cell = 0; cell < count; cell++) {
        if (cells[cell] != -1.0f && cells[cell] >= 0.0f && cells[cell] < best) {
            found = cell;
            best = cells[cell];
        }
    }
    return found;
}

/* Parser, lookup and costs */

static void check_same(const struct choice *found, const struct choice *expected, const struct shape *shape) {
    while (true) {
        CHECK(found->algorithm == expected->algorithm && found->protocol == expected->protocol);
        CHECK(found->channels == kept_channels(expected, shape));
        CHECK(found->chunk_bytes == expected->chunk_bytes && found->more == expected->more);
        if (!found->more) {
            break;
        }
        found++, expected++;
    }
}

static void check_point(const struct table *table, const struct shape *shape, const struct lookup *lookup,
                        const struct costs *costs, const struct call *call) {
    check_same(lookup_find(lookup, call->collective, call->bytes, call->pipelined, call->registered),
               scan_rows(table, shape, call), shape);
    float cells[CELLS], expected[CELLS];
    for (int cell = 0; cell < CELLS; cell++) {
        cells[cell] = expected[cell] = cell % 5 == 4 ? -1.0f : 7.0f;
    }
    costs_write(costs, call->collective, call->bytes, call->pipelined, cells, ALGORITHMS, PROTOCOLS);
    scan_costs(table, shape, call, expected, ALGORITHMS, PROTOCOLS);
    CHECK(memcmp(cells, expected, sizeof cells) == 0);
}

static int as_int(uint32_t count) {
    return count > INT32_MAX ? INT32_MAX : (int)count;
}

/* Both sides of both ends of a row's intervals. */
static void check_ends(const struct table *table, const struct shape *shape, const struct lookup *lookup,
                       const struct costs *costs, const struct condition *when) {
    size_t scale = when->per_rank ? shape->ranks : 1;
    size_t low = when->bytes.low * scale, end = (when->bytes.high + 1) * scale; /* may wrap: any size will do */
    const size_t sizes[] = {low - 1, low, end - 1, end};
    int least = as_int(when->pipelined.low), most = as_int(when->pipelined.high);
    const int operations[] = {least - 1, least, most, most == INT32_MAX ? 1 : most + 1};
    for (int i = 0; i < 4; i++) {
        for (int j = 0; j < 4; j++) {
            struct call call = {when->collective, operations[j], j % 2, sizes[i]};
            check_point(table, shape, lookup, costs, &call);
        }
    }
}

static void check_rows(const struct table *table, const struct shape *shape, struct source *source, int queries) {
    struct lookup lookup;
    struct costs costs;
    CHECK(lookup_build(table, shape, &lookup) && costs_build(table, shape, &costs));
    for (size_t i = 0; i < table->decision_count; i++) {
        check_ends(table, shape, &lookup, &costs, &table->decisions[i].when);
    }
    for (size_t i = 0; i < table->cost_count; i++) {
        check_ends(table, shape, &lookup, &costs, &table->costs[i].when);
    }
    for (int query = 0; query < queries; query++) {
        struct call call = {(int)below(source, COLLECTIVES), draw_int(source), (int)below(source, 3),
                            draw_size(source)};
        check_point(table, shape, &lookup, &costs, &call);
    }
    lookup_free(&lookup);
    costs_free(&costs);
}

static void check_error(const struct table *table, const struct table_error *error) {
    CHECK(table->choices == NULL && table->decisions == NULL && table->costs == NULL && table->constants == NULL);
    CHECK(error->line >= 1 && strlen(error->reason) > 0 && strlen(error->reason) < sizeof error->reason - 1);
    for (const char *letter = error->reason; *letter; letter++) {
        CHECK(*letter >= ' ' && *letter <= '~');
    }
}

static void check_content(const struct table *table) {
    for (size_t i = 1; i < table->choice_count; i++) {
        const struct choice *choice = &table->choices[i];
        CHECK(choice->algorithm >= 0 && choice->algorithm < ALGORITHMS);
        CHECK(choice->protocol >= 0 && choice->protocol < PROTOCOLS);
        CHECK(choice->channels >= 0 && choice->channels <= MAX_CHANNELS && choice->chunk_bytes <= 1u << 30);
        CHECK(!choice->more || i + 1 < table->choice_count);
    }
    for (size_t i = 0; i < table->cost_count; i++) {
        const struct cost *cost = &table->costs[i];
        CHECK(cost->never || (cost->latency_us >= 0 && cost->latency_us <= FLT_MAX));
        CHECK(cost->never || (cost->bandwidth_gbs > 0 && cost->bandwidth_gbs <= FLT_MAX && cost->batch > 0));
    }
    for (size_t i = 0; i < table->constant_count; i++) {
        CHECK(table->constants[i].number >= 0 && table->constants[i].number < 144);
        CHECK(table->constants[i].value >= 0 && table->constants[i].value <= DBL_MAX);
    }
}

bool check_text(struct slice text, struct source *source, int queries) {
    struct table table;
    struct table_error error;
    if (!table_parse(text, &table, &error)) {
        check_error(&table, &error);
        return false;
    }
    check_content(&table);
    const struct shape shapes[] = {{16, 2, true}, {3 + below(source, 6), 1 + below(source, 3), true}, {8, 1, false}};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        check_rows(&table, &shapes[i], source, queries);
    }
    table_free(&table);
    return true;
}

/* The exported plugins */

/* As NCCL's own logger: a variadic function that formats what it gets. */
__attribute__((format(printf, 5, 6))) static void listen(int level, unsigned long flags, const char *file, int line,
                                                         const char *format, ...) {
    char text[4096];
    va_list values;
    va_start(values, format);
    int length = vsnprintf(text, sizeof text, format, values);
    va_end(values);
    CHECK(strcmp(format, "%s") == 0);
    CHECK(length > 0 && length < 1024 && strncmp(text, "TUNER/nccl-tuner: ", 18) == 0);
    CHECK(level == LEVEL_WARN ? flags == SUBSYSTEM_ALL : level == LEVEL_INFO && flags == 0x41);
    CHECK(file != NULL && line >= 0);
}

void communicator_open(struct communicator *communicator, int version, size_t ranks, size_t nodes, bool logs) {
    nccl_logger logger = logs ? listen : NULL;
    void **context = &communicator->context;
    double constants[144] = {0};
    communicator->version = version;
    communicator->shape = (struct shape){ranks, nodes, version > 1 || communicator->unchecked};
    *context = communicator; /* as if NCCL had left something there */
    int result = version == 1   ? ncclTunerPlugin_v1.init(ranks, nodes, logger)
                 : version == 2 ? ncclTunerPlugin_v2.init(ranks, nodes, logger, context)
                 : version == 3 ? ncclTunerPlugin_v3.init(ranks, nodes, logger, context)
                 : version == 4 ? ncclTunerPlugin_v4.init(ranks, nodes, logger, context)
                 : version == 5 ? ncclTunerPlugin_v5.init(context, 1, ranks, nodes, logger, NULL, constants)
                                : ncclTunerPlugin_v6.init(context, 1, ranks, nodes, logger, NULL, constants);
    CHECK(result == RESULT_SUCCESS);
    CHECK(version == 1 || *context != communicator);
}

void communicator_close(struct communicator *communicator) {
    void *context = communicator->context;
    int version = communicator->version;
    int result = version == 1   ? ncclTunerPlugin_v1.destroy()
                 : version == 2 ? ncclTunerPlugin_v2.destroy(context)
                 : version == 3 ? ncclTunerPlugin_v3.destroy(context)
                 : version == 4 ? ncclTunerPlugin_v4.destroy(context)
                 : version == 5 ? ncclTunerPlugin_v5.finalize(context)
                                : ncclTunerPlugin_v6.finalize(context);
    CHECK(result == RESULT_SUCCESS);
}

enum { UNTOUCHED = -7 };

static void check_channels(const struct choice *taken, const struct shape *shape, int channels) {
    int asked = taken ? kept_channels(taken, shape) : 0;
    CHECK(channels == (asked > 0 ? asked : UNTOUCHED));
}

/* Versions 1 and 2: a choice by name. */
static void check_name(const struct communicator *communicator, const struct call *call, int collnet, int nvls) {
    int algorithm = UNTOUCHED, protocol = UNTOUCHED, channels = UNTOUCHED;
    int result = communicator->version == 1
                     ? ncclTunerPlugin_v1.get_coll_info(call->collective, call->bytes, collnet, nvls, call->pipelined,
                                                        &algorithm, &protocol, &channels)
                     : ncclTunerPlugin_v2.get_coll_info(communicator->context, call->collective, call->bytes, collnet,
                                                        nvls, call->pipelined, &algorithm, &protocol, &channels);
    CHECK(result == RESULT_SUCCESS);
    bool named = algorithm != UNTOUCHED;
    CHECK(named == (protocol != UNTOUCHED) && (named || channels == UNTOUCHED));
    CHECK(!named || (algorithm >= ALGORITHM_TREE && algorithm <= ALGORITHM_NVLS_TREE));
    CHECK(!named || (protocol >= 0 && protocol < PROTOCOLS));
    CHECK(channels == UNTOUCHED || (channels >= 1 && channels <= MAX_CHANNELS));
    if (communicator->shared) {
        return;
    }
    const struct shape *shape = &communicator->shape;
    float own[CELLS], cells[CELLS];
    legacy_fill(own, call->collective, collnet == 1, nvls == 1, shape, communicator->unchecked);
    memcpy(cells, own, sizeof cells);
    scan_costs(communicator->table, shape, call, cells, ALGORITHMS, PROTOCOLS);
    const struct choice *taken = scan_decisions(communicator->table, shape, call, cells, ALGORITHMS, PROTOCOLS);
    bool with_channels = communicator->version > 1 || communicator->unchecked;
    check_channels(with_channels ? taken : NULL, shape, channels);
    if (taken) {
        CHECK(algorithm == taken->algorithm && protocol == taken->protocol);
    } else if (named) { /* by its costs */
        CHECK(algorithm * PROTOCOLS + protocol == pick(cells, CELLS));
    } else {
        CHECK(memcmp(own, cells, sizeof cells) == 0);
    }
}

/* Versions 3 to 6: NCCL's cost cells. */
static void check_cells(const struct communicator *communicator, const struct call *call, const float *before,
                        const float *after, int algorithms, int protocols, int channels) {
    int count = algorithms * protocols;
    float expected[16 * 16];
    memcpy(expected, before, (size_t)count * sizeof *before);
    scan_costs(communicator->table, &communicator->shape, call, expected, algorithms, protocols);
    const struct choice *taken =
        scan_decisions(communicator->table, &communicator->shape, call, expected, algorithms, protocols);
    check_channels(taken, &communicator->shape, channels);
    if (!taken) {
        CHECK(memcmp(after, expected, (size_t)count * sizeof *after) == 0);
        return;
    }
    int chosen = taken->algorithm * protocols + taken->protocol;
    CHECK(pick(after, count) == chosen);
    for (int cell = 0; cell < count; cell++) {
        bool rivals = cell != chosen && expected[cell] >= 0.0f && expected[cell] <= expected[chosen];
        CHECK(rivals ? after[cell] > expected[chosen] && after[cell] < 3.6e9f
                     : memcmp(&after[cell], &expected[cell], sizeof *after) == 0 ||
                           (after[cell] > expected[cell] && expected[cell] >= 0.0f && expected[cell] < FLT_MIN));
    }
}

static void ask_cells(const struct communicator *communicator, struct call *call, float *cells, int algorithms,
                      int protocols, int *channels) {
    void *context = communicator->context;
    float **costs = (float **)(void *)cells; /* what NCCL does, too */
    int version = communicator->version;
    int result =
        version == 3 ? ncclTunerPlugin_v3.get_coll_info(context, call->collective, call->bytes, call->pipelined, costs,
                                                        algorithms, protocols, channels)
        : version == 4 ? ncclTunerPlugin_v4.get_coll_info(context, call->collective, call->bytes, call->pipelined,
                                                          costs, algorithms, protocols, call->registered, channels)
        : version == 5 ? ncclTunerPlugin_v5.get_coll_info(context, call->collective, call->bytes, call->pipelined,
                                                          costs, algorithms, protocols, call->registered, channels)
                       : ncclTunerPlugin_v6.get_coll_info(context, call->collective, call->bytes, call->pipelined,
                                                          costs, algorithms, protocols, call->registered, channels);
    CHECK(result == RESULT_SUCCESS);
}

/* The chunk size of what was just taken, and of nothing else. */
static void check_chunk(const struct communicator *communicator, const struct call *call, const float *after,
                        int algorithms, int protocols, struct source *source) {
    int picked = pick(after, algorithms * protocols);
    int algorithm = draw_int(source), protocol = draw_int(source);
    if (picked >= 0 && below(source, 2)) {
        algorithm = picked / protocols, protocol = picked % protocols;
    }
    size_t chunk_bytes = 12345;
    CHECK(ncclTunerPlugin_v6.get_chunk_size(communicator->context, call->collective, call->bytes, algorithm, protocol,
                                            draw_int(source), &chunk_bytes) == RESULT_SUCCESS);
    const struct choice *taken =
        scan_decisions(communicator->table, &communicator->shape, call, after, algorithms, protocols);
    bool asked = taken && taken->chunk_bytes > 0 && taken->algorithm == algorithm && taken->protocol == protocol;
    CHECK(chunk_bytes == (asked ? taken->chunk_bytes : 12345));
}

void check_call(const struct communicator *communicator, struct source *source) {
    struct call call = {(int)below(source, 17) - 1, 1, (int)below(source, 3), draw_size(source)};
    if (below(source, 2)) {
        call.pipelined = draw_int(source);
    }
    if (communicator->version < 3) {
        call.registered = 0;
        int collnet = (int)below(source, 3) - 1;
        check_name(communicator, &call, collnet, (int)below(source, 3) - 1);
        return;
    }
    call.registered *= communicator->version > 3;
    bool usual = below(source, 4) > 0;
    int algorithms = usual ? ALGORITHMS : (int)below(source, 9), protocols = usual ? PROTOCOLS : (int)below(source, 5);
    int count = algorithms * protocols;
    size_t size = (size_t)count * sizeof(float);
    /* Memory of exactly their size, so that a write beside them is seen. */
    float *before = malloc(size + !size), *after = malloc(size + !size);
    CHECK(before && after);
    for (int cell = 0; cell < count; cell++) {
        before[cell] = draw_cost(source);
    }
    memcpy(after, before, size);
    int channels = UNTOUCHED;
    if (below(source, 8)) {
        ask_cells(communicator, &call, after, algorithms, protocols, &channels);
        check_cells(communicator, &call, before, after, algorithms, protocols, channels);
        if (communicator->version == 6) {
            check_chunk(communicator, &call, after, algorithms, protocols, source);
        }
    } else { /* what NCCL never leaves out */
        ask_cells(communicator, &call, after, algorithms, protocols, NULL);
        ask_cells(communicator, &call, NULL, algorithms, protocols, &channels);
        CHECK(channels == UNTOUCHED);
    }
    free(before);
    free(after);
}
