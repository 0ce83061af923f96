/* What was launched and what the tuner plugin was asked. One collective at a time is recorded. */
#include <string.h>

#include "sim.h"

enum { KEPT = 256 };

static struct sim_kernel kernels[KEPT];
static struct sim_question questions[KEPT];
static int n_kernels, n_questions;

void sim_record_kernel(const void *function, uint32_t grid_x, uint32_t block_x) {
  int slot = __atomic_fetch_add(&n_kernels, 1, __ATOMIC_RELAXED);
  if (slot < KEPT) kernels[slot] = (struct sim_kernel){function, grid_x, block_x, sim_device()};
}

struct sim_question *sim_record_question(void) {
  int slot = __atomic_fetch_add(&n_questions, 1, __ATOMIC_RELAXED);
  /* The last one decides, so that is the one never lost. */
  return &questions[slot < KEPT ? slot : KEPT - 1];
}

SIM_EXPORT void sim_record_start(void) { n_kernels = n_questions = 0; }

/* How many there were, which may be more than were kept. */
SIM_EXPORT int sim_kernels(void) { return n_kernels; }
SIM_EXPORT int sim_questions(void) { return n_questions; }

SIM_EXPORT const struct sim_kernel *sim_kernel_at(int index) {
  return index >= 0 && index < n_kernels && index < KEPT ? &kernels[index] : NULL;
}

SIM_EXPORT const struct sim_question *sim_question_at(int index) {
  return index >= 0 && index < n_questions && index < KEPT ? &questions[index] : NULL;
}
