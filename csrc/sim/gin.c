/* Transfers that GPUs start themselves (GPU-initiated networking, GIN), by the network's adapters: only set-up is asked.
 *
 * Offered where NCCL_GIN_TYPE asks for the type that this is, and without it where NCCL_TUNER_SIM_GIN says so. Interfaces
 * v11 (NCCL 2.29.2 and 2.29.3), v12 (2.29.7 to 2.30.4) and v14 (2.30.7 on).
 */
#include <stdint.h>
#include <stdlib.h>

#include "export.h"
#include "machine.h"
#include "net.h"

enum { GDAKI = 3 }; /* ncclNetDeviceType: the GPU's kernel rings the adapter's doorbell */

/* ncclNetDeviceHandle_v11_t: what kernels would be given. */
struct device_handle {
    int type;
    int version;
    void *handle;
    size_t bytes;
    int needs_progress;
};

static int token;
static struct device_handle handle = {GDAKI, 0, &token, sizeof token, 0};

static status init(void **context, uint64_t communicator SIM_UNUSED, void *log SIM_UNUSED) {
    return sim_net_hand_out(context);
}

static status devices(int *count) {
    const char *type = getenv("NCCL_GIN_TYPE");
    int offered = type != NULL && *type ? strtoll(type, NULL, 0) == GDAKI : getenv("NCCL_TUNER_SIM_GIN") != NULL;
    *count = offered ? sim_own_host()->nets_per_host : 0;
    return SUCCESS;
}

static status get_properties_v11(int index, struct sim_net_properties_v11 *properties) {
    struct sim_net_properties_v9 known;
    status result = sim_net_properties_v9(index, &known);
    *properties = (struct sim_net_properties_v11){known, 1};
    properties->known.common.device_type = GDAKI;
    return result;
}

static status get_properties_v12(int index, struct sim_net_properties_v12 *properties) {
    status result = sim_net_properties_v12(index, properties);
    properties->common.device_type = GDAKI;
    return result;
}

/* ncclGinProperties_v14_t. */
struct abilities {
    _Bool strong_signals;
    _Bool signals_by_address;
};

static status abilities(struct abilities *can) {
    *can = (struct abilities){1, 1};
    return SUCCESS;
}

static status listen_in(void *context SIM_UNUSED, int index SIM_UNUSED, void *address SIM_UNUSED, void **comm) {
    return sim_net_hand_out(comm);
}

static status connect_v11(void *context SIM_UNUSED, void *addresses[] SIM_UNUSED, int ranks SIM_UNUSED,
                          int rank SIM_UNUSED, void *listening SIM_UNUSED, void **comm) {
    return sim_net_hand_out(comm);
}

static status connect_v12(void *context SIM_UNUSED, void *addresses[] SIM_UNUSED, int ranks SIM_UNUSED,
                          int rank SIM_UNUSED, int connections SIM_UNUSED, int depth SIM_UNUSED,
                          void *listening SIM_UNUSED, void **comm) {
    return sim_net_hand_out(comm);
}

static status hand_out_context(void **context, struct device_handle **device) {
    *device = &handle;
    return sim_net_hand_out(context);
}

static status create_context_v11(void *comm SIM_UNUSED, int signals SIM_UNUSED, int counters SIM_UNUSED, void **context,
                                 struct device_handle **device) {
    return hand_out_context(context, device);
}

static status create_context_v12(void *comm SIM_UNUSED, int signals SIM_UNUSED, int counters SIM_UNUSED,
                                 int contexts SIM_UNUSED, void **context, struct device_handle **device) {
    return hand_out_context(context, device);
}

static status create_context_v14(void *comm SIM_UNUSED, void *configuration SIM_UNUSED, void **context,
                                 struct device_handle **device) {
    return hand_out_context(context, device);
}

static status register_memory(void *comm SIM_UNUSED, void *data SIM_UNUSED, size_t bytes SIM_UNUSED,
                              int kind SIM_UNUSED, uint64_t flags SIM_UNUSED, void **host, void **device) {
    sim_net_hand_out(host);
    return sim_net_hand_out(device);
}

static status last_error(void *context SIM_UNUSED, _Bool *any) {
    *any = 0;
    return SUCCESS;
}

/* ncclGin_v11_t and ncclGin_v12_t: the name and 18 functions. A transfer is an error. */
SIM_EXPORT struct {
    const char *name;
    void *functions[18];
} ncclGinPlugin_v11 = {
    sim_machine.net_name,
    {FUNCTION(init), FUNCTION(devices), FUNCTION(get_properties_v11), FUNCTION(listen_in), FUNCTION(connect_v11),
     FUNCTION(create_context_v11), FUNCTION(register_memory), FUNCTION(sim_net_refuse), FUNCTION(sim_net_succeed),
     FUNCTION(sim_net_succeed), FUNCTION(sim_net_succeed), FUNCTION(sim_net_succeed), FUNCTION(sim_net_refuse),
     FUNCTION(sim_net_refuse), FUNCTION(sim_net_refuse), FUNCTION(sim_net_succeed), FUNCTION(last_error),
     FUNCTION(sim_net_succeed)},
};

SIM_EXPORT struct {
    const char *name;
    void *functions[18];
} ncclGinPlugin_v12 = {
    sim_machine.net_name,
    {FUNCTION(init), FUNCTION(devices), FUNCTION(get_properties_v11), FUNCTION(listen_in), FUNCTION(connect_v12),
     FUNCTION(create_context_v12), FUNCTION(register_memory), FUNCTION(sim_net_refuse), FUNCTION(sim_net_succeed),
     FUNCTION(sim_net_succeed), FUNCTION(sim_net_succeed), FUNCTION(sim_net_succeed), FUNCTION(sim_net_refuse),
     FUNCTION(sim_net_refuse), FUNCTION(sim_net_refuse), FUNCTION(sim_net_succeed), FUNCTION(last_error),
     FUNCTION(sim_net_succeed)},
};

static status create_rma_context(void *comm SIM_UNUSED, void *configuration SIM_UNUSED, void **context) {
    return sim_net_hand_out(context);
}

static status register_rma_memory(void *comm SIM_UNUSED, void *data SIM_UNUSED, size_t bytes SIM_UNUSED,
                                  int kind SIM_UNUSED, uint64_t flags SIM_UNUSED, void **handle) {
    return sim_net_hand_out(handle);
}

/* ncclRma_v14_t: the name and 20 functions. The host starts these transfers, after which a stream waits. */
SIM_EXPORT struct {
    const char *name;
    void *functions[20];
} ncclRmaPlugin_v14 = {
    sim_machine.net_name,
    {FUNCTION(init),
     FUNCTION(devices),
     FUNCTION(get_properties_v12),
     FUNCTION(listen_in),
     FUNCTION(connect_v11),
     FUNCTION(create_rma_context),
     FUNCTION(register_rma_memory),
     FUNCTION(sim_net_refuse),
     FUNCTION(sim_net_succeed),
     FUNCTION(sim_net_succeed),
     FUNCTION(sim_net_succeed),
     FUNCTION(sim_net_succeed),
     FUNCTION(sim_net_refuse),
     FUNCTION(sim_net_refuse),
     FUNCTION(sim_net_refuse),
     FUNCTION(sim_net_refuse),
     FUNCTION(sim_net_refuse),
     FUNCTION(sim_net_succeed),
     FUNCTION(last_error),
     FUNCTION(sim_net_succeed)},
};

/* ncclGin_v14_t: the name and 16 functions. */
SIM_EXPORT struct {
    const char *name;
    void *functions[16];
} ncclGinPlugin_v14 = {
    sim_machine.net_name,
    {FUNCTION(init), FUNCTION(devices), FUNCTION(abilities), FUNCTION(get_properties_v12), FUNCTION(listen_in),
     FUNCTION(connect_v11), FUNCTION(create_context_v14), FUNCTION(register_memory), FUNCTION(sim_net_refuse),
     FUNCTION(sim_net_succeed), FUNCTION(sim_net_succeed), FUNCTION(sim_net_succeed), FUNCTION(sim_net_succeed),
     FUNCTION(sim_net_succeed), FUNCTION(last_error), FUNCTION(sim_net_succeed)},
};
