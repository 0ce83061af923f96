#include "checks.h"

#include <float.h>
#include <string.h>

#include "../costs.h"
#include "../guard.h"
#include "../lookup.h"
#include "scan.h"

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
    check_same(lookup_find(lookup, call), scan_rows(table, shape, call), shape);
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
    const struct shape shapes[] = {
        {16, 2, true, 2}, {3 + below(source, 6), 1 + below(source, 3), true, below(source, 3)}, {8, 1, false, 0}};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        check_rows(&table, &shapes[i], source, queries);
    }
    table_free(&table);
    return true;
}
