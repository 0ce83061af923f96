/* What has to hold whatever the table and the call: the same rules once more, the straightforward way, row by row.
 * A check that fails says where, and aborts. */
#ifndef CHECK_CHECKS_H
#define CHECK_CHECKS_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "../abi.h"
#include "../parse.h"
#include "../table.h"
#include "source.h"

#define CHECK(condition)                                                        \
    do {                                                                        \
        if (!(condition)) {                                                     \
            fprintf(stderr, "%s:%d: not %s\n", __FILE__, __LINE__, #condition); \
            abort();                                                            \
        }                                                                       \
    } while (0)

enum { LEAST_VERSION = 1, MOST_VERSION = 7 };

/* Parses, and holds lookup and costs against a scan of the rows at the ends of every interval and at `queries` drawn
 * points. Whether the text is a table. */
bool check_text(struct slice text, struct source *source, int queries);

/* A communicator opened through one of the exported plugins. `table` is what its file says: the caller's, and empty
 * where the file is none. */
struct communicator {
    int version;
    void *context;
    struct shape shape;
    const struct table *table;
    size_t domains; /* of NVLink, which versions 5 and 6 say; 0: not said */
    bool unchecked; /* NCCL_TUNER_UNCHECKED=1 */
    bool shared;    /* others of version 1 with another shape may be open: no single answer is right */
};

void communicator_open(struct communicator *communicator, int version, size_t ranks, size_t nodes, bool logs);
void communicator_close(struct communicator *communicator);

/* One call with drawn arguments, what it writes held against the table. */
void check_call(const struct communicator *communicator, struct source *source);

#endif
