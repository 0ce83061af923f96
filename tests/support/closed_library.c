/* A library that calls the profiler as NCCL does, with words of its own, and may be closed before the process ends. */
#include <stdarg.h>
#include <stdio.h>

#include "profiler.h"

static void log_line(int level, unsigned long flags, const char *file, int line, const char *format, ...) {
    va_list values;
    (void)level, (void)flags, (void)file, (void)line;
    va_start(values, format);
    vprintf(format, values);
    va_end(values);
    puts("");
    fflush(stdout);
}

/* A collective of a communicator that is gone afterwards; 0 where the profiler took all of it. */
int call(const struct profiler_v5 *profiler) {
    void *context = NULL, *handle = NULL, *kernel = NULL;
    int mask = 0;
    struct event event = {.type = EVENT_COLLECTIVE};
    event.collective.function = "AllReduce";
    event.collective.type = "ncclFloat32";
    event.collective.algorithm = "RING";
    event.collective.protocol = "SIMPLE";
    event.collective.count = 1000;
    event.collective.channels = 1;
    event.collective.warps = 17;
    int failed = profiler->init(&context, 7, &mask, "closed", 1, 2, 0, log_line);
    failed |= profiler->start(context, &handle, &event) | profiler->stop(handle);
    struct event at_kernel = {.type = EVENT_KERNEL_CHANNEL, .parent = handle};
    at_kernel.kernel.start_ns = 1000;
    struct event_state ended = {51000};
    failed |= profiler->start(context, &kernel, &at_kernel);
    failed |= profiler->record(kernel, STATE_KERNEL_CHANNEL_STOP, &ended) | profiler->stop(kernel);
    return failed | profiler->finalize(context);
}
