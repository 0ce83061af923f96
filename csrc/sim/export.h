#ifndef NCCL_TUNER_SIM_EXPORT_H
#define NCCL_TUNER_SIM_EXPORT_H

#define SIM_EXPORT __attribute__((visibility("default")))
#define SIM_UNUSED __attribute__((unused))

#endif
