/* Writes down what is observed, since sim_record_start(). */
#ifndef NCCL_TUNER_SIM_RECORD_H
#define NCCL_TUNER_SIM_RECORD_H

#include "observed.h"

void sim_record_start(void);
void sim_record_nothing(void); /* from here on, for good */
struct sim_record sim_record(void);

/* A launch; `parameters` and `extra` as the CUDA driver takes them, NULL where they are not looked at. */
struct sim_launch {
    const void *function;
    uint32_t grid_x;
    uint32_t block_x;
    const void *stream;
    void **parameters;
    void **extra;
};

/* 0, or the error of CUDA that was planted for this launch. */
int sim_record_kernel(const struct sim_launch *launch);

/* `operation` is of one channel. */
void sim_record_operation(int channel, const struct sim_operation *operation);

/* What is kept of every operation of the network, where that is asked for. */
void sim_keep_proxy_operation(const void *operation);
void sim_forget_proxy_operations(void);

/* Operations from here on are of other collectives than those before. */
void sim_record_next_collective(void);

/* A question in a list of them: the pointer holds until the next one. */
struct sim_question *sim_record_question(void);

/* The question that this cell belongs to: cells are asked for in their order, so an earlier one begins a new question,
 * with empty tables. */
struct sim_question *sim_record_cell(int cell, int algorithms, int protocols);

/* What was launched has run: its work is taken. */
void sim_work_done(void);

#endif
