/* One call of a tuner, in the words of all versions of the interface. */
#ifndef PLUGIN_CALL_H
#define PLUGIN_CALL_H

#include <stddef.h>
#include <stdint.h>

#include "abi.h"

/* What NCCL says of one operation; a version hands over only what it has arguments for. */
struct call {
    size_t bytes;
    int collective, pipelined;
    int registered;    /* from version 4 on */
    int collnet, nvls; /* versions 1 and 2 */
};

/* What NCCL says when it asks for the size of chunks: version 6. `bytes` are of a part of the operation, mostly one
 * channel's. */
struct chunk_call {
    size_t bytes;
    int collective, algorithm, protocol, channels;
};

/* NCCL's cost table, one float for each algorithm and protocol. */
struct cost_cells {
    float *us;
    int algorithms, protocols;
};

/* The rows that decide one call. Lines of the table; 0 where there is none. */
struct explanation {
    uint32_t decision;     /* of the row whose choice is taken */
    uint32_t unavailable;  /* where none is taken: of the first row that matches, of which NCCL can run nothing */
    uint32_t costs[CELLS]; /* of the rows that give the cells' times */
};

#endif
