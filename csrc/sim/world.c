/* Drives libnccl: one thread per rank to initialise, then one collective after the other on rank 0. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "sim.h"

typedef int status; /* ncclResult_t */

struct unique_id {
  char bytes[128];
};

/* Entry points of the loaded libnccl; simulate_end is NULL before 2.22. */
struct sim_api {
  status (*unique_id)(struct unique_id *id);
  status (*comm_init_rank)(void **comm, int ranks, struct unique_id id, int rank);
  status (*group_start)(void);
  status (*group_end)(void);
  status (*simulate_end)(void *info);
  status (*broadcast)(const void *send, void *receive, size_t count, int type, int root, void *comm, void *stream);
  status (*reduce)(const void *send, void *receive, size_t count, int type, int op, int root, void *comm,
                   void *stream);
  status (*all_gather)(const void *send, void *receive, size_t count, int type, void *comm, void *stream);
  status (*reduce_scatter)(const void *send, void *receive, size_t count, int type, int op, void *comm, void *stream);
  status (*all_reduce)(const void *send, void *receive, size_t count, int type, int op, void *comm, void *stream);
  status (*comm_register)(void *comm, void *buffer, size_t bytes, void **handle);               /* NULL before 2.19 */
  status (*window_register)(void *comm, void *buffer, size_t bytes, void **window, int flags); /* NULL before 2.27 */
};

/* --- initialisation --- */

struct rank {
  pthread_t thread;
  const struct sim_api *api;
  struct unique_id id;
  int ranks;
  int rank;
  void *comm;
  status result;
};

static void *initialise(void *argument) {
  struct rank *rank = argument;
  sim_set_device(rank->rank);
  rank->result = rank->api->comm_init_rank(&rank->comm, rank->ranks, rank->id, rank->rank);
  if (rank->result != 0) {
    sim_abandon_meetings();
    sim_release_watchers();
  }
  return NULL;
}

/* Fills comms[ranks] and results[ranks]. Returns 0, or -1 when no thread could be started. */
SIM_EXPORT int sim_init_ranks(const struct sim_api *api, int ranks, void **comms, status *results) {
  struct rank *all = calloc((size_t)ranks, sizeof *all);
  if (all == NULL) return -1;
  sim_set_device(0);
  status identified = api->unique_id(&all[0].id);
  int started = 0;
  for (int r = 0; identified == 0 && r < ranks; r++) {
    all[r] = (struct rank){.api = api, .id = all[0].id, .ranks = ranks, .rank = r};
    if (pthread_create(&all[r].thread, NULL, initialise, &all[r]) != 0) break;
    started++;
  }
  /* Ranks wait for each other: with one missing the others never return, so leave them. */
  if (identified == 0 && started < ranks) return -1;
  for (int r = 0; r < ranks; r++) {
    if (started > 0) pthread_join(all[r].thread, NULL);
    comms[r] = all[r].comm;
    results[r] = identified != 0 ? identified : all[r].result;
  }
  free(all);
  sim_meet_alone(1);
  return 0;
}

/* --- collectives --- */

enum { BROADCAST = 0, REDUCE = 1, ALL_GATHER = 2, REDUCE_SCATTER = 3, ALL_REDUCE = 4 };

#define BUFFER_BYTES ((size_t)1 << 42)
#define REGISTERED_BYTES ((size_t)1 << 34) /* 2.32 keeps all of a communicator's in an arena, and 64 GiB do not fit */

/* What the user told NCCL about a pair of buffers, which are used for nothing else. Of those for CUDA graphs nothing, but
 * NCCL may register them itself when it sees them. */
enum { PLAIN = 0, REGISTERED = 1, WINDOW = 2, IN_GRAPH = 3, N_KINDS = 4 };

static struct {
  void *send, *receive;
} buffers[N_KINDS];
static int used = PLAIN;

static size_t bytes_of(int kind) { return kind == PLAIN ? BUFFER_BYTES : REGISTERED_BYTES; }

/* The most bytes one buffer of a collective can have. */
SIM_EXPORT uint64_t sim_buffer_bytes(int kind) { return bytes_of(kind); }

static int prepare(int kind) {
  if (buffers[kind].send == NULL) buffers[kind].send = sim_map_untouchable(bytes_of(kind));
  if (buffers[kind].receive == NULL) buffers[kind].receive = sim_map_untouchable(bytes_of(kind));
  return buffers[kind].send == NULL || buffers[kind].receive == NULL ? -1 : 0;
}

static status register_pair(const struct sim_api *api, void *comm) {
  void *handle;
  status registered = api->comm_register(comm, buffers[REGISTERED].send, bytes_of(REGISTERED), &handle);
  if (registered != 0) return registered;
  return api->comm_register(comm, buffers[REGISTERED].receive, bytes_of(REGISTERED), &handle);
}

/* All ranks register a window together, each the same buffers: their memory is never looked at. */
static void *register_windows(void *argument) {
  enum { COLL_SYMMETRIC = 1 };
  struct rank *rank = argument;
  void *window;
  sim_set_device(rank->rank);
  size_t bytes = bytes_of(WINDOW);
  rank->result = rank->api->window_register(rank->comm, buffers[WINDOW].send, bytes, &window, COLL_SYMMETRIC);
  if (rank->result == 0)
    rank->result = rank->api->window_register(rank->comm, buffers[WINDOW].receive, bytes, &window, COLL_SYMMETRIC);
  if (rank->result != 0) sim_abandon_meetings();
  return NULL;
}

static status register_all_windows(const struct sim_api *api, void **comms, int ranks) {
  struct rank *all = calloc((size_t)ranks, sizeof *all);
  if (all == NULL) return -1;
  status result = 0;
  sim_meet_alone(0);
  for (int r = 0; r < ranks; r++) {
    all[r] = (struct rank){.api = api, .comm = comms[r], .rank = r};
    if (pthread_create(&all[r].thread, NULL, register_windows, &all[r]) != 0) return -1; /* the others never return */
  }
  for (int r = 0; r < ranks; r++) {
    pthread_join(all[r].thread, NULL);
    if (result == 0) result = all[r].result;
  }
  sim_meet_alone(1);
  free(all);
  return result;
}

/* Which buffers the collectives from now on have: NCCL is told of them when they are first used. Returns an
 * ncclResult_t, or -1 without address space or threads. */
SIM_EXPORT int sim_use_buffers(const struct sim_api *api, void **comms, int ranks, int kind) {
  if (kind < 0 || kind >= N_KINDS) return -1;
  int known = buffers[kind].send != NULL && buffers[kind].receive != NULL;
  if (prepare(kind) != 0) return -1;
  used = kind;
  sim_set_device(0);
  if (known) return 0;
  if (kind == REGISTERED) return register_pair(api, comms[0]);
  return kind == WINDOW ? register_all_windows(api, comms, ranks) : 0;
}

static int stream; /* its address is the stream */

static status call(const struct sim_api *api, void *comm, int collective, size_t count, int type, int op, int root) {
  const void *send = buffers[used].send;
  void *receive = buffers[used].receive;
  switch (collective) {
  case BROADCAST: return api->broadcast(send, receive, count, type, root, comm, &stream);
  case REDUCE: return api->reduce(send, receive, count, type, op, root, comm, &stream);
  case ALL_GATHER: return api->all_gather(send, receive, count, type, comm, &stream);
  case REDUCE_SCATTER: return api->reduce_scatter(send, receive, count, type, op, comm, &stream);
  case ALL_REDUCE: return api->all_reduce(send, receive, count, type, op, comm, &stream);
  default: return -1;
  }
}

/* ncclSimInfo_t as of 2.22. */
struct simulation {
  size_t bytes;
  unsigned int magic;
  unsigned int version;
  float time_us;
};

struct sim_answer {
  status result;
  float simulated_us; /* of a simulated group */
  uint64_t log_bytes; /* how long the log was afterwards */
  struct sim_record record;
};

static uint64_t log_length(int log_file) {
  struct stat info;
  fflush(NULL);
  return log_file >= 0 && fstat(log_file, &info) == 0 ? (uint64_t)info.st_size : 0;
}

static void collect(struct sim_answer *answer, int log_file) {
  sim_work_done();
  answer->record = sim_record();
  answer->log_bytes = log_length(log_file);
}

/* One collective per count, each on its own. simulated: ask for the time only; captured: each in a CUDA graph of its
 * own. Stops at the first error.
 * Returns how many answers were written, or -1 when there is no address space for the buffers. */
SIM_EXPORT int sim_ask(const struct sim_api *api, void *comm, int device, int collective, int type, int op,
                       int simulated, int captured, int log_file, const uint64_t *counts, int n,
                       struct sim_answer *answers) {
  if (prepare(used) != 0) return -1;
  sim_set_device(device);
  for (int i = 0; i < n; i++) {
    struct sim_answer *answer = &answers[i];
    memset(answer, 0, sizeof *answer);
    sim_record_start();
    if (simulated) {
      struct simulation info = {sizeof info, 0x74685283u, 22200u, 0.0f};
      api->group_start();
      answer->result = call(api, comm, collective, counts[i], type, op, 0);
      status ended = api->simulate_end(&info);
      if (answer->result == 0) answer->result = ended;
      answer->simulated_us = info.time_us;
    } else {
      if (captured) sim_capture_begin(&stream);
      answer->result = call(api, comm, collective, counts[i], type, op, 0);
      if (captured) sim_capture_end();
    }
    collect(answer, log_file);
    if (answer->result != 0) return i + 1;
  }
  return n;
}

struct sim_call {
  int collective;
  int type;
  int op;
  uint64_t count;
};

/* All calls in one group. The answer is of the whole group; the lists of its kernels, operations and questions are those
 * of sim_kernels() and its kin. Returns 0, or -1 without address space. */
SIM_EXPORT int sim_ask_group(const struct sim_api *api, void *comm, int device, int log_file,
                             const struct sim_call *calls, int n, struct sim_answer *answer) {
  if (prepare(used) != 0) return -1;
  sim_set_device(device);
  memset(answer, 0, sizeof *answer);
  sim_record_start();
  api->group_start();
  for (int i = 0; i < n && answer->result == 0; i++)
    answer->result = call(api, comm, calls[i].collective, calls[i].count, calls[i].type, calls[i].op, 0);
  status ended = api->group_end();
  if (answer->result == 0) answer->result = ended;
  collect(answer, log_file);
  return 0;
}
