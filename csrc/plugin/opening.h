/* A new communicator, and what NCCL says of it. */
#ifndef PLUGIN_OPENING_H
#define PLUGIN_OPENING_H

#include <stdbool.h>

#include "abi.h"
#include "shape.h"

#define TUNER_NAME "nccl-tuner"

struct domains;

struct opening {
    struct shape shape;      /* where it is not known whose calls will come, that of the first who might */
    int version;             /* of the interface, that NCCL calls by */
    bool hands_cells;        /* NCCL hands over its cost table, in which what it cannot run is ignored: 2.22 on */
    bool chained;            /* another tuner is asked where the table leaves a call */
    double *constants;       /* of NCCL's model, which may be changed; NULL where it does not hand them over */
    uint64_t communicator;   /* from version 5 on */
    struct domains *domains; /* from version 5 on */
    nccl_logger logger;
};

#endif
