/* Which library's tuner comes after this plugin: the one that is named, and else the one that NCCL would have used. */
#ifndef PLUGIN_CHAIN_LIBRARY_H
#define PLUGIN_CHAIN_LIBRARY_H

#include <stdbool.h>

#include "chain_calls.h"

struct next_library {
    void *handle;
    const char *path; /* belongs to the library */
    struct next_tuner tuner;
};

/* `name` is NCCL_TUNER_NEXT, or NULL; `newest` the version that NCCL calls this plugin by. False where there is none,
 * and where a library was named or is a tuner's the log says why. */
bool chain_find(const char *name, int newest, nccl_logger logger, struct next_library *found);

void chain_let_go(const struct next_library *library);

#endif
