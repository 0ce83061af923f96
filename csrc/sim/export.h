#ifndef NCCL_TUNER_SIM_EXPORT_H
#define NCCL_TUNER_SIM_EXPORT_H

/* What functions of NCCL, CUDA and NVML return: ncclResult_t, cudaError_t, CUresult, nvmlReturn_t; 0 is a success. */
typedef int status;

#define SIM_EXPORT __attribute__((visibility("default")))
#define SIM_UNUSED __attribute__((unused))

#endif
