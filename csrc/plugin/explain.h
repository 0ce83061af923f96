/* Which rows decide a call, for whoever tries a table without NCCL. Beside NCCL's interface, not a part of it. */
#ifndef PLUGIN_EXPLAIN_H
#define PLUGIN_EXPLAIN_H

#include "call.h"

/* As a plugin of `version` with this context would decide the call, which it neither counts nor answers. Versions 1 and
 * 2 hand over no cells; those of the others are written as the plugin would. */
void nccl_tuner_explain(int version, const void *context, const struct call *call, struct cost_cells cells,
                        struct explanation *explanation);

/* A table that is named again is read again. No communicator may be left, and none in the making. */
void nccl_tuner_forget_tables(void);

#endif
