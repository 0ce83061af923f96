/* Loaded before a rank: the files by which ranks agree to explore misbehave as HOSTILE_FILES says, and with the first three
 * words those that it measures into.
 *
 *     job-hang SECONDS  so long a write takes
 *     job-nothing       a write takes no byte, and says no error
 *     job-error NUMBER  each write, and the rename after it, fails with this errno
 *
 *     process           it is process 1, as in a container; its host has the name that others have
 *     hang SECONDS      once the rank has said that it is there, whatever it reads or writes
 *     yes SECONDS       the decision of rank 0 takes so long to be written
 *     full              it cannot be
 *     unsure SECONDS    it is written, and for so long not sure to be on the disk
 *     nfs SECONDS       files are as a client of NFS has them (fs/nfs/file.c and write.c of Linux 6.1, acregmin, cto): what
 *                       was read is read again from a page of its own, until the file is opened after so many seconds;
 *                       unless it is open with O_DSYNC, a write takes such a page along; a file that is removed is gone
 *                       (ESTALE) for those who have it open
 *     nfs-broken SECONDS    and one of 23 accesses fails (EIO), a write once it is done
 *     nfs-again SECONDS     and what the rank says is for so long not sure to be on the disk: it says it again
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
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
    return value && strncmp(value, what, length) == 0 && strchr(" ", value[length]) ? strtod(value + length, NULL) : -1;
}

pid_t getpid(void) {
    const char *how = getenv("HOSTILE_FILES");
    return how && strcmp(how, "process") == 0 ? 1 : (pid_t)syscall(SYS_getpid);
}

static int is_named(int file, const char *part) {
    char name[64], path[4096];
    snprintf(name, sizeof name, "/proc/self/fd/%d", file);
    ssize_t length = readlink(name, path, sizeof path - 1);
    return length > 0 && memmem(path, (size_t)length, part, strlen(part)) != NULL;
}

static int is_ours(int file) {
    return is_named(file, "/.explore.");
}

ssize_t write(int file, const void *bytes, size_t count) {
    ssize_t (*next)(int file, const void *bytes, size_t count);
    *(void **)&next = dlsym(RTLD_NEXT, "write");
    const char *how = getenv("HOSTILE_FILES");
    if (!how || strncmp(how, "job-", 4) != 0 || !is_named(file, ".begun")) {
        return next(file, bytes, count);
    }
    if (seconds("job-hang") >= 0) {
        usleep((useconds_t)(1e6 * seconds("job-hang")));
        return next(file, bytes, count);
    }
    errno = (int)seconds("job-error");
    return errno > 0 ? -1 : 0;
}

static void hang(int file) {
    while (is_ours(file) && said > 0 && now() < said + seconds("hang")) {
        usleep(10000);
    }
}

/* --- NFS --- */

enum { FILES = 64, PAGE = 4096 }; /* of up to 160 ranks a file has one page */

struct cached {
    ino_t inode;
    int valid;
    double since;
    ssize_t length;
    unsigned char page[PAGE];
};

static struct cached files[FILES];
static int accesses;

static double cached_seconds(void) {
    const char *value = getenv("HOSTILE_FILES");
    const char *number = value && strncmp(value, "nfs", 3) == 0 ? strchr(value, ' ') : NULL;
    return number ? strtod(number, NULL) : -1;
}

static struct cached *cache_of(int file) {
    struct stat known;
    if (cached_seconds() < 0 || !is_ours(file) || fstat(file, &known) != 0) {
        return NULL;
    }
    struct cached *own = &files[known.st_ino % FILES];
    if (own->inode != known.st_ino) {
        *own = (struct cached){.inode = known.st_ino};
    }
    return own;
}

static int fails(int file) {
    struct stat known;
    if (cached_seconds() >= 0 && is_ours(file) && fstat(file, &known) == 0 && known.st_nlink == 0) {
        errno = ESTALE;
        return 1;
    }
    if (seconds("nfs-broken") >= 0 && is_ours(file) && ++accesses % 23 == 0) {
        errno = EIO;
        return 1;
    }
    return 0;
}

int open(const char *path, int flags, ...) {
    int (*next)(const char *path, int flags, ...);
    *(void **)&next = dlsym(RTLD_NEXT, "open");
    va_list more;
    va_start(more, flags);
    int mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, int) : 0;
    va_end(more);
    int file = next(path, flags, mode);
    struct cached *own = file >= 0 ? cache_of(file) : NULL;
    if (own && now() >= own->since + cached_seconds()) {
        own->valid = 0;
    }
    return file;
}

int posix_fadvise(int file, off_t at, off_t length, int advice) {
    int (*next)(int file, off_t at, off_t length, int advice);
    *(void **)&next = dlsym(RTLD_NEXT, "posix_fadvise");
    struct cached *own = cache_of(file);
    if (own && advice == POSIX_FADV_DONTNEED) {
        own->valid = 0;
    }
    return next(file, at, length, advice);
}

ssize_t pread(int file, void *bytes, size_t count, off_t at) {
    ssize_t (*next)(int file, void *bytes, size_t count, off_t at);
    *(void **)&next = dlsym(RTLD_NEXT, "pread");
    struct cached *own = cache_of(file);
    hang(file);
    if (fails(file)) {
        return -1;
    }
    if (!own || at + count > PAGE) {
        return next(file, bytes, count, at);
    }
    if (!own->valid) {
        own->length = next(file, own->page, PAGE, 0);
        own->since = now();
        own->valid = own->length >= 0;
    }
    ssize_t got = own->length <= at ? 0 : own->length - at < (ssize_t)count ? own->length - at : (ssize_t)count;
    memcpy(bytes, own->page + at, (size_t)got);
    return got;
}

/* With the page that is there already, as it was read. */
static void write_page(int file, const void *bytes, size_t count, off_t at) {
    ssize_t (*next)(int file, const void *bytes, size_t count, off_t at);
    *(void **)&next = dlsym(RTLD_NEXT, "pwrite");
    struct cached *own = cache_of(file);
    if (own && own->valid && at + count <= PAGE) {
        memcpy(own->page + at, bytes, count);
        own->length = own->length < (ssize_t)(at + count) ? (ssize_t)(at + count) : own->length;
        if (!(fcntl(file, F_GETFL) & O_DSYNC)) {
            next(file, own->page, (size_t)own->length, 0);
        }
    }
}

ssize_t pwrite(int file, const void *bytes, size_t count, off_t at) {
    ssize_t (*next)(int file, const void *bytes, size_t count, off_t at);
    *(void **)&next = dlsym(RTLD_NEXT, "pwrite");
    uint64_t value = 0;
    hang(file);
    write_page(file, bytes, count, at);
    if (fails(file)) {
        if (errno == EIO) {
            next(file, bytes, count, at);
            errno = EIO;
        }
        return -1;
    }
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
    if (fails(file)) {
        return -1;
    }
    if (is_ours(file) &&
        ((decided > 0 && now() < decided + seconds("unsure")) || (said > 0 && now() < said + seconds("nfs-again")))) {
        errno = EIO;
        return -1;
    }
    return next(file);
}
