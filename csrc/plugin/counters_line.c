/* The one thing that a call does beside its work, once for each row: apart, so that a test can hold the rest of a call
 * to no allocation, lock or system call. */
#include "counters.h"
#include "log.h"
#include "names.h"

__attribute__((cold, noinline)) void counters_say_first(const struct counters *counters, const struct choice *choice,
                                                        unsigned line, const struct call *call) {
    log_info(counters->logger, "line %u decides for the first time here: %s of %zu bytes by %s/%s", line,
             collective_name(call->collective), call->bytes, algorithm_name(choice->algorithm),
             protocol_name(choice->protocol));
}
