/* The operations of the network as NCCL prepares them, whole: struct ncclProxyOp, one behind the other. */
#include <stdlib.h>
#include <string.h>

#include "export.h"
#include "oracle.h"
#include "record.h"

static size_t operation_bytes; /* 0: they are not kept */
static char *kept;
static size_t n_kept, room;

SIM_EXPORT void sim_keep_proxy_operations(uint64_t bytes_of_each) {
    operation_bytes = bytes_of_each;
}

SIM_EXPORT const char *sim_proxy_operations(uint64_t *bytes) {
    *bytes = n_kept * operation_bytes;
    return kept;
}

void sim_forget_proxy_operations(void) {
    n_kept = 0;
}

void sim_keep_proxy_operation(const void *operation) {
    if (operation_bytes == 0) {
        return;
    }
    if (n_kept == room) {
        room = room == 0 ? 64 : 2 * room;
        kept = realloc(kept, room * operation_bytes);
        if (kept == NULL) {
            abort();
        }
    }
    memcpy(kept + n_kept++ * operation_bytes, operation, operation_bytes);
}
