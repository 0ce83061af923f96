/* Calls of a tuner of another library, through whichever version of the interface it has. */
#ifndef PLUGIN_CHAIN_CALLS_H
#define PLUGIN_CHAIN_CALLS_H

#include <stdbool.h>

#include "call.h"
#include "opening.h"

enum { OLDEST_VERSION = 1, NEWEST_VERSION = 6 };

struct next_tuner {
    const void *plugin; /* struct plugin_v1 to v6 */
    int version;
    void *context; /* of one communicator; none in version 1 */
};

/* Whether all functions are there that NCCL calls unasked. */
bool next_is_whole(const struct next_tuner *next);

const char *next_name(const struct next_tuner *next);

/* Each returns what the tuner does, a ncclResult_t. */
int next_init(struct next_tuner *next, const struct opening *opening);
int next_close(const struct next_tuner *next);

/* Where NCCL hands over its cost table. Versions 1 and 2 name a choice, which becomes that cell at no cost. */
int next_decide(const struct next_tuner *next, const struct call *call, struct cost_cells cells, int *channels);

/* Where it does not: versions 1 and 2 only. */
int next_choose(const struct next_tuner *next, const struct call *call, int *algorithm, int *protocol, int *channels);

/* Whether it says chunk sizes: version 6, and there it need not. */
bool next_sets_chunks(const struct next_tuner *next);

/* Where it does; a success without effect elsewhere. */
int next_chunk(const struct next_tuner *next, const struct chunk_call *call, size_t *chunk_bytes);

#endif
