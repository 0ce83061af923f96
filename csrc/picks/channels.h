/* The search for channels over a node's links: one search of tuner/graphs/channels.py, which says what NCCL does and
   from where, and is what the tests compare this with. Without heads (NVLS, CollNet direct), and nothing is written down
   of what was refused.

   tuner/graphs/compiled.py fills these structures; numbers of devices are those of its system. */
#ifndef NCCL_TUNER_PICKS_CHANNELS_H
#define NCCL_TUNER_PICKS_CHANNELS_H

#include <stdint.h>

enum { CHANNEL_MOST_GPUS = 256 };

/* What a link's traffic takes of its other direction. */
enum channel_reverse { REVERSE_NONE, REVERSE_ALL, REVERSE_EIGHTH };

struct channel_step {
    int32_t link; /* its number among what is left */
    int32_t back; /* the other direction's */
    int32_t is_pci;
    int32_t reverse;
};

struct channel_path {
    const struct channel_step *steps;
    int32_t known; /* 0: asked for when it is first needed */
    int32_t count;
    int32_t type;
    int32_t way_back_type; /* of the path the other way */
    int32_t pci_overhead;  /* PCI links pay 6/5 */
};

/* Lists, one after the other in `items`: number i from starts[i] up to starts[i + 1]. */
struct channel_lists {
    const int32_t *starts;
    const int32_t *items;
};

/* Another GPU as it is seen from one: how far behind it in turn, and the best path there. */
struct channel_peer {
    int32_t gpu, after, hops, gbs;
};

enum channel_start { START_WIDEST_UNUSED_FIRST, START_WIDEST_IN_TURN, START_NEAREST };
enum channel_neighbours { NEIGHBOURS_NONE, NEIGHBOURS_FIRST, NEIGHBOURS_ONLY };

/* A system, and its release's rules. */
struct channel_system {
    int32_t gpus, nets, several_nodes;
    int32_t disconnected_type; /* paths of it or farther are not taken; above all types where they are */
    int32_t no_hops_succeed, trees_need_way_back;
    int32_t nets_rotate, always_replays, pci_order_first, starts, neighbours;
    int32_t pci_order_tries;
    float *left;                                       /* [link] GB/s */
    float *net_left;                                   /* [net] GB/s */
    int32_t *connections;                              /* [net] channels that it may have; below 0: any number */
    struct channel_path *between, *entering, *leaving; /* [gpu][gpu], [net][gpu], [gpu][net] */
    int32_t (*path)(int32_t kind, int32_t from,
                    int32_t to);                 /* makes one known: 0 between, 1 entering, 2 leaving; 0 is an error */
    int32_t (*widest_of)(int32_t net);           /* is called where a net reaches no GPU: an error */
    const int32_t *first_of_id;                  /* [net] the first with its id */
    const int64_t *net_ids;                      /* [net] */
    const double *net_latency_us;                /* [net] */
    const int32_t *in_network;                   /* [net] */
    struct channel_lists same_port;              /* by net */
    struct channel_lists start_gpus;             /* by net: the widest, or the nearest in their order */
    const int32_t *reached;                      /* [net] how many GPUs it has paths to; nearest: whether any */
    const float *widest_gbs;                     /* [net]; below 0: it reaches none */
    const int32_t *pci_links;                    /* [gpu][2], -1: it has none */
    const int32_t *peer_starts;                  /* [gpu + 1] */
    const struct channel_peer *peers;            /* by `after` */
    struct channel_lists by_paths;               /* by GPU: the same GPUs, the best path first */
    const int32_t *from_net_hops, *from_net_gbs; /* [net][gpu] */
};

/* What one search asks for and starts from, and what it leaves. */
struct channel_trial {
    int32_t is_tree, is_balanced, in_network, same_channels, alternates;
    int32_t min_channels, max_channels, type_intra, type_inter;
    int32_t back, round; /* the steps that leave for the network, and for the first GPU */
    float bw_intra, bw_inter;
    struct channel_lists listed; /* by GPU the nets that it may leave through; after these those to enter by */
    struct channel_lists near;   /* by GPU its neighbours in their order */
    const uint8_t *may_leave;    /* [first of the net that was entered by][net] */
    float best_gbs;              /* of the best graph: all channels together, and as crossing makes it */
    int32_t best_hops, best_is_alike;
    /* Left by the search. */
    int32_t tries, hops, found, failed;
    double latency_us;
    /* Of the best graph that was found. */
    int32_t found_channels, found_hops;
    double found_latency_us;
    int32_t *intra; /* [channels][gpus] */
    int64_t *inter; /* [channels][2] ids */
};

/* Lays channels. Below 0: no memory. */
int32_t nccl_tuner_search(const struct channel_system *system, struct channel_trial *trial);

#endif
