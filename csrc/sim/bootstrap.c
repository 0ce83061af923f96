/* How ranks exchange data before they are connected: through memory, as they are threads of one process.
 *
 * NCCL's own way is sockets that are polled without sleeping, which on few cores takes most of the initialisation. What
 * is exchanged, and in which order, stays NCCL's.
 */
#include <pthread.h>
#include <string.h>

#include "export.h"
#include "machine.h"
#include "meeting.h"
#include "redirect.h"
#include "zeros.h"

enum { SUCCESS = 0, INTERNAL_ERROR = 3 };

/* Where a set of ranks meets: all of them (0), or those of a node (1 + its first rank). */
struct meeting {
    int arrived;
    unsigned int round;
};

static struct meeting meetings[1 + SIM_MAX_RANKS];
static void *shown[SIM_MAX_RANKS]; /* what each rank shows the others of its meeting */
static volatile int abandoned;
static volatile int alone;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

/* A rank failed: those that wait for it must not wait for ever. */
void sim_abandon_meetings(void) {
    pthread_mutex_lock(&lock);
    abandoned = 1;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

int sim_meetings_abandoned(void) {
    return abandoned;
}

/* While one rank acts for all, the others would do as it does: it waits for nobody, and they say the same. */
void sim_meet_alone(int one_acts) {
    alone = one_acts;
}

static status meet(struct meeting *meeting, int ranks) {
    if (alone) {
        return SUCCESS;
    }
    pthread_mutex_lock(&lock);
    unsigned int round = meeting->round;
    if (++meeting->arrived == ranks) {
        meeting->arrived = 0;
        meeting->round++;
        pthread_cond_broadcast(&changed);
    }
    while (meeting->round == round && !abandoned) {
        pthread_cond_wait(&changed, &lock);
    }
    pthread_mutex_unlock(&lock);
    return abandoned ? INTERNAL_ERROR : SUCCESS;
}

/* `ranks` lists the members, NULL for all; `own` is the caller's place in it. */
static status all_gather_among(struct meeting *meeting, const int *ranks, int own, int n, char *data, size_t bytes) {
    if (alone) {
        for (int i = 0; i < n; i++) {
            if (i != own) {
                memcpy(data + i * bytes, data + own * bytes, bytes);
            }
        }
        return SUCCESS;
    }
    shown[ranks == NULL ? own : ranks[own]] = data;
    if (meet(meeting, n) != SUCCESS) {
        return INTERNAL_ERROR;
    }
    for (int i = 0; i < n; i++) {
        if (i != own) {
            sim_copy_sparse(data + i * bytes, (char *)shown[ranks == NULL ? i : ranks[i]] + i * bytes, bytes);
        }
    }
    return meet(meeting, n);
}

static status broadcast_among(struct meeting *meeting, const int *ranks, int own, int n, int root, void *data,
                              size_t bytes) {
    if (alone) {
        return SUCCESS;
    }
    if (own == root) {
        shown[ranks == NULL ? own : ranks[own]] = data;
    }
    if (meet(meeting, n) != SUCCESS) {
        return INTERNAL_ERROR;
    }
    if (own != root) {
        memcpy(data, shown[ranks == NULL ? root : ranks[root]], bytes);
    }
    return meet(meeting, n);
}

static struct meeting *everyone(void) {
    return &meetings[0];
}

/* Every device has a rank, of its own number, unless there are fewer ranks. */
static int members;
static int rank_of[SIM_MAX_RANKS];

void sim_join(int device, int rank, int ranks) {
    rank_of[device] = rank;
    members = ranks;
}

static int ranks_of_all(void) {
    return members > 0 ? members : sim_devices();
}

static int own_rank(void) {
    return members > 0 ? rank_of[sim_device()] : sim_device();
}

/* The communicator of some of these ranks; what it exchanges names it, where what the whole exchanges names nothing. */
static char part;
static int part_members, rank_in_part[SIM_MAX_RANKS];
static const struct sim_part_layout *part_layout;

void sim_part(const int *devices, int n) {
    part_members = n;
    for (int i = 0; i < n; i++) {
        rank_in_part[devices[i]] = i;
    }
}

SIM_EXPORT void sim_locate_part(const struct sim_part_layout *layout) {
    static struct sim_part_layout kept;
    kept = *layout;
    part_layout = &kept;
}

static void *pointer_at(char *comm, int offset) {
    void *value;
    memcpy(&value, comm + offset, sizeof value);
    return value;
}

/* Instead of its own sockets; where resources are shared, ranks know each other by their numbers in the whole, and have
 * its proxy. The first argument and the color and key are not needed. */
static status split(uint64_t handle SIM_UNUSED, char *comm, char *whole, int color SIM_UNUSED, int key SIM_UNUSED,
                    const int *ranks_in_whole) {
    void *named = &part;
    memcpy(comm + part_layout->bootstrap, &named, sizeof named);
    if (!part_layout->shares) {
        return SUCCESS;
    }
    int *own = pointer_at(comm, part_layout->ranks), *of_whole = pointer_at(whole, part_layout->ranks);
    for (int i = 0; i < part_members; i++) {
        own[i] = of_whole[ranks_in_whole[i]];
    }
    void *proxy = pointer_at(whole, part_layout->proxy);
    memcpy(comm + part_layout->proxy, &proxy, sizeof proxy);
    return SUCCESS;
}

int sim_meet_everyone(void) {
    return meet(everyone(), part_members > 0 ? part_members : ranks_of_all());
}

static struct meeting *node_of(const int *ranks) {
    return &meetings[1 + ranks[0]];
}

static status all_gather(void *state, void *data, int bytes) {
    sim_search_is_over();
    if (state == &part) {
        return all_gather_among(everyone(), NULL, rank_in_part[sim_device()], part_members, data, (size_t)bytes);
    }
    return all_gather_among(everyone(), NULL, own_rank(), ranks_of_all(), data, (size_t)bytes);
}

static status barrier(void *state SIM_UNUSED, int rank SIM_UNUSED, int ranks, int tag SIM_UNUSED) {
    return meet(everyone(), ranks);
}

static status broadcast(void *state SIM_UNUSED, int rank, int ranks, int root, void *data, int bytes) {
    return broadcast_among(everyone(), NULL, rank, ranks, root, data, (size_t)bytes);
}

static status node_all_gather(void *state SIM_UNUSED, int *ranks, int own, int n, void *data, int bytes) {
    return all_gather_among(node_of(ranks), ranks, own, n, data, (size_t)bytes);
}

static status node_barrier(void *state SIM_UNUSED, int *ranks, int own SIM_UNUSED, int n, int tag SIM_UNUSED) {
    return meet(node_of(ranks), n);
}

static status node_broadcast(void *state SIM_UNUSED, int *ranks, int own, int n, int root, void *data, int bytes) {
    return broadcast_among(node_of(ranks), ranks, own, n, root, data, (size_t)bytes);
}

static status succeed(void) {
    return SUCCESS;
}

static status refuse(void) {
    return INTERNAL_ERROR;
}

/* An identity is only compared and hashed; its bytes mean nothing without sockets. */
static status unique_id(void *handle) {
    static const uint64_t magic = 0x6e63636c2d74756eu;
    memcpy(handle, &magic, sizeof magic);
    return SUCCESS;
}

const struct sim_redirect sim_bootstrap_redirects[] = {
    SIM_ROW("bootstrapNetInit", succeed),
    SIM_ROW("bootstrapGetUniqueId", unique_id),
    SIM_ROW("bootstrapInit", succeed),
    SIM_ROW("bootstrapSplit", split),
    SIM_ROW("bootstrapSend", refuse),
    SIM_ROW("bootstrapRecv", refuse),
    SIM_ROW("bootstrapAllGather", all_gather),
    SIM_ROW("_Z16bootstrapBarrierPviii", barrier),
    SIM_ROW("_Z16bootstrapBarrierPvPiiii", node_barrier), /* up to 2.20 */
    SIM_ROW("bootstrapBroadcast", broadcast),
    SIM_ROW("bootstrapIntraNodeBarrier", node_barrier),
    SIM_ROW("bootstrapIntraNodeAllGather", node_all_gather),
    SIM_ROW("bootstrapIntraNodeBroadcast", node_broadcast),
    {NULL, NULL, 0},
};
