/* What the oracle's child process calls. Python reads this header too, which holds no macros. */
#ifndef NCCL_TUNER_SIM_ORACLE_H
#define NCCL_TUNER_SIM_ORACLE_H

#include <stddef.h>
#include <stdint.h>

#include "hardware.h"
#include "observed.h"

/* The sha256, in hexadecimal digits, of the sources that this object was built from. */
const char *sim_sources(void);

/* --- before libnccl is used --- */

/* 0, or -1: more GPUs or network devices per host than can be simulated. */
int sim_configure(const struct sim_machine *machine);

/* Loads libnccl. NULL, or why that cannot be. */
const char *sim_load_nccl(const char *path);

/* A function that libnccl exports, NULL where this release has none. */
void *sim_nccl_function(const char *name);

/* One row of what is redirected: a function of libnccl and what runs in its place. */
struct sim_redirect {
    const char *name; /* the function's own name, or the whole symbol where the arguments matter */
    void *replacement;
    int cuda; /* the major version of the CUDA runtime inside libnccl that the row is for; 0: every one */
};

/* The table of what ranks exchange before they are connected, which goes through memory where they are threads. */
enum { SIM_MEETING_REDIRECTS = 1 };

/* The tables, for whoever knows where libnccl's functions are; the last row of each has no name. NULL after the last. */
const struct sim_redirect *sim_redirects(int table);
int sim_jump_bytes(void);

/* Where the function has fewer bytes than a jump, a near one goes to a page that has the jump. The function must not be
 * running. 0, or errno: ENOSPC where it is too short even for that. */
int sim_redirect(void *function, uint64_t bytes, void *replacement);

/* Where struct ncclProxyOp has them, each in its first byte, the number in eight, the chunk in four; and the pattern of operations that are
 * the profiler's own, -1 where there are none. */
struct sim_operation_layout {
    int number;
    int channel;
    int pattern;
    int protocol;
    int type;
    int chunk;
    int profiler;
    int collective; /* these from 2.26 on, where kernels can be timed */
    int algorithm;
    int task;
    int started;
    int completed;
    int counter;
    int comm_rank; /* of struct ncclComm */
    int comm_ranks;
};

void sim_record_operations(const struct sim_operation_layout *layout);

/* Where struct ncclComm has localRanks, an int: how many ranks NCCL's node has. */
void sim_locate_local_ranks(uint64_t offset);

/* Each host reads its own topology file. 0, or errno. */
int sim_intercept_topology_file(void *function);

/* `copies` gets n graphs of `bytes` each, by rank and algorithm. 0, or errno. */
int sim_intercept_graphs(void *function, void *copies, uint64_t bytes, int n);

/* Cells of the cost table are recorded as NCCL asks for them, where there is no table; `backups`: it says which of them
 * are backups. 0, or errno. */
int sim_intercept_times(void *function, int algorithms, int protocols, int backups);

/* NCCL's function that searches for a graph, the size of a graph, where it counts its channels and has the ranks of each, and
 * where a system counts its GPUs. */
struct sim_search_function {
    void *function;
    uint64_t bytes;
    uint64_t channels;
    uint64_t ranks;
    uint64_t gpus;
};

/* 1 where searches are shared from now on, 0 where they cannot be. */
int sim_share_search(const struct sim_search_function *search);

/* NCCL's function that writes graphs to a file, the size of one, where it has its types of paths, and a bit for each type that the
 * file has a word for. */
struct sim_graph_file {
    void *function;
    uint64_t bytes;
    uint64_t type_intra;
    uint64_t type_inter;
    uint32_t writable;
};

/* Graphs are written whatever their types of paths. 1, or 0 where that cannot be. */
int sim_write_every_graph(const struct sim_graph_file *file);

/* Functions that make the system of a rank, and where a communicator has it and it counts its GPUs. */
struct sim_system_functions {
    void *compute_paths;
    void *trim;
    void *init_search;
    uint64_t system;
    uint64_t gpus;
};

/* One rank of a NVLink domain makes its system for all of them. 1, or 0 where that cannot be. */
int sim_share_systems(const struct sim_system_functions *functions);

/* Only hosts that merge their adapters have a network that does: `function` makes the system of a rank, whose communicator
 * has its network at `net`. 1, or 0 where it cannot be intercepted. */
int sim_merge_by_host(void *function, uint64_t net);

/* libnccl writes zeros only where there are none, so that the empty part of its largest arrays takes no memory. 0, or
 * errno. */
int sim_skip_zeros(void);

/* Threads of libnccl that ask a socket again and again leave the processor to the others meanwhile. 0, or errno. */
int sim_wait_for_peers(void);

/* NULL, or why the plugin cannot be loaded. */
const char *sim_wrap_tuner(const char *path);

/* The wrapped plugin runs later, and where `elsewhere` on another host and in another process, as far as it asks the C
 * library itself. 0, or errno. */
int sim_disguise_tuner(int64_t seconds, int elsewhere);
int sim_wrapped_version(void); /* the interface in use; 0: none, or none that this NCCL would take */
int sim_is_recorder(const char *const *tuner);

/* --- collectives --- */

/* Fills comms[ranks] and results[ranks]; `config` is a ncclConfig_t for all of them, NULL for none. 0, or -1 when no
 * thread could be started. */
int sim_init_ranks(int ranks, const void *config, void **comms, int *results);

/* Where struct ncclComm has what a communicator of some ranks takes over: pointers to what it exchanges by, to the ranks'
 * numbers in the whole, and to the proxy. */
struct sim_part_layout {
    int bootstrap;
    int ranks;
    int proxy;
    int shares; /* whether it shares the whole's resources */
};

void sim_locate_part(const struct sim_part_layout *layout);

/* How a communicator of some ranks is made. */
enum { SIM_BY_SPLIT = 0, SIM_BY_SHRINK = 1 };

/* Makes one of these ranks of `comms`, the least first, whose communicators replace them in comms[n]; results[ranks]. 0, or
 * -1 when no thread could be started, or this release has no such call. */
int sim_make_part(void **comms, int ranks, const int *members, int n, int by, int *results);

/* Work that was sent to kernels counts as taken. */
void sim_acknowledge_work(const uint32_t *sent, uint32_t *acknowledged);

/* Pairs of buffers, by how NCCL knows them, each used for nothing else. NCCL is not informed of those for CUDA graphs,
 * but may register them itself when it sees them. */
enum { SIM_PLAIN = 0, SIM_REGISTERED = 1, SIM_WINDOW = 2, SIM_IN_GRAPH = 3, SIM_BUFFER_KINDS = 4 };

/* The most bytes one buffer of a collective can have. */
uint64_t sim_buffer_bytes(int kind);

/* How a pair of buffers is known to NCCL: which of the two, and of windows the flags (NCCL_WIN_*). */
enum { SIM_SEND = 1, SIM_RECEIVE = 2 };

struct sim_registration {
    int kind;
    int sides;
    int flags;
};

/* Which buffers the collectives from now on have: they are registered when they are first used, and anew where they are
 * wanted otherwise. Returns an ncclResult_t, or -1 without address space or threads. */
int sim_use_buffers(void **comms, int ranks, const struct sim_registration *wanted);

/* `collective` is a ncclFunc_t of the newest release. `root` is the peer of a send or receive; `count` of an all-to-all, a
 * gather and a scatter is what each rank gives each. */
struct sim_call {
    int collective;
    int type;
    int op;
    uint64_t count;
    int root;
    int in_place;    /* what is received replaces what is sent, as rank 0 passes it: both at one address */
    uint64_t config; /* address of a ncclCollConfig_t, of collectives from 2.31 on; 0 for none */
};

/* Where calls are issued, and how. */
struct sim_issue {
    void *comm;
    int device;
    int log_file;  /* of NCCL's log; -1: none */
    int simulated; /* ask for the time only */
    int captured;  /* each call, or the group, in a CUDA graph of its own */
};

/* What is launched on the stream from here on goes into a CUDA graph, which has a lifetime of its own once the capture has
 * ended. 0, or -1 without memory. */
int sim_capture_begin(const void *stream);
void *sim_capture_end(const void *stream);
void sim_graph_destroy(void *graph);

/* What the host does at a launch of a graph; kernels are not run, but write the counters of NCCL's profiler where it has
 * them. */
void sim_graph_launch(const void *graph);

/* The calls one after the other. Stops at the first error. Returns how many answers were written, or -1 when there is no
 * address space for the buffers. */
int sim_issue(const struct sim_issue *issue, const struct sim_call *calls, int n, struct sim_answer *answers);

/* All calls in one group. The answer is of the whole group; the lists of its kernels, operations and questions are those
 * below. 0, or -1 without address space or memory. */
int sim_issue_group(const struct sim_issue *issue, const struct sim_call *calls, int n, struct sim_answer *answer);

/* What a rank's device was asked for and has; host memory is what NCCL has pinned. */
struct sim_bill {
    uint64_t device_bytes;
    uint64_t peak_device_bytes;
    uint64_t host_bytes;
};

struct sim_bill sim_bill_of(int device);

/* The call on every rank at once, each in a thread of its own, so that ranks connect. Fills results[ranks] and
 * blocks[ranks], of the first kernel that each launches. 0, or -1 when no thread could be started. */
int sim_issue_everywhere(void **comms, int ranks, const struct sim_call *call, int *results, int *blocks);

/* Kernels are launched with so many pointers as their parameters, which are written down from here on. */
void sim_keep_pointers(int of_kernel);

/* What the last answer's kernels were handed, one behind the other. */
const char *sim_arguments(void);

/* From here on operations of the network are kept whole: struct ncclProxyOp has so many bytes; 0: no longer. */
void sim_keep_proxy_operations(uint64_t bytes_of_each);

/* Those of the last answer, one behind the other, and how many bytes they are. */
const char *sim_proxy_operations(uint64_t *bytes);

/* As many as the last answer's record says. */
const struct sim_kernel *sim_kernels(void);
const struct sim_operation *sim_operations(void);
const struct sim_question *sim_questions(void);

#endif
