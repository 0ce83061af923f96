#define _DEFAULT_SOURCE /* open, getcwd, strerror_r, syscall beside plain C11 */

#include "file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* A quarter of a million rows; more is some other file. */
enum { MOST_BYTES = 16 << 20 };

static bool fail(struct file_error *error, int number) {
    if (strerror_r(number, error->reason, sizeof error->reason) != 0) {
        snprintf(error->reason, sizeof error->reason, "error %d", number);
    }
    return false;
}

static char *absolute(const char *name) {
    char folder[PATH_MAX];
    if (name[0] == '/' || !getcwd(folder, sizeof folder)) {
        folder[0] = '\0'; /* no folder to speak of: the name as it is */
    }
    const char *slash = folder[0] && strcmp(folder, "/") != 0 ? "/" : "";
    size_t length = strlen(folder) + strlen(slash) + strlen(name) + 1;
    char *path = malloc(length);
    if (path) {
        snprintf(path, length, "%s%s%s", folder, slash, name);
    }
    return path;
}

/* Reads on until the end: the size may have changed since it was asked for. */
static bool read_all(int descriptor, struct file *file, struct file_error *error) {
    file->bytes = malloc(MOST_BYTES + 1);
    if (!file->bytes) {
        return fail(error, ENOMEM);
    }
    while (file->size <= MOST_BYTES) {
        ssize_t count = read(descriptor, file->bytes + file->size, MOST_BYTES + 1 - file->size);
        if (count == 0) {
            return true;
        }
        if (count > 0) {
            file->size += (size_t)count;
        } else if (errno != EINTR) {
            return fail(error, errno);
        }
    }
    snprintf(error->reason, sizeof error->reason, "larger than %d bytes", MOST_BYTES);
    return false;
}

/* The C library's own fstat() is a function since glibc 2.33 only: a plugin that was built with it would not load on
 * older systems. */
static int status_of(int descriptor, struct stat *status) {
    return (int)syscall(SYS_fstat, descriptor, status);
}

bool file_read(const char *name, struct file *file, struct file_error *error) {
    *file = (struct file){.path = absolute(name)};
    if (!file->path) {
        return fail(error, ENOMEM);
    }
    /* O_NONBLOCK: opening a pipe that nobody writes to would wait for ever. */
    int descriptor = open(file->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (descriptor < 0) {
        return fail(error, errno);
    }
    struct stat status;
    bool good = false;
    if (status_of(descriptor, &status) != 0) {
        fail(error, errno);
    } else if (!S_ISREG(status.st_mode)) {
        snprintf(error->reason, sizeof error->reason, "not a regular file");
    } else {
        good = read_all(descriptor, file, error);
    }
    close(descriptor);
    return good;
}

void file_free(struct file *file) {
    free(file->path);
    free(file->bytes);
    *file = (struct file){0};
}
