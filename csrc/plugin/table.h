/* What a file says, whatever its format: decisions, costs and constants in the order of the text.
 * docs/decision-table.md describes our format; NVIDIA's example plugin describes its CSV. */
#ifndef PLUGIN_TABLE_H
#define PLUGIN_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "text.h"

/* Both ends belong to an interval. */
struct sizes {
    size_t low, high;
};

struct counts {
    uint32_t low, high;
};

/* Which calls a row is for. */
struct condition {
    struct sizes bytes; /* of nBytes, or of nBytes / ranks */
    struct counts ranks, nodes, ranks_per_node, nvlink_domains, pipelined;
    int8_t collective;
    int8_t registered; /* 0 no, 1 yes, -1 either */
    bool per_rank;
};

/* What a table's choices begin with: no row holds the call, and the row that does says nccl. */
enum { CHOICE_NONE, CHOICE_OWN, FIRST_CHOICE };

struct choice {
    int8_t algorithm; /* -1: NCCL's own choice */
    int8_t protocol;
    int8_t channels;      /* 0: NCCL's own number */
    bool more;            /* the next one in the array is tried after this one */
    bool own;             /* else the choice is NCCL's own, whatever another tuner would say: the row ends with nccl */
    uint16_t explores;    /* not 0: its arms follow, which calls take in turns by schedules[explores - 1] */
    uint32_t chunk_bytes; /* 0: NCCL's own size */
};

/* Of each `every` blocks of `block` calls one is of an arm, the next one in turn; after `calls` there is none any more. */
struct schedule {
    uint32_t every, block, arms;
    uint64_t calls;
};

enum { MOST_ARMS = 16, MOST_EVERY = 100000, MOST_BLOCK = 1000000, CALLS_EXPLORED = 1000000 };

struct decision {
    struct condition when;
    uint32_t choice; /* its first in the table's choices */
    uint32_t line;
};

struct cost {
    struct condition when;
    int8_t algorithm, protocol;
    bool never;
    uint32_t batch, line;
    float latency_us, bandwidth_gbs;
};

struct constant {
    int number; /* among the doubles of ncclTunerConstants_v5_t */
    double value;
};

/* Different ends of intervals of pipelined operations that a table may have: each makes its own set of steps. */
enum { MOST_PIPELINED_ENDS = 16 };

/* What a comment such as "# gpus: NAME, NAME" says, in printable letters; empty where there is none. */
struct comment {
    char text[128];
};

/* How far a file shows that it is whole: by its last line "# rows: N", which may add the sha256 of all before it. */
enum end_mark { MARK_NONE, MARK_COUNTED, MARK_HASHED };

struct table {
    struct comment gpus, releases; /* "# gpus:" and "# nccl:" */
    uint64_t valid_from, valid_to; /* "# valid:", in seconds since 1970, both included; 0 and UINT64_MAX for any */
    enum end_mark mark;
    struct choice *choices; /* [CHOICE_NONE] and [CHOICE_OWN], then those of the rows */
    struct decision *decisions;
    struct cost *costs;
    struct constant *constants;
    struct schedule *schedules;
    size_t schedule_count, schedule_room;
    size_t choice_count, decision_count, cost_count, constant_count;
    size_t choice_room, decision_room, cost_room, constant_room;
    bool falls_through; /* where a row's choice cannot run, the next row that holds the call is tried */
    bool sets_chunks;   /* a choice says a chunk size */
    uint32_t pipelined_ends[MOST_PIPELINED_ENDS];
    size_t pipelined_end_count;
};

struct table_error {
    size_t line;
    char reason[256];
};

void table_free(struct table *table);

/* The number and its noun, for "%zu %s". */
#define COUNTED(number, one, many) (number), (number) == 1 ? (one) : (many)

/* For the formats' readers. Each returns false with the reason set; a row gets the error's line. */
__attribute__((format(printf, 2, 3))) bool table_fail(struct table_error *error, const char *format, ...);
bool table_add_choice(struct table *table, struct choice choice, struct table_error *error);
bool table_add_decision(struct table *table, struct decision decision, struct table_error *error);
bool table_add_cost(struct table *table, struct cost cost, struct table_error *error);
bool table_add_schedule(struct table *table, struct schedule schedule, struct table_error *error);
bool table_add_constant(struct table *table, struct constant constant, struct table_error *error);

/* Whether the GPU's name contains one of the names in the comment as whole words, in any case. */
bool table_names_gpu(const struct table *table, const char *name);

/* Whether the release (22809 for 2.28.9) is one of those in the comment. */
bool table_names_release(const struct table *table, int version);

/* A condition that holds for every call of the collective. */
struct condition condition_of(int collective);

/* The communicator, as far as a row can ask for it. */

struct shape {
    size_t ranks, nodes;
    bool known;     /* NCCL 2.19 and 2.20 do not say which communicator asks */
    size_t domains; /* of NVLink; 0 where NCCL does not say it, before 2.28 */
};

enum match { MATCH_NO, MATCH_YES, MATCH_UNKNOWN };

/* Whether the row is for this communicator at all. */
enum match shape_match(const struct shape *shape, const struct condition *when);

/* The row's sizes as NCCL's nBytes; false when there is none. Of an unknown shape: all that may be meant. */
bool shape_bytes(const struct shape *shape, const struct condition *when, struct sizes *bytes);

/* The words of a decision table. */

/* NCCL's number for its name, in upper or lower case, or -1. */
int collective_by_name(struct slice name);
int algorithm_by_name(struct slice name);
int protocol_by_name(struct slice name);

/* The names, "?" for what is none of NCCL's numbers. */
const char *collective_name(int collective);
const char *algorithm_name(int algorithm);
const char *protocol_name(int protocol);

/* The table, row or column of NCCL's constants, or -1; lower case, like keys. */
int cap_by_name(struct slice name);
int link_by_name(struct slice name);
int generation_by_name(struct slice name);
int node_count_by_name(struct slice name);

/* For the end of an error message. */
#define VALID_COLLECTIVES "valid: Broadcast, Reduce, AllGather, ReduceScatter, AllReduce"
#define VALID_ALGORITHMS "valid: Tree, Ring, CollNetDirect, CollNetChain, NVLS, NVLSTree, PAT"
#define VALID_PROTOCOLS "valid: LL, LL128, Simple"
#define VALID_LINKS "valid: nvlink, pci, net"
#define VALID_CONSTANTS                                                                                         \
    "valid: base-latency-us, link-latency-us, ll-gbs, ring-ll128-per-channel-gbs, tree-ll128-per-channel-gbs, " \
    "tree-per-channel-gbs, nvlstree-per-channel-gbs"
#define VALID_GENERATIONS "valid: volta, ampere, hopper, blackwell"
#define VALID_NODE_COUNTS "valid: 1, 2, more"

#endif
