/* The plugin as NCCL sees it: what it exports, declared anew (NCCL's headers, see the adapters). */
#ifndef CHECK_PLUGINS_H
#define CHECK_PLUGINS_H

#include "../abi.h"

typedef int (*init_v2)(size_t ranks, size_t nodes, nccl_logger logger, void **context);
typedef int (*init_v5)(void **context, uint64_t communicator, size_t ranks, size_t nodes, nccl_logger logger,
                       void *domains, void *constants);
typedef int (*get_coll_info_v4)(void *context, int collective, size_t bytes, int pipelined, float **costs,
                                int algorithms, int protocols, int registered, int *channels);
typedef int (*close_v2)(void *context);

extern const struct {
    const char *name;
    int (*init)(size_t ranks, size_t nodes, nccl_logger logger);
    int (*get_coll_info)(int collective, size_t bytes, int collnet, int nvls, int pipelined, int *algorithm,
                         int *protocol, int *channels);
    int (*destroy)(void);
} ncclTunerPlugin_v1;

extern const struct {
    const char *name;
    init_v2 init;
    int (*get_coll_info)(void *context, int collective, size_t bytes, int collnet, int nvls, int pipelined,
                         int *algorithm, int *protocol, int *channels);
    close_v2 destroy;
} ncclTunerPlugin_v2;

extern const struct {
    const char *name;
    init_v2 init;
    int (*get_coll_info)(void *context, int collective, size_t bytes, int pipelined, float **costs, int algorithms,
                         int protocols, int *channels);
    close_v2 destroy;
} ncclTunerPlugin_v3;

extern const struct {
    const char *name;
    init_v2 init;
    get_coll_info_v4 get_coll_info;
    close_v2 destroy;
} ncclTunerPlugin_v4;

extern const struct {
    const char *name;
    init_v5 init;
    get_coll_info_v4 get_coll_info;
    close_v2 finalize;
} ncclTunerPlugin_v5;

struct plugin_v6 {
    const char *name;
    init_v5 init;
    get_coll_info_v4 get_coll_info;
    close_v2 finalize;
    int (*get_chunk_size)(void *context, int collective, size_t bytes, int algorithm, int protocol, int channels,
                          size_t *chunk_bytes);
};
extern const struct plugin_v6 ncclTunerPlugin_v6;

#endif
