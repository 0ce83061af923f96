#include "lookup.h"

#include <stdlib.h>

static const struct choice no_choice = {-1, -1, 0};

/* NCCL caps a plugin's channels at what the communicator has, except in these algorithms: there it starts as many as
 * it is told (scheduleCollTasksToPlan, src/enqueue.cc, 2.28 and 2.29), and a channel that was never set up is a crash.
 * A plugin is not told how many there are, so NCCL's own number stays. */
static bool channels_are_unchecked(int algorithm, size_t nodes) {
    return algorithm == ALGORITHM_COLLNET_DIRECT || algorithm == ALGORITHM_COLLNET_CHAIN ||
           (algorithm == ALGORITHM_NVLS && nodes > 1);
}

static struct choice choice_of(const struct row *row, size_t nodes) {
    bool withheld = channels_are_unchecked(row->algorithm, nodes);
    return (struct choice){(int8_t)row->algorithm, (int8_t)row->protocol, (int8_t)(withheld ? 0 : row->channels)};
}

static bool same_choice(struct choice a, struct choice b) {
    return a.algorithm == b.algorithm && a.protocol == b.protocol && a.channels == b.channels;
}

static bool applies(const struct row *row, int collective, size_t ranks, size_t nodes) {
    return row->collective == collective && interval_holds(row->ranks, ranks) && interval_holds(row->nodes, nodes);
}

static int compare_sizes(const void *left, const void *right) {
    size_t a = *(const size_t *)left, b = *(const size_t *)right;
    return (a > b) - (a < b);
}

/* Every size at which the first matching row may change: sorted, each once, 0 included. */
static size_t collect_starts(const struct row *const *rows, size_t count, size_t *starts) {
    size_t found = 0;
    starts[found++] = 0;
    for (size_t i = 0; i < count; i++) {
        starts[found++] = rows[i]->bytes.low;
        if (rows[i]->bytes.high != SIZE_MAX) {
            starts[found++] = rows[i]->bytes.high + 1;
        }
    }
    qsort(starts, found, sizeof *starts, compare_sizes);
    size_t kept = 1;
    for (size_t i = 1; i < found; i++) {
        if (starts[i] != starts[kept - 1]) {
            starts[kept++] = starts[i];
        }
    }
    return kept;
}

/* The last start at or below `bytes`. Arithmetic, not a branch: sizes come in no order a processor could predict. */
static size_t find_step(const size_t *starts, size_t count, size_t bytes) {
    const size_t *base = starts;
    while (count > 1) {
        size_t half = count / 2;
        base += half & (0 - (size_t)(base[half] <= bytes));
        count -= half;
    }
    return (size_t)(base - starts);
}

/* `skip[i]` leads from a taken step towards the next free one; paths are halved on the way, so that the whole
 * painting takes about as long as the table has rows, however much they overlap. */
static size_t next_free(size_t *skip, size_t step) {
    while (skip[step] != step) {
        skip[step] = skip[skip[step]];
        step = skip[step];
    }
    return step;
}

/* The first row that matches wins: each row in its order takes the steps it holds that nobody has taken. */
static void paint(const struct row *const *rows, size_t count, size_t nodes, struct steps *steps, size_t *skip) {
    for (size_t i = 0; i <= steps->count; i++) {
        skip[i] = i; /* the one past the end is never taken, so a search always ends */
    }
    for (size_t i = 0; i < steps->count; i++) {
        steps->choices[i] = no_choice;
    }
    for (size_t i = 0; i < count; i++) {
        size_t last = find_step(steps->starts, steps->count, rows[i]->bytes.high);
        size_t step = next_free(skip, find_step(steps->starts, steps->count, rows[i]->bytes.low));
        while (step <= last) {
            steps->choices[step] = choice_of(rows[i], nodes);
            skip[step] = step + 1;
            step = next_free(skip, step);
        }
    }
}

/* Neighbours that say the same become one. */
static void merge(struct steps *steps) {
    size_t kept = 1;
    for (size_t i = 1; i < steps->count; i++) {
        if (!same_choice(steps->choices[i], steps->choices[kept - 1])) {
            steps->starts[kept] = steps->starts[i];
            steps->choices[kept] = steps->choices[i];
            kept++;
        }
    }
    steps->count = kept;
}

/* Memory is for the process's whole life: the parts that merging freed go back. */
static void trim(struct steps *steps) {
    size_t *starts = realloc(steps->starts, steps->count * sizeof *starts);
    struct choice *choices = realloc(steps->choices, steps->count * sizeof *choices);
    steps->starts = starts ? starts : steps->starts;
    steps->choices = choices ? choices : steps->choices;
}

static bool build_steps(const struct row *const *rows, size_t count, size_t nodes, struct steps *steps) {
    size_t most = 2 * count + 1;
    size_t *skip = malloc((most + 1) * sizeof *skip);
    steps->starts = malloc(most * sizeof *steps->starts);
    steps->choices = malloc(most * sizeof *steps->choices);
    bool built = skip && steps->starts && steps->choices;
    if (built) {
        steps->count = collect_starts(rows, count, steps->starts);
        paint(rows, count, nodes, steps, skip);
        merge(steps);
        trim(steps);
    }
    free(skip);
    return built;
}

static size_t select_rows(const struct table *table, int collective, size_t ranks, size_t nodes,
                          const struct row **selected) {
    size_t count = 0;
    for (size_t i = 0; i < table->count; i++) {
        if (applies(&table->rows[i], collective, ranks, nodes)) {
            selected[count++] = &table->rows[i];
        }
    }
    return count;
}

bool lookup_build(const struct table *table, size_t ranks, size_t nodes, struct lookup *lookup) {
    *lookup = (struct lookup){0};
    const struct row **selected = malloc((table->count + 1) * sizeof *selected);
    bool built = selected != NULL;
    for (int collective = 0; built && collective < COLLECTIVES; collective++) {
        size_t count = select_rows(table, collective, ranks, nodes, selected);
        built = build_steps(selected, count, nodes, &lookup->steps[collective]);
        lookup->rows += count;
        for (size_t i = 0; i < count; i++) {
            lookup->channels_withheld +=
                selected[i]->channels > 0 && channels_are_unchecked(selected[i]->algorithm, nodes);
        }
    }
    free(selected);
    if (!built) {
        lookup_free(lookup);
    }
    return built;
}

void lookup_free(struct lookup *lookup) {
    for (int collective = 0; collective < COLLECTIVES; collective++) {
        free(lookup->steps[collective].starts);
        free(lookup->steps[collective].choices);
    }
    *lookup = (struct lookup){0};
}

struct choice lookup_find(const struct lookup *lookup, int collective, size_t bytes) {
    if (collective < 0 || collective >= COLLECTIVES) {
        return no_choice;
    }
    const struct steps *steps = &lookup->steps[collective];
    return steps->choices[find_step(steps->starts, steps->count, bytes)];
}
