/* NVML of one host: which GPUs there are. Links come from the topology file, so link queries are "not supported". */
#include "sim.h"

typedef int status; /* nvmlReturn_t */
typedef void *device;

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6 };

static device handle_of(int index) { return (device)(uintptr_t)(index + 1); }
static int index_of(device handle) { return (int)(uintptr_t)handle - 1; }

SIM_EXPORT status nvmlInit(void) { return SUCCESS; }
SIM_EXPORT status nvmlInit_v2(void) { return SUCCESS; }
SIM_EXPORT status nvmlShutdown(void) { return SUCCESS; }

SIM_EXPORT const char *nvmlErrorString(status result) {
  return result == SUCCESS ? "success" : result == NOT_SUPPORTED ? "not supported" : "simulated NVML error";
}

SIM_EXPORT status nvmlDeviceGetCount_v2(unsigned int *count) {
  *count = (unsigned int)sim_machine.gpus_per_host;
  return SUCCESS;
}

SIM_EXPORT status nvmlDeviceGetCount(unsigned int *count) { return nvmlDeviceGetCount_v2(count); }

SIM_EXPORT status nvmlDeviceGetHandleByIndex(unsigned int index, device *handle) {
  if (index >= (unsigned int)sim_machine.gpus_per_host) return INVALID_ARGUMENT;
  *handle = handle_of((int)index);
  return SUCCESS;
}

SIM_EXPORT status nvmlDeviceGetHandleByPciBusId(const char *bus_id, device *handle) {
  int index = sim_device_of_bus_id(bus_id, 0);
  if (index < 0) return NOT_FOUND;
  *handle = handle_of(index);
  return SUCCESS;
}

SIM_EXPORT status nvmlDeviceGetIndex(device handle, unsigned int *index) {
  *index = (unsigned int)index_of(handle);
  return SUCCESS;
}

SIM_EXPORT status nvmlDeviceGetCudaComputeCapability(device handle, int *major, int *minor) {
  *major = sim_device_attribute(75, index_of(handle));
  *minor = sim_device_attribute(76, index_of(handle));
  return SUCCESS;
}

SIM_EXPORT status nvmlDeviceGetP2PStatus(device a, device b, int capability SIM_UNUSED, int *peer_status) {
  *peer_status = sim_peers(index_of(a), index_of(b)) ? 0 : 1; /* usable; the chipset does not support it */
  return SUCCESS;
}

SIM_EXPORT status nvmlDeviceGetNvLinkState(device handle SIM_UNUSED, unsigned int link SIM_UNUSED,
                                           int *active SIM_UNUSED) {
  return NOT_SUPPORTED;
}

SIM_EXPORT status nvmlDeviceGetNvLinkRemotePciInfo(device handle SIM_UNUSED, unsigned int link SIM_UNUSED,
                                                   void *info SIM_UNUSED) {
  return NOT_SUPPORTED;
}

SIM_EXPORT status nvmlDeviceGetNvLinkCapability(device handle SIM_UNUSED, unsigned int link SIM_UNUSED,
                                                int capability SIM_UNUSED, unsigned int *result SIM_UNUSED) {
  return NOT_SUPPORTED;
}

SIM_EXPORT status nvmlDeviceGetFieldValues(device handle SIM_UNUSED, int count SIM_UNUSED, void *values SIM_UNUSED) {
  return NOT_SUPPORTED;
}

SIM_EXPORT status nvmlDeviceGetGpuFabricInfoV(device handle SIM_UNUSED, void *info SIM_UNUSED) {
  return NOT_SUPPORTED;
}

/* NCCL 2.30 asks for what the topology file does not say, without looking whether NVML has the function. */
SIM_EXPORT status nvmlDeviceGetPciInfo_v3(device handle SIM_UNUSED, void *info SIM_UNUSED) { return NOT_SUPPORTED; }
SIM_EXPORT status nvmlDeviceGetPciInfoExt(device handle SIM_UNUSED, void *info SIM_UNUSED) { return NOT_SUPPORTED; }

SIM_EXPORT status nvmlDeviceGetCurrPcieLinkGeneration(device handle SIM_UNUSED, unsigned int *generation SIM_UNUSED) {
  return NOT_SUPPORTED;
}

SIM_EXPORT status nvmlDeviceGetCurrPcieLinkWidth(device handle SIM_UNUSED, unsigned int *width SIM_UNUSED) {
  return NOT_SUPPORTED;
}

SIM_EXPORT status nvmlDeviceGetPcieLinkMaxSpeed(device handle SIM_UNUSED, unsigned int *speed SIM_UNUSED) {
  return NOT_SUPPORTED;
}

SIM_EXPORT status nvmlDeviceGetNvLinkRemoteDeviceType(device handle SIM_UNUSED, unsigned int link SIM_UNUSED,
                                                      int *kind SIM_UNUSED) {
  return NOT_SUPPORTED;
}

SIM_EXPORT status nvmlDeviceGetMemoryErrorCounter(device handle SIM_UNUSED, int error SIM_UNUSED,
                                                  int counter SIM_UNUSED, int location SIM_UNUSED,
                                                  unsigned long long *count SIM_UNUSED) {
  return NOT_SUPPORTED;
}

SIM_EXPORT status nvmlDeviceGetName(device handle SIM_UNUSED, char *name SIM_UNUSED, unsigned int chars SIM_UNUSED) {
  return NOT_SUPPORTED;
}

SIM_EXPORT status nvmlSystemGetDriverVersion(char *version SIM_UNUSED, unsigned int chars SIM_UNUSED) {
  return NOT_SUPPORTED;
}

SIM_EXPORT status nvmlDeviceGetPlatformInfo(device handle SIM_UNUSED, void *info SIM_UNUSED) { return NOT_SUPPORTED; }
SIM_EXPORT status nvmlSystemGetConfComputeState(void *state SIM_UNUSED) { return NOT_SUPPORTED; }
SIM_EXPORT status nvmlSystemGetConfComputeSettings(void *settings SIM_UNUSED) { return NOT_SUPPORTED; }
