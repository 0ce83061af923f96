/* What NCCL launched, asked a tuner plugin, and prepared for its network, for one collective or group at a time. */
#include <string.h>

#include "sim.h"

static struct sim_record record;

void sim_record_start(void) { memset(&record, 0, sizeof record); }

const struct sim_record *sim_record(void) { return &record; }

void sim_record_kernel(const void *function, uint32_t grid_x, uint32_t block_x) {
  if (record.kernels++ == 0) record.kernel = (struct sim_kernel){function, grid_x, block_x, sim_device()};
}

void sim_record_operation(int pattern, int protocol) {
  if (record.operations++ == 0) record.operation = (struct sim_operation){pattern, protocol};
}

struct sim_question *sim_record_question(void) {
  record.questions++;
  return &record.question;
}

struct sim_question *sim_record_cell(int algorithms, int protocols) {
  struct sim_question *question = &record.question;
  if (record.questions == 0) {
    record.questions = 1;
    question->collective = question->registered = -1;
    question->algorithms = algorithms;
    question->protocols = protocols;
    for (int cell = 0; cell < SIM_MAX_CELLS; cell++) question->before_us[cell] = question->after_us[cell] = -1.0f;
  }
  return question;
}
