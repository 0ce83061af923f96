/* What NCCL launched, asked a tuner plugin, and prepared for its network, for one collective or group at a time. */
#include <stdlib.h>
#include <string.h>

#include "export.h"
#include "machine.h"
#include "oracle.h"
#include "record.h"

static struct sim_kernel *kernels;
static struct sim_operation *operations;
static struct sim_question *questions;
static int n_kernels, n_operations, n_questions, cell_of_question;

void sim_record_start(void) {
    n_kernels = n_operations = n_questions = 0;
}

/* Room for one more item behind n: the list, moved where it had to grow. */
static void *grown(void *list, int n, size_t bytes) {
    if ((n & (n - 1)) != 0)
        return list; /* it doubles at powers of two */
    void *moved = realloc(list, (n == 0 ? 1 : 2 * (size_t)n) * bytes);
    if (moved == NULL)
        abort();
    return moved;
}

void sim_record_kernel(const void *function, uint32_t grid_x, uint32_t block_x) {
    kernels = grown(kernels, n_kernels, sizeof *kernels);
    kernels[n_kernels++] = (struct sim_kernel){function, grid_x, block_x, sim_device()};
}

/* NCCL prepares an operation of its network for every channel of a collective, all with the number that the collective
 * has in its kernel. */
void sim_record_operation(uint64_t number, int channel, int pattern, int protocol, int type) {
    uint64_t bit = (uint64_t)1 << channel;
    struct sim_operation *last = n_operations > 0 ? &operations[n_operations - 1] : NULL;
    if (last != NULL && last->number == number && (last->channels & bit) == 0) {
        last->channels |= bit;
        return;
    }
    operations = grown(operations, n_operations, sizeof *operations);
    operations[n_operations++] = (struct sim_operation){number, bit, pattern, protocol, type};
}

struct sim_question *sim_record_question(void) {
    questions = grown(questions, n_questions, sizeof *questions);
    struct sim_question *question = &questions[n_questions++];
    memset(question, 0, sizeof *question);
    return question;
}

struct sim_question *sim_record_cell(int cell, int algorithms, int protocols) {
    if (n_questions > 0 && cell > cell_of_question) {
        cell_of_question = cell;
        return &questions[n_questions - 1];
    }
    struct sim_question *question = sim_record_question();
    cell_of_question = cell;
    question->collective = question->registered = -1;
    question->algorithms = algorithms;
    question->protocols = protocols;
    for (int c = 0; c < SIM_MAX_CELLS; c++)
        question->before_us[c] = question->after_us[c] = -1.0f;
    return question;
}

struct sim_record sim_record(void) {
    struct sim_record record = {.kernels = n_kernels, .questions = n_questions, .operations = n_operations};
    if (n_kernels > 0)
        record.kernel = kernels[0];
    if (n_operations > 0)
        record.operation = operations[0];
    if (n_questions > 0)
        record.question = questions[n_questions - 1];
    return record;
}

SIM_EXPORT const struct sim_kernel *sim_kernels(void) {
    return kernels;
}

SIM_EXPORT const struct sim_operation *sim_operations(void) {
    return operations;
}

SIM_EXPORT const struct sim_question *sim_questions(void) {
    return questions;
}
