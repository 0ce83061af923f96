/* libFuzzer: which events the profiler is told of, in which order and with which handles; NCCL_TUNER_JOB names the
 * folder. `make fuzz`. */
#define main of_random_events
#include "events.c"
#undef main

int LLVMFuzzerInitialize(int *count, char ***words);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static struct communicators those;

int LLVMFuzzerInitialize(int *count, char ***words) {
    (void)count, (void)words;
    struct source source = {.seed = 1};
    CHECK(getenv("NCCL_TUNER_JOB") != NULL);
    open_communicators(&source, &those);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    struct source source = {.bytes = bytes, .left = size};
    while (source.left > 0) {
        check_event(&source, &those);
    }
    return 0;
}
