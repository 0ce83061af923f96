/* What NCCL's side of the tuner interface looks like, for every version of it: numbers and types only, declared anew.
 * Checked against src/include/plugin/{nccl_tuner.h,tuner/} and src/include/nccl_common.h of the releases named. */
#ifndef PLUGIN_ABI_H
#define PLUGIN_ABI_H

#include <stddef.h>
#include <stdint.h>

/* ncclResult_t. Only init ever answers anything but success, and only with NCCL_TUNER_STRICT. */
enum { RESULT_SUCCESS = 0, RESULT_INVALID_USAGE = 5 };

/* ncclFunc_t: only the first five are tuned. */
enum {
    COLLECTIVE_REDUCE = 1,
    COLLECTIVE_ALL_GATHER = 2,
    COLLECTIVE_REDUCE_SCATTER = 3,
    COLLECTIVE_ALL_REDUCE = 4,
    COLLECTIVES = 5,
};

/* MAXCHANNELS since 2.25.1, NCCL_ALGO_* and NCCL_PROTO_* (PAT since 2.23.4). */
enum { MAX_CHANNELS = 64, ALGORITHMS = 7, PROTOCOLS = 3, CELLS = ALGORITHMS * PROTOCOLS };

enum {
    ALGORITHM_TREE = 0,
    ALGORITHM_RING = 1,
    ALGORITHM_COLLNET_DIRECT = 2,
    ALGORITHM_COLLNET_CHAIN = 3,
    ALGORITHM_NVLS = 4,
    ALGORITHM_NVLS_TREE = 5,
    ALGORITHM_PAT = 6,
};

enum { PROTOCOL_LL = 0, PROTOCOL_LL128 = 1, PROTOCOL_SIMPLE = 2 };

/* NCCL_ALGO_PROTO_IGNORE */
#define IGNORED_US (-1.0f)

/* ncclDebugLogger_t, ncclDebugLogLevel and ncclDebugLogSubSys: enums there, passed as ints. */
typedef void (*nccl_logger)(int level, unsigned long flags, const char *file, int line, const char *format, ...);

enum { LEVEL_WARN = 2, LEVEL_INFO = 3 };

#define SUBSYSTEM_INIT 0x1ul
#define SUBSYSTEM_TUNING 0x40ul
#define SUBSYSTEM_ALL (~0ul)

_Static_assert(sizeof(size_t) == 8 && sizeof(void *) == 8, "NCCL is 64-bit only, and so are the sizes in a table");
_Static_assert(sizeof(int) == 4 && sizeof(float) == 4, "the types NCCL passes");

/* One call of a tuner, in the words of all versions of the interface. */

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
    uint32_t undecided;    /* 1 where the table writes nothing, so that another tuner would be asked */
};

#endif
