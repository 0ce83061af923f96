/* The loaded libnccl: its entry points. */
#ifndef NCCL_TUNER_SIM_NCCL_H
#define NCCL_TUNER_SIM_NCCL_H

#include <stddef.h>

#include "export.h"

struct unique_id {
    char bytes[128];
};

struct nccl {
    status (*unique_id)(struct unique_id *id);
    status (*comm_init_rank)(void **comm, int ranks, struct unique_id id, int rank);
    /* with a ncclConfig_t, NULL for none */
    status (*comm_init_rank_config)(void **comm, int ranks, struct unique_id id, int rank, const void *config);
    status (*comm_split)(void *comm, int color, int key, void **part, void *config);
    status (*comm_shrink)(void *comm, int *without, int n, void **part, void *config, int flags); /* NULL before 2.27 */
    status (*group_start)(void);
    status (*group_end)(void);
    status (*simulate_end)(void *info); /* NULL before 2.22 */
    status (*broadcast)(const void *send, void *receive, size_t count, int type, int root, void *comm, void *stream);
    status (*reduce)(const void *send, void *receive, size_t count, int type, int op, int root, void *comm,
                     void *stream);
    status (*all_gather)(const void *send, void *receive, size_t count, int type, void *comm, void *stream);
    status (*reduce_scatter)(const void *send, void *receive, size_t count, int type, int op, void *comm, void *stream);
    status (*all_reduce)(const void *send, void *receive, size_t count, int type, int op, void *comm, void *stream);
    /* The same with a ncclCollConfig_t; NULL before 2.31. */
    status (*broadcast_config)(const void *send, void *receive, size_t count, int type, int root, void *comm,
                               void *stream, const void *config);
    status (*reduce_config)(const void *send, void *receive, size_t count, int type, int op, int root, void *comm,
                            void *stream, const void *config);
    status (*all_gather_config)(const void *send, void *receive, size_t count, int type, void *comm, void *stream,
                                const void *config);
    status (*reduce_scatter_config)(const void *send, void *receive, size_t count, int type, int op, void *comm,
                                    void *stream, const void *config);
    status (*all_reduce_config)(const void *send, void *receive, size_t count, int type, int op, void *comm,
                                void *stream, const void *config);
    status (*send)(const void *send, size_t count, int type, int peer, void *comm, void *stream);
    status (*receive)(void *receive, size_t count, int type, int peer, void *comm, void *stream);
    /* NULL before 2.28 */
    status (*all_to_all)(const void *send, void *receive, size_t count, int type, void *comm, void *stream);
    status (*gather)(const void *send, void *receive, size_t count, int type, int root, void *comm, void *stream);
    status (*scatter)(const void *send, void *receive, size_t count, int type, int root, void *comm, void *stream);
    /* NULL before 2.19 */
    status (*comm_register)(void *comm, void *buffer, size_t bytes, void **handle);
    status (*comm_deregister)(void *comm, void *handle);
    /* NULL before 2.27 */
    status (*window_register)(void *comm, void *buffer, size_t bytes, void **window, int flags);
    status (*window_deregister)(void *comm, void *window);
};

extern struct nccl sim_nccl;

void *sim_nccl_library(void); /* as dlopen() gave it */

#endif
