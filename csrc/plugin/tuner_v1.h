/* What the communicators of NCCL 2.19 and 2.20 share. */
#ifndef PLUGIN_TUNER_V1_H
#define PLUGIN_TUNER_V1_H

#include "tuner.h"

/* NULL where NCCL decides. */
const struct tuner *tuner_v1_deciding(void);

/* Frees what communicators that are gone have left. */
void tuner_v1_forget(void);

#endif
