/* The API of the forcing plugin: the process that measures sets a table while its communicators live.
 *
 * The adapters and the lookup are the plugin's own (csrc/plugin); only what is behind them differs. To force one
 * algorithm and protocol is a table of one row. */
#ifndef FORCE_FORCE_H
#define FORCE_FORCE_H

#include <stddef.h>
#include <stdint.h>

#include "../plugin/abi.h"

/* Since the table was set, of all communicators; and the last call. */
struct nccl_tuner_seen {
    uint64_t calls, decided, costed;
    uint64_t unavailable;  /* calls that matched a row which NCCL cannot run here: its own choice was left */
    uint64_t bytes;        /* of the last call, NCCL's nBytes */
    int32_t collective;    /* of the last call, -1 before the first */
    float costs_us[CELLS]; /* that NCCL handed over, -1 where it ignores; before 2.22: 2e9 for what certainly runs */
};

/* What every communicator of the process follows from its next call on; NULL text: NCCL's own choices. NULL, or why the
 * text is no table: a line number and a reason, valid until the next call; the table before stays then. No collective
 * may be in the making in another thread that was not to follow the new table. */
const char *nccl_tuner_use_table(const char *text, size_t bytes);

void nccl_tuner_see(struct nccl_tuner_seen *seen);

#endif
