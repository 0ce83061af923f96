#include "scan.h"

#include <float.h>
#include <string.h>

/* Of a cell that NCCL may take: below an hour, or marked as without a model. */
static bool is_taken(float time_us) {
    return time_us >= 0.0f && (time_us < 3.6e9f || time_us == FLT_MAX / 2);
}

static bool is_within(size_t number, struct counts counts) {
    return number >= counts.low && (counts.high == UINT32_MAX || number <= counts.high);
}

static bool has_ends(struct counts counts) {
    return counts.low > 1 || counts.high < UINT32_MAX;
}

static bool is_for_shape(const struct condition *when, const struct shape *shape) {
    bool whole = shape->ranks % shape->nodes == 0 && is_within(shape->ranks / shape->nodes, when->ranks_per_node);
    bool here = shape->domains == 0 || is_within(shape->domains, when->nvlink_domains);
    return here && is_within(shape->ranks, when->ranks) && is_within(shape->nodes, when->nodes) &&
           (whole || when->ranks_per_node.low == 0);
}

static bool asks_for_shape(const struct condition *when) {
    return when->per_rank || has_ends(when->ranks) || has_ends(when->nodes) || when->ranks_per_node.low > 0 ||
           has_ends(when->nvlink_domains);
}

static bool is_unknown(const struct condition *when, const struct shape *shape) {
    return shape->known ? shape->domains == 0 && has_ends(when->nvlink_domains) : asks_for_shape(when);
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

const struct choice *scan_rows(const struct table *table, const struct shape *shape, const struct call *call) {
    for (size_t i = 0; i < table->decision_count; i++) {
        const struct decision *row = &table->decisions[i];
        if (is_for_call(&row->when, shape, call)) {
            return &table->choices[is_unknown(&row->when, shape) ? 0 : row->choice];
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

/* The cost row of a cell, or NULL. */
static const struct cost *cost_of(const struct table *table, const struct shape *shape, const struct call *call,
                                  int algorithm, int protocol) {
    for (size_t i = 0; i < table->cost_count; i++) {
        const struct cost *cost = &table->costs[i];
        if (cost->algorithm == algorithm && cost->protocol == protocol && is_for_call(&cost->when, shape, call)) {
            return is_unknown(&cost->when, shape) ? NULL : cost;
        }
    }
    return NULL;
}

/* Whether NCCL's times of Ring stand more than 64 times higher above the table's than those of the others do. */
static bool holds_ring_back(const float *own_us, const float *row_us) {
    float ring = 0.0f, others = 0.0f;
    bool rings = false, there = false;
    for (int cell = 0; cell < CELLS; cell++) {
        bool is_ring = cell / PROTOCOLS == ALGORITHM_RING,
             has_row = row_us[cell] >= 0.0f && row_us[cell] < 3e9f && own_us[cell] != FLT_MAX / 2;
        bool takes = is_taken(own_us[cell]) && row_us[cell] < 0.0f;
        float ratio = !has_row              ? 1.0f
                      : row_us[cell] > 0.0f ? own_us[cell] / row_us[cell]
                      : own_us[cell] > 0.0f ? 3e9f
                                            : 1.0f;
        if (is_ring && has_row) {
            ring = rings && ring < ratio ? ring : ratio;
            rings = true;
        } else if (!is_ring && (has_row || takes)) {
            others = ratio > others ? ratio : others;
            there = true;
        }
    }
    return rings && ring > 64.0f * (there ? others : 1.0f);
}

void scan_costs(const struct table *table, const struct shape *shape, const struct call *call, struct cost_cells cells,
                bool hands_cells) {
    float own_us[CELLS], row_us[CELLS];
    for (int cell = 0; cell < CELLS; cell++) {
        int algorithm = cell / PROTOCOLS, protocol = cell % PROTOCOLS;
        const struct cost *cost = cost_of(table, shape, call, algorithm, protocol);
        bool there = algorithm < cells.algorithms && protocol < cells.protocols;
        own_us[cell] = there ? cells.us[algorithm * cells.protocols + protocol] : -1.0f;
        row_us[cell] = own_us[cell] >= 0.0f && cost ? cost_us(cost, call) : -1.0f;
        if (row_us[cell] >= 0.0f) {
            cells.us[algorithm * cells.protocols + protocol] = row_us[cell];
        }
    }
    bool reduces = call->collective == 1 || call->collective == 3 || call->collective == 4;
    if (!hands_cells || !reduces || !shape->known || shape->ranks <= 8 || !holds_ring_back(own_us, row_us)) {
        return;
    }
    for (int protocol = 0; protocol < PROTOCOLS; protocol++) {
        float time_us = row_us[ALGORITHM_RING * PROTOCOLS + protocol];
        if (time_us >= 0.0f && time_us < 3e9f) {
            cells.us[ALGORITHM_RING * cells.protocols + protocol] = time_us * 1024.0f > 3e9f ? 3e9f : time_us * 1024.0f;
        }
    }
}

int kept_channels(const struct choice *choice, const struct shape *shape) {
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
        if (is_taken(time_us)) {
            return choice;
        }
        if (!choice->more) {
            break;
        }
    }
    return NULL;
}

/* Whether the fastest Ring takes 256 us for each rank or more, and 64 times as long as the fastest of the others. */
static bool keeps_ring_away(const float *cells, int algorithms, int protocols, size_t ranks) {
    float ring = 3.6e9f, other = 3.6e9f;
    for (int cell = 0; cell < algorithms * protocols; cell++) {
        if (cells[cell] >= 0.0f && cell / protocols == ALGORITHM_RING) {
            ring = cells[cell] < ring ? cells[cell] : ring;
        } else if (cells[cell] >= 0.0f) {
            other = cells[cell] < other ? cells[cell] : other;
        }
    }
    return ring >= 256.0f * (float)ranks && ring < 3e9f && other < 3.6e9f && ring > 64.0f * other;
}

const struct choice *scan_decisions(const struct table *table, const struct shape *shape, const struct call *call,
                                    const float *given, int algorithms, int protocols, bool hands_cells,
                                    uint32_t *line) {
    const struct choice *taken = NULL;
    float cells[16 * 16];
    memcpy(cells, given, (size_t)(algorithms * protocols) * sizeof *cells);
    bool reduces = call->collective == 1 || call->collective == 3 || call->collective == 4;
    if (hands_cells && reduces && shape->known && shape->ranks > 8 &&
        keeps_ring_away(given, algorithms, protocols, shape->ranks)) {
        for (int protocol = 0; protocol < protocols && algorithms > ALGORITHM_RING; protocol++) {
            cells[ALGORITHM_RING * protocols + protocol] = -1.0f;
        }
    }
    *line = 0;
    for (size_t i = 0; !taken && i < table->decision_count; i++) {
        const struct decision *row = &table->decisions[i];
        if (!is_for_call(&row->when, shape, call)) {
            continue;
        }
        bool unknown = is_unknown(&row->when, shape);
        taken = unknown ? NULL : first_possible(&table->choices[row->choice], cells, algorithms, protocols);
        *line = taken ? row->line : 0;
        if (unknown || !table->falls_through) {
            return taken;
        }
    }
    return taken;
}
