#include <float.h>
#include <stdarg.h>
#include <string.h>

#include "../../call/versions.h"
#include "../explain.h"
#include "../interface.h"
#include "../legacy.h"
#include "checks.h"
#include "scan.h"

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
    nccl_tuner_explain(communicator->version, communicator->context, call, cells, &said);
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
    const struct choice *taken = scan_decisions(communicator->table, shape, call, cells, ALGORITHMS, PROTOCOLS, &line);
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
        scan_decisions(communicator->table, &communicator->shape, call, expected, algorithms, protocols, &line);
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
        CHECK(rivals ? after[cell] > expected[chosen] && after[cell] < 3.6e9f
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
    chunk_size_v6 *get_chunk_size = __atomic_load_n(&ncclTunerPlugin_v6.get_chunk_size, __ATOMIC_ACQUIRE);
    if (get_chunk_size) {
        CHECK(get_chunk_size(communicator->context, call->collective, call->bytes, algorithm, protocol, channels,
                             &chunk_bytes) == RESULT_SUCCESS);
    }
    const struct choice *taken =
        scan_decisions(communicator->table, &communicator->shape, call, after, algorithms, protocols, &line);
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
        if (communicator->version == 6) {
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
