#include "channels.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof(struct channel_step) == 16 && sizeof(struct channel_peer) == 16, "compiled.py lays them out so");

enum { NEVER = -1, DONE = -1 };
enum forced { FREE, PCI_ORDER, REPLAY };
enum { BETWEEN, ENTERING, LEAVING };

/* The channels that are laid now. */
struct laying {
    const struct channel_system *system;
    struct channel_trial *trial;
    int32_t channels;
    int32_t *intra; /* [channel][gpu] */
    int32_t *inter; /* [channel][2] numbers of nets */
    uint8_t *used;  /* [channel][gpu] */
    int32_t *next;  /* [channel][step][gpu] */
};

struct at {
    int32_t gpu, step, back, round;
    enum forced forced;
};

static void go_on(struct laying *laying, struct at at);

/* NCCL rounds to a thousandth after each change. */
static float thousandths(float gbs) {
    double times = gbs * 1000.0f;
    double whole = (double)(int64_t)((times < 0 ? -times : times) + 0.5);
    return (float)(times < 0 ? -whole : whole) / 1000.0f;
}

static float amount_of(const struct channel_path *path, const struct channel_step *step, float gbs) {
    return step->is_pci && path->pci_overhead ? gbs * 6.0f / 5.0f : gbs;
}

static float reverse_of(const struct channel_step *step, float amount) {
    return step->reverse == REVERSE_EIGHTH ? amount / 8 : amount;
}

static void give(const struct laying *laying, const struct channel_path *path, int32_t count, float gbs) {
    float *left = laying->system->left;
    for (int32_t i = 0; i < count; i++) {
        const struct channel_step *step = &path->steps[i];
        float amount = amount_of(path, step, gbs);
        left[step->link] = thousandths(left[step->link] + amount);
        if (step->reverse) {
            left[step->back] = thousandths(left[step->back] + reverse_of(step, amount));
        }
    }
}

/* Whether each link of a path had enough left, which is taken then. */
static bool take(const struct laying *laying, const struct channel_path *path, float gbs) {
    float *left = laying->system->left;
    for (int32_t i = 0; i < path->count; i++) {
        const struct channel_step *step = &path->steps[i];
        float amount = amount_of(path, step, gbs), reverse = reverse_of(step, amount);
        if (left[step->link] < amount || (step->reverse && left[step->back] < reverse)) {
            give(laying, path, i, gbs);
            return false;
        }
        left[step->link] = thousandths(left[step->link] - amount);
        if (step->reverse) {
            left[step->back] = thousandths(left[step->back] - reverse);
        }
    }
    return true;
}

static bool may_be_taken(const struct channel_system *system, const struct channel_trial *trial,
                         const struct channel_path *path, int32_t farthest) {
    if (system->no_hops_succeed && path->count == 0) {
        return true;
    }
    return path->type < system->disconnected_type && path->type <= farthest &&
           !(system->trees_need_way_back && trial->is_tree && path->way_back_type > farthest);
}

/* The path, where it may be taken at all; NULL else. */
static const struct channel_path *path_to(const struct laying *laying, int kind, int32_t from, int32_t to) {
    const struct channel_system *system = laying->system;
    struct channel_trial *trial = laying->trial;
    struct channel_path *path = kind == BETWEEN    ? &system->between[from * system->gpus + to]
                                : kind == ENTERING ? &system->entering[from * system->gpus + to]
                                                   : &system->leaving[from * system->nets + to];
    if (trial->failed) {
        return NULL;
    }
    if (!path->known && !system->path(kind, from, to)) {
        trial->failed = 1;
        trial->tries = DONE;
        return NULL;
    }
    return may_be_taken(system, trial, path, kind == BETWEEN ? trial->type_intra : trial->type_inter) ? path : NULL;
}

/* A step over a path: what is left is taken on the way there, and given back after all ways on from there. */
static void over(struct laying *laying, const struct channel_path *path, float gbs, struct at to) {
    if (path && take(laying, path, gbs)) {
        laying->trial->hops += path->count;
        go_on(laying, to);
        give(laying, path, path->count, gbs);
        laying->trial->hops -= path->count;
    }
}

/* Whether the channels laid so far are a better graph than the best one; they replace it then. */
static void compare(struct laying *laying) {
    struct channel_trial *trial = laying->trial;
    const struct channel_system *system = laying->system;
    if (laying->channels < trial->min_channels) {
        return;
    }
    float gbs = (float)laying->channels * trial->bw_intra;
    if (gbs != trial->best_gbs ? gbs < trial->best_gbs : !trial->best_is_alike || trial->hops >= trial->best_hops) {
        return;
    }
    trial->found++;
    trial->best_gbs = gbs; /* of the same crossing as this search from now on */
    trial->best_is_alike = true;
    trial->best_hops = trial->found_hops = trial->hops;
    trial->found_channels = laying->channels;
    trial->found_latency_us = trial->latency_us;
    memcpy(trial->intra, laying->intra, (size_t)laying->channels * (size_t)system->gpus * sizeof *trial->intra);
    for (int32_t i = 0; system->several_nodes && i < 2 * laying->channels; i++) {
        trial->inter[i] = system->net_ids[laying->inter[i]];
    }
    if (laying->channels == trial->max_channels) {
        trial->tries = DONE;
    }
}

static uint8_t *used_by(const struct laying *laying) {
    return laying->used + laying->channels * laying->system->gpus;
}

static int32_t *order_of(const struct laying *laying, int32_t channel) {
    return laying->intra + channel * laying->system->gpus;
}

static int32_t *ends_of(const struct laying *laying, int32_t channel) {
    return laying->inter + 2 * channel;
}

/* Room for the GPUs that are tried after a step of the channel; those that it begins with are after the last. */
static int32_t *next_of(const struct laying *laying, int32_t step) {
    int32_t gpus = laying->system->gpus;
    return laying->next + ((size_t)laying->channels * (size_t)(gpus + 1) + (size_t)step) * (size_t)gpus;
}

/* A channel that has no GPU yet: `path` leads to its first one, or is NULL on one node. */
static void begin(struct laying *laying, const struct channel_path *path, struct at at) {
    memset(used_by(laying), 0, (size_t)laying->system->gpus);
    used_by(laying)[at.gpu] = 1;
    if (path) {
        over(laying, path, laying->trial->bw_inter, at);
    } else {
        go_on(laying, at);
    }
}

static void enter(struct laying *laying, int32_t net, int32_t gpu, enum forced forced) {
    const struct channel_path *path = path_to(laying, ENTERING, net, gpu);
    if (path) {
        begin(laying, path, (struct at){gpu, 0, laying->trial->back, NEVER, forced});
    }
}

static bool is_used_up(const struct laying *laying, int32_t gpu) {
    const struct channel_system *system = laying->system;
    const int32_t *links = &system->pci_links[2 * gpu];
    return links[0] < 0 || system->left[links[0]] <= 0 || system->left[links[1]] <= 0;
}

/* From the widest paths of a net: those of GPUs whose PCI links are used up last, or in turn. */
static void enter_widest(struct laying *laying, int32_t net) {
    const struct channel_system *system = laying->system;
    if (system->widest_gbs[net] < 0) {
        system->widest_of(net);
        laying->trial->failed = 1;
        laying->trial->tries = DONE;
        return;
    }
    if (system->widest_gbs[net] < (float)(int32_t)laying->trial->bw_inter) {
        return;
    }
    const int32_t *gpus = system->start_gpus.items + system->start_gpus.starts[net];
    int32_t count = system->start_gpus.starts[net + 1] - system->start_gpus.starts[net];
    int32_t first = laying->channels % system->reached[net];
    int32_t *sorted = next_of(laying, system->gpus), found = 0; /* before any is tried: that changes what is used up */
    for (int32_t last = 0; last < 2; last++) {
        for (int32_t i = 0; i < count; i++) {
            bool is_last = system->starts == START_WIDEST_UNUSED_FIRST ? is_used_up(laying, gpus[i]) : gpus[i] < first;
            if (is_last == last) {
                sorted[found++] = gpus[i];
            }
        }
    }
    for (int32_t i = 0; i < found; i++) {
        enter(laying, net, sorted[i], FREE);
    }
}

/* To the GPUs that a channel may begin with. Returns whether the net gets its bandwidth back. */
static bool from_net(struct laying *laying, int32_t net) {
    const struct channel_system *system = laying->system;
    struct channel_trial *trial = laying->trial;
    int32_t channel = laying->channels;
    if (channel > 0 && (trial->same_channels || system->always_replays)) {
        enter(laying, net, order_of(laying, channel - 1)[0], REPLAY);
    }
    if (channel > 0 && trial->same_channels) {
        return true;
    }
    if (channel == 0 && system->pci_order_first) {
        int32_t kept = trial->tries;
        trial->tries = system->pci_order_tries;
        enter(laying, net, 0, PCI_ORDER);
        trial->tries = trial->tries == DONE ? DONE : kept;
    }
    if (system->starts != START_NEAREST) {
        enter_widest(laying, net);
        return true;
    }
    for (int32_t i = system->start_gpus.starts[net]; i < system->start_gpus.starts[net + 1]; i++) {
        enter(laying, net, system->start_gpus.items[i], FREE);
    }
    return system->reached[net] > 0; /* sic: NCCL forgets the bandwidth of a device that reaches none */
}

static void add_to_port(const struct channel_system *system, int32_t net, float gbs) {
    for (int32_t i = system->same_port.starts[net]; i < system->same_port.starts[net + 1]; i++) {
        system->net_left[system->same_port.items[i]] += gbs;
    }
}

static bool alternates(const struct laying *laying, int32_t channel) {
    return laying->trial->alternates && channel & 1;
}

static void from_nets(struct laying *laying) {
    const struct channel_system *system = laying->system;
    struct channel_trial *trial = laying->trial;
    const struct channel_lists *listed = &trial->listed;
    const int32_t *nets = listed->items + listed->starts[system->gpus];
    int32_t count = listed->starts[system->gpus + 1] - listed->starts[system->gpus], channel = laying->channels;
    int32_t first = system->nets_rotate ? channel : 0;
    float whole = (float)(int32_t)trial->bw_inter;
    for (int32_t at = 0; at < count; at++) {
        int32_t net = nets[(first + at) % count];
        if (trial->in_network && !system->in_network[net]) {
            continue;
        }
        bool may_enter =
            !alternates(laying, channel) || system->net_ids[net] == system->net_ids[ends_of(laying, channel - 1)[1]];
        if (system->net_left[net] < whole || !may_enter || system->connections[net] == 0) {
            continue;
        }
        system->connections[net]--;
        ends_of(laying, channel)[0] = net;
        trial->latency_us = system->net_latency_us[net];
        add_to_port(system, net, -whole);
        if (from_net(laying, net)) {
            add_to_port(system, net, whole);
        }
        system->connections[net]++;
    }
}

static void from_gpus(struct laying *laying) {
    int32_t channel = laying->channels, round = laying->trial->round;
    if (channel == 0) {
        begin(laying, NULL, (struct at){0, 0, NEVER, round, PCI_ORDER});
    } else {
        begin(laying, NULL, (struct at){order_of(laying, channel - 1)[0], 0, NEVER, round, REPLAY});
    }
    for (int32_t gpu = 0; gpu < laying->system->gpus && (channel == 0 || !laying->trial->same_channels); gpu++) {
        begin(laying, NULL, (struct at){gpu, 0, NEVER, round, FREE});
    }
}

static void next_channel(struct laying *laying) {
    if (laying->system->several_nodes) {
        from_nets(laying);
    } else {
        from_gpus(laying);
    }
}

static void channel_done(struct laying *laying) {
    laying->channels++;
    compare(laying);
    if (laying->channels < laying->trial->max_channels) {
        next_channel(laying);
    }
    laying->channels--;
}

static bool may_leave(const struct laying *laying, int32_t net, int32_t step) {
    const struct channel_system *system = laying->system;
    const int32_t *ends = ends_of(laying, laying->channels);
    int64_t id = system->net_ids[net];
    if (!laying->trial->may_leave[system->first_of_id[ends[0]] * system->nets + net]) {
        return false;
    }
    if (alternates(laying, laying->channels) && id != system->net_ids[ends_of(laying, laying->channels - 1)[0]]) {
        return false;
    }
    return !(laying->trial->is_balanced && step != 0 && id != system->net_ids[ends[1]]);
}

static void to_nets(struct laying *laying, struct at at) {
    const struct channel_trial *trial = laying->trial;
    float gbs = trial->is_balanced ? trial->bw_inter / 2 : trial->bw_inter;
    int32_t *ends = ends_of(laying, laying->channels), first = ends[1];
    struct at next = {at.gpu, at.step, trial->is_balanced && at.step == 0 ? 1 : NEVER, at.round, at.forced};
    for (int32_t i = trial->listed.starts[at.gpu]; i < trial->listed.starts[at.gpu + 1]; i++) {
        int32_t net = trial->listed.items[i], now = ends[1];
        ends[1] = first; /* as it was when the list was made */
        bool may = may_leave(laying, net, at.step);
        ends[1] = now;
        const struct channel_path *path = may ? path_to(laying, LEAVING, at.gpu, net) : NULL;
        if (path && take(laying, path, gbs)) {
            laying->trial->hops += path->count;
            ends[1] = net;
            go_on(laying, next);
            give(laying, path, path->count, gbs);
            laying->trial->hops -= path->count;
        }
    }
}

/* A GPU by what NCCL sorts the next ones by where one of them leaves for the network. */
struct score {
    int32_t by[6], gpu;
};

static bool is_before(const struct score *one, const struct score *other) {
    for (int i = 0; i < 6; i++) {
        if (one->by[i] != other->by[i]) {
            return one->by[i] < other->by[i];
        }
    }
    return false;
}

/* Apart: the stack of a search would not hold its scores at each GPU. */
__attribute__((noinline)) static int32_t by_net(const struct laying *laying, int32_t gpu, int32_t near_net, int32_t net,
                                                int32_t *gpus) {
    const struct channel_system *system = laying->system;
    const uint8_t *used = used_by(laying);
    struct score scores[CHANNEL_MOST_GPUS];
    int32_t count = 0;
    bool same_paths = true;
    for (int32_t i = system->peer_starts[gpu]; i < system->peer_starts[gpu + 1]; i++) {
        const struct channel_peer *peer = &system->peers[i];
        if (used[peer->gpu]) {
            continue;
        }
        const int32_t *links = &system->pci_links[2 * peer->gpu];
        float one = links[0] < 0 ? -1 : system->left[links[0]], other = links[0] < 0 ? -1 : system->left[links[1]];
        int32_t pci_gbs = (int32_t)(one < other ? one : other), from = net * system->gpus + peer->gpu;
        struct score score = {
            {-system->from_net_gbs[from], -pci_gbs, system->from_net_hops[from], -peer->gbs, peer->hops, peer->after},
            peer->gpu};
        int32_t place = count++;
        for (; place > 0 && is_before(&score, &scores[place - 1]); place--) {
            scores[place] = scores[place - 1];
        }
        scores[place] = score;
    }
    for (int32_t i = 0; i < count; i++) {
        same_paths &= scores[i].by[3] == scores[0].by[3] && scores[i].by[4] == scores[0].by[4];
    }
    for (int32_t i = 0; i < count; i++) {
        gpus[i] = scores[near_net == -1 && same_paths ? count - 1 - i : i].gpu;
    }
    return count;
}

static int32_t unused(const struct laying *laying, struct channel_lists lists, int32_t gpu, int32_t *gpus) {
    int32_t count = 0;
    for (int32_t i = lists.starts[gpu]; i < lists.starts[gpu + 1]; i++) {
        if (!used_by(laying)[lists.items[i]]) {
            gpus[count++] = lists.items[i];
        }
    }
    return count;
}

/* Moves the neighbours of a GPU to the front, as far as they are there. */
static void neighbours_first(const struct laying *laying, int32_t gpu, int32_t *gpus, int32_t count) {
    struct channel_lists near = laying->trial->near;
    int32_t front = 0;
    for (int32_t i = near.starts[gpu]; i < near.starts[gpu + 1]; i++) {
        for (int32_t at = front; at < count; at++) {
            if (gpus[at] == near.items[i]) {
                memmove(&gpus[front + 1], &gpus[front], (size_t)(at - front) * sizeof *gpus);
                gpus[front++] = near.items[i];
                break;
            }
        }
    }
}

/* The GPUs to try after one. */
static int32_t next_gpus(const struct laying *laying, struct at at, int32_t *gpus) {
    const struct channel_system *system = laying->system;
    if (at.forced == PCI_ORDER || at.forced == REPLAY) {
        gpus[0] = at.forced == PCI_ORDER ? at.step + 1 : order_of(laying, laying->channels - 1)[at.step + 1];
        return 1;
    }
    if (system->neighbours == NEIGHBOURS_ONLY) {
        return unused(laying, laying->trial->near, at.gpu, gpus);
    }
    int32_t near_net = at.back == NEVER ? 0 : at.back == at.step + 1 ? 1 : -1, count;
    if (near_net == 0) {
        count = unused(laying, system->by_paths, at.gpu, gpus);
    } else {
        int32_t net = system->first_of_id[ends_of(laying, laying->channels)[0]];
        count = by_net(laying, at.gpu, near_net, net, gpus);
    }
    if (system->neighbours == NEIGHBOURS_FIRST) {
        neighbours_first(laying, at.gpu, gpus, count);
    }
    return count;
}

static void to_peers(struct laying *laying, struct at at) {
    int32_t *gpus = next_of(laying, at.step);
    int32_t count = next_gpus(laying, at, gpus);
    uint8_t *used = used_by(laying);
    for (int32_t i = 0; i < count; i++) {
        const struct channel_path *path = path_to(laying, BETWEEN, at.gpu, gpus[i]);
        uint8_t before = used[gpus[i]];
        used[gpus[i]] = 1;
        over(laying, path, laying->trial->bw_intra, (struct at){gpus[i], at.step + 1, at.back, at.round, at.forced});
        used[gpus[i]] = before;
    }
}

/* A try: all ways on from one GPU of a channel. */
static void go_on(struct laying *laying, struct at at) {
    int32_t gpus = laying->system->gpus;
    if (laying->trial->tries <= 0) {
        return;
    }
    laying->trial->tries--;
    if (at.step == gpus) {
        channel_done(laying);
        return;
    }
    order_of(laying, laying->channels)[at.step] = at.gpu;
    if (at.step == at.back) {
        to_nets(laying, at);
    } else if (at.step < gpus - 1) {
        to_peers(laying, at);
    } else if (at.step == at.round) {
        const struct channel_path *path = path_to(laying, BETWEEN, at.gpu, order_of(laying, laying->channels)[0]);
        struct at first = {order_of(laying, laying->channels)[0], at.step + 1, at.back, NEVER, at.forced};
        over(laying, path, laying->trial->bw_intra, first);
    } else {
        go_on(laying, (struct at){at.gpu, gpus, NEVER, NEVER, at.forced});
    }
}

__attribute__((visibility("default"))) int32_t nccl_tuner_search(const struct channel_system *system,
                                                                 struct channel_trial *trial) {
    size_t gpus = (size_t)system->gpus, channels = (size_t)trial->max_channels + 1;
    struct laying laying = {.system = system, .trial = trial};
    laying.intra = calloc(channels * gpus, sizeof *laying.intra);
    laying.inter = calloc(channels * 2, sizeof *laying.inter);
    laying.used = calloc(channels * gpus, sizeof *laying.used);
    laying.next = calloc(channels * (gpus + 1) * gpus, sizeof *laying.next);
    bool has_memory = laying.intra && laying.inter && laying.used && laying.next;
    if (has_memory) {
        next_channel(&laying);
    }
    free(laying.intra);
    free(laying.inter);
    free(laying.used);
    free(laying.next);
    return has_memory ? 0 : -1;
}
