/* Functions of the C library that say when and where a process runs, replaced where one library calls them. */
#define _GNU_SOURCE
#include "disguise.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "imports.h"

static int64_t ahead_s;

static time_t later_time(time_t *out) {
    time_t now = time(NULL) + (time_t)ahead_s;
    if (out != NULL) {
        *out = now;
    }
    return now;
}

static int later_clock(clockid_t clock, struct timespec *out) {
    int result = clock_gettime(clock, out);
    out->tv_sec += (time_t)ahead_s;
    return result;
}

static int later_day(struct timeval *out, void *zone) {
    int result = gettimeofday(out, zone);
    out->tv_sec += (time_t)ahead_s;
    return result;
}

static int other_host(char *name, size_t bytes) {
    if (bytes > 0) {
        strncpy(name, "another-host", bytes - 1);
        name[bytes - 1] = '\0';
    }
    return 0;
}

static pid_t other_process(void) {
    return getpid() + 1;
}

int sim_disguise(void *library, int64_t seconds, int elsewhere) {
    const struct {
        const char *name;
        uintptr_t function;
        int of_place;
    } rows[] = {
        {"time", (uintptr_t)later_time, 0},        {"clock_gettime", (uintptr_t)later_clock, 0},
        {"gettimeofday", (uintptr_t)later_day, 0}, {"gethostname", (uintptr_t)other_host, 1},
        {"getpid", (uintptr_t)other_process, 1},
    };
    ahead_s = seconds;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int error =
            rows[i].of_place && !elsewhere ? 0 : sim_redirect_imports_of(library, rows[i].name, rows[i].function);
        if (error != 0) {
            return error;
        }
    }
    return 0;
}
