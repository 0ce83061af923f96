/* The tuner that comes after this plugin: it is asked where the table writes nothing. What it answers stays as it is;
 * what goes wrong in it is said, and never becomes NCCL's concern. Functions that take a chain take NULL too. */
#ifndef PLUGIN_CHAIN_H
#define PLUGIN_CHAIN_H

#include "interface.h"

struct chain;

/* For one communicator; `name` is NCCL_TUNER_NEXT, or NULL. NULL where no other tuner is to be asked. */
struct chain *chain_open(const char *name, const struct opening *opening);
void chain_close(struct chain *chain);

/* Version 1 of the interface, whose calls are of all communicators: each further one, and the end of each. */
void chain_join(struct chain *chain, const struct opening *opening);
void chain_leave(struct chain *chain);

/* One call that the table leaves, from version 3 on, and before. */
void chain_decide(struct chain *chain, const struct call *call, struct cost_cells cells, int *channels);
void chain_choose(struct chain *chain, const struct call *call, int *algorithm, int *protocol, int *channels);

/* One call that the table decides: a chunk size of that collective is not the other tuner's. */
void chain_pass_by(struct chain *chain, int collective);

bool chain_sets_chunks(const struct chain *chain);
void chain_chunk(struct chain *chain, const struct chunk_call *call, size_t *chunk_bytes);

#endif
