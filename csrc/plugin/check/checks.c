#include "checks.h"

#include <float.h>
#include <stdarg.h>
#include <string.h>

#include "../../call/versions.h"
#include "../cells.h"
#include "../interface.h"
#include "../rules.h"
#include "scan.h"

static void check_one(const struct choice *found, const struct choice *expected, int channels) {
    CHECK(found->algorithm == expected->algorithm && found->protocol == expected->protocol);
    CHECK(found->channels == channels && found->explores == expected->explores && found->own == expected->own);
    CHECK(found->chunk_bytes == expected->chunk_bytes && found->more == expected->more);
}

static void check_step(const struct step *step, const struct choice *choice) {
    CHECK(step->algorithm == choice->algorithm && step->protocol == choice->protocol);
    CHECK(step->channels == choice->channels && step->more == choice->more && step->own == choice->own);
    CHECK(step->explores == (choice->explores > 0) && step->sets_chunk == (choice->chunk_bytes > 0));
}

static void check_same(const struct choice *found, const struct choice *expected, const struct shape *shape) {
    while (true) {
        check_one(found, expected, kept_channels(expected, shape));
        if (!found->more) {
            break;
        }
        found++, expected++;
    }
}

static void check_point(const struct table *table, const struct shape *shape, const struct lookup *lookup,
                        const struct costs *costs, const struct call *call) {
    const struct step *step = lookup_find(lookup, call);
    check_step(step, &lookup->choices[step->number]);
    check_same(&lookup->choices[step->number], scan_rows(table, shape, call), shape);
    float cells[CELLS], expected[CELLS];
    for (int cell = 0; cell < CELLS; cell++) {
        cells[cell] = expected[cell] = cell % 5 == 4 ? -1.0f : 7.0f;
    }
    bool guarded = guard_is_for(shape, true);
    costs_write(costs, call, (struct cost_cells){cells, ALGORITHMS, PROTOCOLS}, guarded, NULL);
    scan_costs(table, shape, call, (struct cost_cells){expected, ALGORITHMS, PROTOCOLS}, true);
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
            struct call call = {
                .collective = when->collective, .pipelined = operations[j], .registered = j % 2, .bytes = sizes[i]};
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
        struct call call = {.collective = (int)below(source, COLLECTIVES), .pipelined = draw_int(source)};
        call.registered = (int)below(source, 3);
        call.bytes = draw_size(source);
        check_point(table, shape, &lookup, &costs, &call);
    }
    lookup_free(&lookup);
    costs_free(&costs);
}

static void check_error(const struct table *table, const struct table_error *error) {
    CHECK(table->choices == NULL && table->decisions == NULL && table->costs == NULL && table->constants == NULL);
    CHECK(table->schedules == NULL);
    CHECK(error->line >= 1 && strlen(error->reason) > 0 && strlen(error->reason) < sizeof error->reason - 1);
    for (const char *letter = error->reason; *letter; letter++) {
        CHECK(*letter >= ' ' && *letter <= '~');
    }
}

/* A row that explores: its head, which is NCCL's own choice, and then its arms, which may be too. */
static size_t check_arms(const struct table *table, size_t head) {
    CHECK(table->choices[head].explores <= table->schedule_count && table->choices[head].more);
    const struct schedule *schedule = &table->schedules[table->choices[head].explores - 1];
    CHECK(schedule->arms >= 1 && schedule->arms <= MOST_ARMS && head + schedule->arms < table->choice_count);
    CHECK(schedule->every >= 2 && schedule->every <= MOST_EVERY && schedule->block >= 1 && schedule->calls >= 1);
    for (size_t arm = 1; arm <= schedule->arms; arm++) {
        CHECK(table->choices[head + arm].explores == 0 && table->choices[head + arm].chunk_bytes == 0);
        CHECK(table->choices[head + arm].more == (arm < schedule->arms));
    }
    return schedule->arms;
}

static void check_content(const struct table *table) {
    size_t arms = 0;
    for (size_t i = FIRST_CHOICE; i < table->choice_count; i++) {
        const struct choice *choice = &table->choices[i];
        bool explores = choice->explores > 0;
        CHECK(choice->algorithm < ALGORITHMS && (choice->algorithm >= 0 || explores || arms > 0));
        arms = explores ? check_arms(table, i) : arms > 0 ? arms - 1 : 0;
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
        CHECK(table->constants[i].number >= 0 && table->constants[i].number < CONSTANTS);
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
    const struct shape shapes[] = {
        {16, 2, true, 2}, {3 + below(source, 6), 1 + below(source, 3), true, below(source, 3)}, {8, 1, false, 0}};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        check_rows(&table, &shapes[i], source, queries);
    }
    table_free(&table);
    return true;
}

/* What NCCL takes from a cost table: -1 when nothing is left. Its bound is FLT_MAX from 2.29.2 on, and an hour before,
 * which what is raised has to stay below unless the choice itself has no model. */
static int pick(const float *cells, int count) {
    float best = FLT_MAX;
    int found = -1;
    for (int cell = 0; cell < count; cell++) {
        if (cells[cell] != -1.0f && cells[cell] >= 0.0f && cells[cell] < best) {
            found = cell;
            best = cells[cell];
        }
    }
    return found;
}

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
    double constants[MOST_CONSTANTS] = {0};
    communicator->version = version;
    size_t domains = version >= 5 ? communicator->domains : 0;
    communicator->shape = (struct shape){ranks, nodes, version > 1 || communicator->unchecked, domains};
    *context = communicator; /* as if NCCL had left something there */
    struct call_communicator described = {ranks, nodes, (int)domains};
    int result = call_init(version, &described, logger, constants, context);
    CHECK(result == RESULT_SUCCESS);
    CHECK(version == 1 || *context != communicator);
}

void communicator_close(struct communicator *communicator) {
    int result = call_finalize(communicator->version, communicator->context);
    CHECK(result == RESULT_SUCCESS);
}

enum { UNTOUCHED = -7 };

static void check_channels(const struct choice *taken, const struct shape *shape, int channels) {
    int asked = taken ? kept_channels(taken, shape) : 0;
    CHECK(channels == (asked > 0 ? asked : UNTOUCHED));
}

/* What is said of a call: the row that decides it, and else whether a row matched. */
static void check_explanation(const struct communicator *communicator, const struct call *call, struct cost_cells cells,
                              uint32_t line) {
    struct explanation said;
    call_explain(communicator->version, communicator->context, call, cells, &said);
    const struct choice *first = scan_rows(communicator->table, &communicator->shape, call);
    CHECK(said.decision == line);
    CHECK((said.unavailable > 0) == (line == 0 && first->algorithm >= 0));
}

/* Versions 1 and 2: a choice by name. */
static void check_name(const struct communicator *communicator, const struct call *call) {
    int algorithm = UNTOUCHED, protocol = UNTOUCHED, channels = UNTOUCHED;
    int result = call_by_name(communicator->version, communicator->context, call, &algorithm, &protocol, &channels);
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
    legacy_fill(own, call, shape, communicator->unchecked);
    memcpy(cells, own, sizeof cells);
    scan_costs(communicator->table, shape, call, (struct cost_cells){cells, ALGORITHMS, PROTOCOLS}, false);
    uint32_t line;
    const struct choice *taken =
        scan_decisions(communicator->table, shape, call, cells, ALGORITHMS, PROTOCOLS, false, &line);
    check_explanation(communicator, call, (struct cost_cells){NULL, 0, 0}, line);
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
    uint32_t line;
    float expected[16 * 16];
    memcpy(expected, before, (size_t)count * sizeof *before);
    scan_costs(communicator->table, &communicator->shape, call, (struct cost_cells){expected, algorithms, protocols},
               true);
    const struct choice *taken =
        scan_decisions(communicator->table, &communicator->shape, call, expected, algorithms, protocols, true, &line);
    float copy[16 * 16];
    memcpy(copy, before, (size_t)count * sizeof *before);
    check_explanation(communicator, call, (struct cost_cells){copy, algorithms, protocols}, line);
    CHECK(memcmp(copy, after, (size_t)count * sizeof *after) == 0);
    check_channels(taken, &communicator->shape, channels);
    if (!taken) {
        CHECK(memcmp(after, expected, (size_t)count * sizeof *after) == 0);
        return;
    }
    int chosen = taken->algorithm * protocols + taken->protocol;
    CHECK(pick(after, count) == chosen);
    for (int cell = 0; cell < count; cell++) {
        bool rivals = cell != chosen && expected[cell] >= 0.0f && expected[cell] <= expected[chosen];
        CHECK(rivals ? after[cell] > expected[chosen] && (after[cell] < 3.6e9f || expected[chosen] == FLT_MAX / 2)
                     : memcmp(&after[cell], &expected[cell], sizeof *after) == 0 ||
                           (after[cell] > expected[cell] && expected[cell] >= 0.0f && expected[cell] < FLT_MIN));
    }
}

static void ask_cells(const struct communicator *communicator, struct call *call, struct cost_cells cells,
                      int *channels) {
    CHECK(call_with_costs(communicator->version, communicator->context, call, cells, channels) == RESULT_SUCCESS);
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
    uint32_t line;
    int channels = draw_int(source);
    struct chunk_call chunk = {call->bytes, call->collective, algorithm, protocol, channels};
    CHECK(call_chunk_size(communicator->version, communicator->context, &chunk, &chunk_bytes) == RESULT_SUCCESS);
    const struct choice *taken =
        scan_decisions(communicator->table, &communicator->shape, call, after, algorithms, protocols, true, &line);
    bool asked = taken && taken->chunk_bytes > 0 && taken->algorithm == algorithm && taken->protocol == protocol;
    CHECK(chunk_bytes == (asked ? taken->chunk_bytes : 12345));
}

void check_call(const struct communicator *communicator, struct source *source) {
    struct call call = {.collective = (int)below(source, 17) - 1, .pipelined = 1};
    call.registered = (int)below(source, 3);
    call.bytes = draw_size(source);
    if (below(source, 2)) {
        call.pipelined = draw_int(source);
    }
    if (communicator->version < 3) {
        call.registered = 0;
        call.collnet = (int)below(source, 3) - 1;
        call.nvls = (int)below(source, 3) - 1;
        check_name(communicator, &call);
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
        ask_cells(communicator, &call, (struct cost_cells){after, algorithms, protocols}, &channels);
        check_cells(communicator, &call, before, after, algorithms, protocols, channels);
        if (communicator->version >= 6) {
            check_chunk(communicator, &call, after, algorithms, protocols, source);
        }
    } else { /* what NCCL never leaves out */
        ask_cells(communicator, &call, (struct cost_cells){after, algorithms, protocols}, NULL);
        ask_cells(communicator, &call, (struct cost_cells){NULL, algorithms, protocols}, &channels);
        CHECK(channels == UNTOUCHED);
    }
    free(before);
    free(after);
}
