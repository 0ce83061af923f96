/* The decisions that apply to one communicator, cut at init into steps of sizes so that a call is one short search. */
#ifndef PLUGIN_RULES_H
#define PLUGIN_RULES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "abi.h"
#include "steps.h"
#include "table.h"

/* What sizes from one step to the next get: the first choice of the first row that holds them. What most calls read of
 * it is here, beside the search, and the rest with its number. */
struct step {
    int8_t algorithm; /* as in struct choice, and so are the others */
    int8_t protocol;
    int8_t channels;
    uint8_t more : 1, own : 1, explores : 1, sets_chunk : 1;
    uint32_t number; /* among the lookup's choices, where the others of the row follow */
};

/* Steps side by side, and the last size of each: two cache lines, of which the second is asked for before the first has
 * said which step it is. Steps that a leaf does not have end at SIZE_MAX. */
struct leaf {
    size_t ends[SEARCH_WIDTH];
    struct step steps[SEARCH_WIDTH];
};

struct plane {
    struct search search; /* which leaf; without levels where there is one */
    struct leaf *leaves;
};

/* One plane for each class of pipelined operations, and those twice where rows ask for registered buffers. */
struct function {
    struct plane *planes;
    struct falls *falls;                /* one for each plane, or NULL: a table whose rows do not fall through */
    uint32_t ends[MOST_PIPELINED_ENDS]; /* where the classes after the first begin, sorted */
    uint32_t end_count;
    uint32_t registered; /* how many planes further on registered buffers are; 0 where no row asks */
};

struct lookup {
    struct choice *choices;           /* [0] is NCCL's own */
    uint32_t *lines;                  /* of the rows that the choices are of */
    struct step nothing;              /* [0] as a step */
    const struct schedule *schedules; /* the table's */
    struct function functions[COLLECTIVES];
    size_t rows;              /* that apply to this communicator */
    size_t shapeless;         /* that ask for a communicator which is not known: NCCL decides where they would */
    size_t channels_withheld; /* choices whose channels NCCL would use unchecked */
};

/* False when there is no memory; the lookup is empty then. */
bool lookup_build(const struct table *table, const struct shape *shape, struct lookup *lookup);
void lookup_free(struct lookup *lookup);

static inline uint32_t lookup_plane(const struct function *function, const struct call *call) {
    uint32_t plane = 0;
    while (plane < function->end_count && call->pipelined >= 0 && function->ends[plane] <= (uint32_t)call->pipelined) {
        plane++;
    }
    return plane + (call->registered ? function->registered : 0);
}

static inline bool lookup_is_tuned(int collective) {
    return (unsigned)collective < COLLECTIVES;
}

/* The first choice of the first row that holds the call; NCCL's own where there is none. Never NULL. Here, for it is most
 * of a call. */
static inline const struct step *lookup_find(const struct lookup *lookup, const struct call *call) {
    if (!lookup_is_tuned(call->collective)) {
        return &lookup->nothing;
    }
    const struct function *function = &lookup->functions[call->collective];
    const struct plane *plane = &function->planes[lookup_plane(function, call)];
    const struct leaf *leaf = &plane->leaves[search_find(&plane->search, call->bytes)];
    __builtin_prefetch(leaf->steps);
    return &leaf->steps[search_line(leaf->ends, call->bytes)];
}

/* A choice as a step. */
static inline struct step lookup_step(const struct lookup *lookup, uint32_t number) {
    const struct choice *choice = &lookup->choices[number];
    return (struct step){.algorithm = choice->algorithm,
                         .protocol = choice->protocol,
                         .channels = choice->channels,
                         .more = choice->more,
                         .own = choice->own,
                         .explores = choice->explores > 0,
                         .sets_chunk = choice->chunk_bytes > 0,
                         .number = number};
}

/* Of a tuned collective, where rows fall through and NCCL can run nothing of the first: the number of the choice of the
 * first row whose cell has its bit in `runnable` (of cells_runnable); 0 where there is none. */
uint32_t lookup_fall(const struct lookup *lookup, const struct call *call, uint32_t runnable);

/* The line of the row that a choice is of, by its number; 0 for NCCL's own. */
static inline uint32_t lookup_line(const struct lookup *lookup, uint32_t number) {
    return lookup->lines[number];
}

/* The table's own times: which rows of `cost` apply to one communicator, and what they make of a call's cells. */

/* What time = latency * ceil(pipelined / batch) + bytes / kilobytes_per_ms needs. */
struct rate {
    float latency_us;
    float bytes_per_us; /* 1000 times the bandwidth in GB/s, rounded as NCCL rounds it; 0: never */
    uint32_t batch;
};

/* The steps' values are numbers of rates, from 1. */
struct costed {
    struct steps steps;
    int8_t algorithm, protocol;
};

struct costs {
    struct rate *rates;
    uint32_t *lines; /* of the rows that the rates are of */
    struct costed cells[COLLECTIVES][CELLS];
    int counts[COLLECTIVES];
    size_t rows;      /* that apply to this communicator */
    size_t shapeless; /* that ask for a communicator which is not known: they have no effect */
};

/* False when there is no memory; the costs are empty then. */
bool costs_build(const struct table *table, const struct shape *shape, struct costs *costs);
void costs_free(struct costs *costs);

/* Writes the times of one call into the cells that NCCL does not ignore; how many it wrote. `guarded`: NCCL may hold
 * Ring back there (guard.h), and the table's times follow. `counts`, where not NULL: one for each row
 * of the table, of the calls to which it gave a time. */
int costs_write(const struct costs *costs, const struct call *call, struct cost_cells cells, bool guarded,
                atomic_size_t *counts);

/* The line of the row that gives the time of a cell that NCCL does not ignore; 0 where none does. */
uint32_t costs_line(const struct costs *costs, int collective, size_t bytes, int algorithm, int protocol);

/* What a table says to communicators of one size: built once for all that are alike, and never changed. */

struct rules {
    struct shape shape;
    struct lookup lookup;
    struct costs costs;
};

/* False when there is no memory; there is nothing to free then. */
bool rules_build(const struct table *table, const struct shape *shape, struct rules *rules);
void rules_free(struct rules *rules);

#endif
