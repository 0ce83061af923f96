/* Loaded before a rank: the files by which ranks agree to explore misbehave as HOSTILE_FILES says.
 *
 *     hang SECONDS      once the rank has said that it is there, whatever it reads or writes
 *     yes SECONDS       the decision of rank 0 takes so long to be written
 *     full              it cannot be
 *     unsure SECONDS    it is written, and for so long not sure to be on the disk
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { YES = 2, DECISION = 8, WORD = 16, FIRST_WORD = 96, WORDS = 24 };

static double began, said, decided; /* seconds, 0: not yet */

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static double seconds(const char *what) {
    const char *value = getenv("HOSTILE_FILES");
    size_t length = strlen(what);
    return value && strncmp(value, what, length) == 0 ? strtod(value + length, NULL) : -1;
}

static int is_ours(int file) {
    char name[64], path[4096];
    snprintf(name, sizeof name, "/proc/self/fd/%d", file);
    ssize_t length = readlink(name, path, sizeof path - 1);
    return length > 0 && memmem(path, (size_t)length, "/.explore.", 10) != NULL;
}

static void hang(int file) {
    while (is_ours(file) && said > 0 && now() < said + seconds("hang")) {
        usleep(10000);
    }
}

ssize_t pread(int file, void *bytes, size_t count, off_t at) {
    ssize_t (*next)(int file, void *bytes, size_t count, off_t at);
    *(void **)&next = dlsym(RTLD_NEXT, "pread");
    hang(file);
    return next(file, bytes, count, at);
}

ssize_t pwrite(int file, const void *bytes, size_t count, off_t at) {
    ssize_t (*next)(int file, const void *bytes, size_t count, off_t at);
    *(void **)&next = dlsym(RTLD_NEXT, "pwrite");
    uint64_t value = 0;
    hang(file);
    memcpy(&value, bytes, count < sizeof value ? count : sizeof value);
    int decides = is_ours(file) && count == DECISION && value == YES;
    if (decides && seconds("full") >= 0) {
        errno = ENOSPC;
        return -1;
    }
    if (decides && began == 0) {
        began = now();
        while (now() < began + seconds("yes")) {
            usleep(10000);
        }
    }
    ssize_t written = next(file, bytes, count, at);
    if (decides && decided == 0) {
        decided = now();
    }
    if (is_ours(file) && count == WORD && said == 0 && at >= FIRST_WORD && (at - FIRST_WORD) % WORDS == 0) {
        said = now();
    }
    return written;
}

int fsync(int file) {
    int (*next)(int file);
    *(void **)&next = dlsym(RTLD_NEXT, "fsync");
    hang(file);
    if (is_ours(file) && decided > 0 && now() < decided + seconds("unsure")) {
        errno = EIO;
        return -1;
    }
    return next(file);
}
