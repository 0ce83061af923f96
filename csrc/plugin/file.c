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

char *file_absolute(const char *name) {
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

bool file_is_regular(int descriptor) {
    struct stat status;
    return status_of(descriptor, &status) == 0 && S_ISREG(status.st_mode);
}

static struct file_stamp stamp_of(const struct stat *status) {
    struct file_stamp stamp = {.device = status->st_dev, .inode = status->st_ino};
    if (S_ISREG(status->st_mode)) {
        stamp.size = (uint64_t)status->st_size;
        stamp.modified_s = (uint64_t)status->st_mtim.tv_sec;
        stamp.modified_ns = (uint64_t)status->st_mtim.tv_nsec;
    }
    return stamp;
}

static int open_to_read(const char *path) {
    /* O_NONBLOCK: opening a pipe that nobody writes to would wait for ever. */
    return open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
}

/* A writer that is at it shows in the size or the time, which are looked at again after reading. Where lines are only
 * ever added, what was read is what stood there, whatever has been added since. */
static bool is_whole(const struct file *file, const struct file_stamp *now, bool grows) {
    if (grows) {
        return file->size >= file->stamp.size && now->size >= file->size;
    }
    return memcmp(now, &file->stamp, sizeof *now) == 0 && now->size == file->size;
}

static bool read_descriptor(int descriptor, struct file *file, bool grows, struct file_error *error) {
    struct stat before, after;
    if (status_of(descriptor, &before) != 0) {
        return fail(error, errno);
    }
    file->stamp = stamp_of(&before);
    if (!S_ISREG(before.st_mode)) {
        snprintf(error->reason, sizeof error->reason, "not a regular file");
        return false;
    }
    if (!read_all(descriptor, file, error)) {
        return false;
    }
    if (status_of(descriptor, &after) != 0) {
        return fail(error, errno);
    }
    struct file_stamp now = stamp_of(&after);
    if (!is_whole(file, &now, grows)) {
        snprintf(error->reason, sizeof error->reason, "changed while it was read");
        return false;
    }
    return true;
}

static bool read_path(const char *path, struct file *file, bool grows, struct file_error *error) {
    *file = (struct file){0};
    int descriptor = open_to_read(path);
    if (descriptor < 0) {
        return fail(error, errno);
    }
    bool good = read_descriptor(descriptor, file, grows, error);
    close(descriptor);
    return good;
}

bool file_read(const char *path, struct file *file, struct file_error *error) {
    return read_path(path, file, false, error);
}

bool file_read_growing(const char *path, struct file *file, struct file_error *error) {
    return read_path(path, file, true, error);
}

struct file_stamp file_status(const char *path) {
    struct stat status;
    struct file_stamp stamp = {0};
    int descriptor = open_to_read(path);
    if (descriptor >= 0 && status_of(descriptor, &status) == 0) {
        stamp = stamp_of(&status);
    }
    if (descriptor >= 0) {
        close(descriptor);
    }
    return stamp;
}

void file_free(struct file *file) {
    free(file->bytes);
    *file = (struct file){0};
}
