/* A tuner for NCCL_TUNER_NEXT, of all versions of the interface. It reads all that it is handed and answers nothing; with
 * -DNEXT_FAILS it overwrites all that it may and fails, of which nothing may be left. A communicator that is not ended
 * is a leak. Says at its end how often it was asked. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "../interface.h"

#ifdef NEXT_FAILS
enum { FAILS = 1, RESULT_OF_CALLS = 3 };
#else
enum { FAILS = 0, RESULT_OF_CALLS = RESULT_SUCCESS };
#endif

static atomic_size_t asked;

__attribute__((destructor)) static void say(void) {
    printf("asked %zu times\n", atomic_load(&asked));
}

/* Written at init, read at each call, freed at the end. */
struct context {
    size_t ranks, nodes;
};

static int start(size_t ranks, size_t nodes, nccl_logger logger, void **context) {
    struct context *made = malloc(sizeof *made);
    if (!made) {
        return RESULT_INVALID_USAGE;
    }
    *made = (struct context){ranks, nodes};
    *context = made;
    if (logger) {
        logger(LEVEL_INFO, 0x41, "next", 0, "%s", "TUNER/nccl-tuner: next"); /* as the driver's logger wants it */
    }
    return RESULT_SUCCESS;
}

static int end(void *context) {
    free(context);
    return RESULT_SUCCESS;
}

static void put(int *value) {
    if (FAILS) {
        *value = 99;
    }
}

static int name_choice(int *algorithm, int *protocol, int *channels) {
    atomic_fetch_add(&asked, 1);
    put(algorithm);
    put(protocol);
    put(channels);
    return RESULT_OF_CALLS;
}

static int init_v1(size_t ranks, size_t nodes, nccl_logger logger) {
    (void)ranks, (void)nodes, (void)logger;
    return RESULT_SUCCESS;
}

static int ask_v1(int collective, size_t bytes, int collnet, int nvls, int pipelined, int *algorithm, int *protocol,
                  int *channels) {
    (void)collective, (void)bytes, (void)collnet, (void)nvls, (void)pipelined;
    return name_choice(algorithm, protocol, channels);
}

static int end_v1(void) {
    return RESULT_SUCCESS;
}

static int ask_v2(void *context, int collective, size_t bytes, int collnet, int nvls, int pipelined, int *algorithm,
                  int *protocol, int *channels) {
    (void)collective, (void)bytes, (void)collnet, (void)nvls, (void)pipelined;
    return ((struct context *)context)->ranks ? name_choice(algorithm, protocol, channels) : RESULT_INVALID_USAGE;
}

static int ask_v4(void *context, int collective, size_t bytes, int pipelined, float **costs, int algorithms,
                  int protocols, int registered, int *channels) {
    (void)collective, (void)bytes, (void)pipelined, (void)registered;
    float *cells = (float *)(void *)costs;
    volatile float total = (float)((struct context *)context)->ranks; /* so that each is read */
    atomic_fetch_add(&asked, 1);
    for (int cell = 0; cell < algorithms * protocols; cell++) {
        total += cells[cell];
        cells[cell] = FAILS ? 1e-9f : cells[cell];
    }
    put(channels);
    return RESULT_OF_CALLS;
}

static int ask_v3(void *context, int collective, size_t bytes, int pipelined, float **costs, int algorithms,
                  int protocols, int *channels) {
    return ask_v4(context, collective, bytes, pipelined, costs, algorithms, protocols, 0, channels);
}

static int init_v5(void **context, uint64_t communicator, size_t ranks, size_t nodes, nccl_logger logger,
                   struct domains *domains, struct constants *constants) {
    (void)communicator, (void)domains, (void)constants;
    return start(ranks, nodes, logger, context);
}

static int init_v7(void **context, uint64_t communicator, size_t ranks, size_t nodes, nccl_logger logger,
                   struct domains *domains, struct constants_v7 *constants) {
    (void)communicator, (void)domains, (void)constants;
    return start(ranks, nodes, logger, context);
}

static int get_chunk_size(void *context, int collective, size_t bytes, int algorithm, int protocol, int channels,
                          size_t *chunk_bytes) {
    (void)context, (void)collective, (void)bytes, (void)algorithm, (void)protocol, (void)channels;
    *chunk_bytes += FAILS;
    return RESULT_OF_CALLS;
}

const struct plugin_v1 ncclTunerPlugin_v1 = {"next", init_v1, ask_v1, end_v1};
const struct plugin_v2 ncclTunerPlugin_v2 = {"next", start, ask_v2, end};
const struct plugin_v3 ncclTunerPlugin_v3 = {"next", start, ask_v3, end};
const struct plugin_v4 ncclTunerPlugin_v4 = {"next", start, ask_v4, end};
const struct plugin_v5 ncclTunerPlugin_v5 = {"next", init_v5, ask_v4, end};
struct plugin_v7 ncclTunerPlugin_v7 = {"next", init_v7, ask_v4, end, get_chunk_size};
struct plugin_v6_and_trial ncclTunerPlugin_v6 = {{{"next", init_v5, ask_v4, end}, get_chunk_size}, NULL};
