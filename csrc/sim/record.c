/* What NCCL launched, asked a tuner plugin, and prepared for its network, for one collective or group at a time. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "double.h"
#include "export.h"
#include "machine.h"
#include "oracle.h"
#include "record.h"

static struct sim_kernel *kernels;
static struct sim_operation *operations;
static struct sim_question *questions;
static char *arguments;
static size_t n_arguments, room_for_arguments;
static int n_kernels, n_operations, n_questions, cell_of_question;
static int pointers_of_kernel;
static int first_operation; /* of the collectives that operations are of now */

static int nobody_reads;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int planted_error, launches_before_error;

void sim_record_nothing(void) {
    nobody_reads = 1;
}

void sim_record_start(void) {
    n_kernels = n_operations = n_questions = first_operation = 0;
    n_arguments = 0;
    sim_forget_proxy_operations();
}

void sim_record_next_collective(void) {
    first_operation = n_operations;
}

SIM_EXPORT void sim_plant_launch_error(int error, int launches) {
    planted_error = error;
    launches_before_error = launches;
}

/* Room for one more item behind n: the list, moved where it had to grow. */
static void *grown(void *list, int n, size_t bytes) {
    if ((n & (n - 1)) != 0) {
        return list; /* it doubles at powers of two */
    }
    void *moved = realloc(list, (n == 0 ? 1 : 2 * (size_t)n) * bytes);
    if (moved == NULL) {
        abort();
    }
    return moved;
}

static void keep(const void *bytes, size_t n) {
    if (n_arguments + n > room_for_arguments) {
        room_for_arguments = 2 * (n_arguments + n);
        arguments = realloc(arguments, room_for_arguments);
        if (arguments == NULL) {
            abort();
        }
    }
    memcpy(arguments + n_arguments, bytes, n);
    n_arguments += n;
}

SIM_EXPORT void sim_keep_pointers(int of_kernel) {
    pointers_of_kernel = of_kernel;
}

/* What a kernel is handed: a buffer of bytes, or pointers to its parameters, whose sizes are nowhere. */
static size_t keep_arguments(const struct sim_launch *launch) {
    enum { END = 0, BUFFER = 1, BUFFER_BYTES = 2 }; /* CU_LAUNCH_PARAM_... */
    size_t before = n_arguments;
    const void *buffer = NULL;
    size_t bytes = 0;
    for (void **at = launch->extra; at != NULL && (uintptr_t)at[0] != END; at += 2) {
        if ((uintptr_t)at[0] == BUFFER) {
            buffer = at[1];
        } else if ((uintptr_t)at[0] == BUFFER_BYTES) {
            memcpy(&bytes, at[1], sizeof bytes);
        }
    }
    if (buffer != NULL) {
        keep(buffer, bytes);
    } else if (launch->parameters != NULL) {
        for (int i = 0; i < pointers_of_kernel; i++) {
            keep(launch->parameters[i], sizeof(void *));
        }
    }
    return n_arguments - before;
}

int sim_record_kernel(const struct sim_launch *launch) {
    if (nobody_reads && planted_error == 0) {
        return 0;
    }
    pthread_mutex_lock(&lock);
    int error = planted_error != 0 && launches_before_error-- <= 0 ? planted_error : 0;
    if (error == 0 && !nobody_reads) {
        kernels = grown(kernels, n_kernels, sizeof *kernels);
        kernels[n_kernels++] = (struct sim_kernel){launch->function, launch->grid_x, launch->block_x,
                                                   sim_device(),     launch->stream, keep_arguments(launch)};
    }
    pthread_mutex_unlock(&lock);
    return error;
}

/* NCCL prepares an operation of its network for every channel of a collective, all with the number that the collective
 * has in its kernel. */
void sim_record_operation(int channel, const struct sim_operation *operation) {
    if (nobody_reads) {
        return;
    }
    uint64_t bit = (uint64_t)1 << channel;
    pthread_mutex_lock(&lock);
    struct sim_operation *last = n_operations > first_operation ? &operations[n_operations - 1] : NULL;
    if (last != NULL && last->number == operation->number && last->comm == operation->comm &&
        (last->channels & bit) == 0) {
        last->channels |= bit;
    } else {
        operations = grown(operations, n_operations, sizeof *operations);
        operations[n_operations] = *operation;
        operations[n_operations++].channels = bit;
    }
    pthread_mutex_unlock(&lock);
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
    for (int c = 0; c < SIM_MAX_CELLS; c++) {
        question->before_us[c] = question->after_us[c] = -1.0f;
    }
    return question;
}

struct sim_record sim_record(void) {
    struct sim_record record = {.kernels = n_kernels, .questions = n_questions, .operations = n_operations};
    if (n_kernels > 0) {
        record.kernel = kernels[0];
    }
    if (n_operations > 0) {
        record.operation = operations[0];
    }
    if (n_questions > 0) {
        record.question = questions[n_questions - 1];
    }
    return record;
}

SIM_EXPORT const struct sim_kernel *sim_kernels(void) {
    return kernels;
}

SIM_EXPORT const char *sim_arguments(void) {
    return arguments;
}

SIM_EXPORT const struct sim_operation *sim_operations(void) {
    return operations;
}

SIM_EXPORT const struct sim_question *sim_questions(void) {
    return questions;
}
