/* The tuner itself, the same behind every version of the interface: an adapter only hands arguments through. */
#ifndef PLUGIN_TUNER_H
#define PLUGIN_TUNER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "abi.h"

struct tuner;
struct opening;

/* *tuner becomes the communicator's tuner, or NULL when there is nothing to do: no table asked for, or a table that
 * cannot be used. Says which in the log. A ncclResult_t: not a success only with NCCL_TUNER_STRICT, where no
 * table can be used. */
int tuner_open(const struct opening *opening, struct tuner **tuner);

/* Of the functions below each takes a tuner that is NULL, and writes nothing then. */

/* What the table says about one call: writes into the cost cells and the channels (which may be NULL); where it leaves
 * the call, what the tuner says that comes next, or nothing. */
void tuner_decide(struct tuner *tuner, const struct call *call, struct cost_cells cells, int *channels);

/* The same where NCCL hands over no cells: names the choice, of what certainly runs, or leaves it. */
void tuner_choose(struct tuner *tuner, const struct call *call, int *algorithm, int *protocol, int *channels);

/* Whether chunk sizes may be said, by a row of the table (for whichever communicator) or by the tuner that comes next. */
bool tuner_sets_chunks(const struct tuner *tuner);

/* The chunk size of the last decision about this collective, where NCCL runs what it says. */
void tuner_chunk(struct tuner *tuner, const struct chunk_call *call, size_t *chunk_bytes);

/* Whether NCCL_TUNER_UNCHECKED is set. */
bool tuner_is_unchecked(const struct tuner *tuner);

/* Whether another tuner is asked where the table leaves a call. */
bool tuner_is_chained(const struct tuner *tuner);

/* Says how often it was asked and frees everything. */
void tuner_close(struct tuner *tuner);

/* Version 1, whose calls are of all communicators: another one, the end of each, and that the table has no
 * say from here on; false where it had none. */
void tuner_join(struct tuner *tuner, const struct opening *opening);
void tuner_leave(struct tuner *tuner);
bool tuner_silence(struct tuner *tuner);

/* Of the adapter of version 1: the tuner that its calls reach, NULL where NCCL decides; and the end of what communicators
 * that are gone have left. */
const struct tuner *tuner_v1_deciding(void);
void tuner_v1_forget(void);

/* What a table can be tried by: interface.h. Of the forcing plugin's tuner there is nothing in it. */
struct trial;
extern const struct trial tuner_trial;

#endif
