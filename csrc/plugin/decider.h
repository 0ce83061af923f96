/* What one table says about the calls of one communicator: rules that others may share, and what changes with the
 * calls. */
#ifndef PLUGIN_DECIDER_H
#define PLUGIN_DECIDER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "abi.h"
#include "counters.h"
#include "explorer.h"
#include "rules.h"

struct decider {
    const struct rules *rules;
    bool unchecked;
    bool guarded;                          /* NCCL may hold Ring back: cells.h */
    float guard_us;                        /* a row for Ring is taken below this time whatever the type */
    struct explorer *explorer;             /* NULL: rows that explore leave the choice to NCCL */
    _Atomic(uint64_t) chunks[COLLECTIVES]; /* of the last decision each: chunk_key and the size */
    struct counters counters;              /* counters_start comes before the first call */
};

/* The rules have to live as long. `hands_cells`: NCCL hands over its times. */
void decider_start(const struct rules *rules, bool hands_cells, bool unchecked, struct decider *decider);

/* What became of a call: nothing was written, and another tuner may say something; nothing was, and the table says that
 * the choice is NCCL's own; cells were. */
enum decided { DECIDED_NOTHING, DECIDED_OWN, DECIDED_CELLS };

/* One call: writes into the cells and the channels (which may be NULL). A choice of Ring counts as one that cannot run
 * where NCCL holds Ring back for a sum of eight bits. */
enum decided decider_decide(struct decider *decider, const struct call *call, struct cost_cells cells, int *channels);

/* The same where NCCL hands over no cells, over those of legacy_fill: names the choice, or leaves it. */
enum decided decider_choose(struct decider *decider, const struct call *call, float cells[CELLS], int *algorithm,
                            int *protocol, int *channels);

/* The chunk size of the last decision about this collective, where NCCL runs what it says. */
void decider_chunk(const struct decider *decider, int collective, int algorithm, int protocol, size_t *chunk_bytes);

/* Which rows decide a call; writes into the cells as decider_decide does, and counts nothing. */
void decider_explain(const struct decider *decider, const struct call *call, struct cost_cells cells,
                     struct explanation *explanation);

#endif
