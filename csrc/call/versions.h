/* Calls of the exported plugins as NCCL makes them, whatever the version of the interface. */
#ifndef CALL_VERSIONS_H
#define CALL_VERSIONS_H

#include <stdbool.h>
#include <stddef.h>

#include "../plugin/abi.h"

/* A communicator as NCCL describes it; 0 NVLink domains are not said, as before version 5. */
struct call_communicator {
    size_t ranks, nodes;
    int domains;
};

/* Each returns what the plugin does, a ncclResult_t. Version 1 has no context, and constants from 5 on. */
int call_init(int version, const struct call_communicator *communicator, nccl_logger logger, double *constants,
              void **context);
int call_finalize(int version, void *context);

/* Versions 3 to 7. */
int call_with_costs(int version, void *context, const struct call *call, struct cost_cells cells, int *channels);

/* Versions 1 and 2. */
int call_by_name(int version, void *context, const struct call *call, int *algorithm, int *protocol, int *channels);

/* Versions 6 and 7: a success without effect where the plugin says no chunk sizes. */
int call_chunk_size(int version, void *context, const struct chunk_call *call, size_t *chunk_bytes);

/* Which rows decide a call (interface.h); false in the plugin that forces, which does not say it. */
bool call_explain(int version, const void *context, const struct call *call, struct cost_cells cells,
                  struct explanation *explanation);

/* Has a table that is named again read again; no communicator may be left. */
void call_forget_tables(void);

#endif
