/* NCCL 2.19 to 2.21 hand over no cost table: a tuner names a choice, and NCCL runs it unchecked. Here is a cost table
 * for them, in which everything is ignored that may not run. */
#ifndef PLUGIN_LEGACY_H
#define PLUGIN_LEGACY_H

#include <stdbool.h>

#include "abi.h"
#include "call.h"
#include "shape.h"

/* `unchecked` adds what runs on some communicators: LL128 needs GPUs, links and adapters that NCCL does not name here,
 * CollNet more than the support that it does. */
void legacy_fill(float cells[CELLS], const struct call *call, const struct shape *shape, bool unchecked);

/* The cell that NCCL 2.22 would take, or -1 when all are ignored. */
int legacy_fastest(const float cells[CELLS]);

#endif
