#include "libdl.h" /* before the headers of the C library */

#include "hardware.h"

#include <string.h>

/* Of nvml.h, which has had them in this form since CUDA 6. */
struct nvml {
    int (*init)(void);
    int (*shutdown)(void);
    int (*count)(unsigned *count);
    int (*by_index)(unsigned index, void **device);
    int (*name)(void *device, char *name, unsigned length);
};

/* dlsym() gives a pointer to an object, and C has no way from there to one of a function but through memory. */
static bool find(void *library, const char *symbol, void *function) {
    void *address = dlsym(library, symbol);
    memcpy(function, &address, sizeof address);
    return address;
}

static bool find_all(void *library, struct nvml *nvml) {
    return find(library, "nvmlInit_v2", &nvml->init) && find(library, "nvmlShutdown", &nvml->shutdown) &&
           find(library, "nvmlDeviceGetCount_v2", &nvml->count) &&
           find(library, "nvmlDeviceGetHandleByIndex_v2", &nvml->by_index) &&
           find(library, "nvmlDeviceGetName", &nvml->name);
}

static bool read_name(const struct nvml *nvml, unsigned index, struct gpu_name *name) {
    void *device;
    *name = (struct gpu_name){""};
    return nvml->by_index(index, &device) == 0 && nvml->name(device, name->text, sizeof name->text - 1) == 0;
}

static bool read_names(const struct nvml *nvml, struct gpu_name *name) {
    unsigned count = 0;
    if (nvml->count(&count) != 0 || count == 0 || !read_name(nvml, 0, name)) {
        return false;
    }
    for (unsigned index = 1; index < count; index++) {
        struct gpu_name other;
        if (!read_name(nvml, index, &other) || strcmp(other.text, name->text) != 0) {
            return false;
        }
    }
    return true;
}

bool gpu_read_name(struct gpu_name *name) {
    void *library = libdl_is_there() ? dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_NOLOAD) : NULL;
    if (!library) {
        return false;
    }
    struct nvml nvml;
    bool read = false;
    if (find_all(library, &nvml) && nvml.init() == 0) { /* counted by NVML: NCCL's own stays */
        read = read_names(&nvml, name);
        nvml.shutdown();
    }
    dlclose(library);
    return read;
}

/* The object that an address lies in, if it is loaded; NULL where that cannot be said. */
static void *object_of(const void *address, int flags) {
    Dl_info where = {0};
    return libdl_is_there() && address && dladdr(address, &where) && where.dli_fname
               ? dlopen(where.dli_fname, RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD | flags)
               : NULL;
}

int nccl_version(nccl_logger logger) {
    int (*get)(int *version) = NULL;
    int version = 0;
    void *address, *symbol;
    memcpy(&address, &logger, sizeof address); /* C has no way from a function to an object but through memory */
    void *handle = object_of(address, 0);
    if (handle) {
        symbol = dlsym(handle, "ncclGetVersion");
        memcpy(&get, &symbol, sizeof get);
        if (get && get(&version) != RESULT_SUCCESS) {
            version = 0;
        }
        dlclose(handle);
    }
    return version;
}

void nccl_keep(const void *address) {
    void *handle = object_of(address, RTLD_NODELETE);
    if (handle) {
        dlclose(handle);
    }
}
