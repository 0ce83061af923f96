#define _DEFAULT_SOURCE /* O_CLOEXEC, O_NOFOLLOW beside plain C11 */

#include "jobfile.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "log.h"
#include "stats.h"

static const char magic[8] = "ncclj01";

uint64_t jobfile_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void jobfile_open(struct job_file *file, const char *folder, uint32_t seconds, int nccl, nccl_logger logger) {
    char here[sizeof file->folder / 2];
    if (folder[0] != '/' && getcwd(here, sizeof here)) { /* the program may go elsewhere */
        snprintf(file->folder, sizeof file->folder, "%s/%.1500s", here, folder);
    } else {
        snprintf(file->folder, sizeof file->folder, "%s", folder);
    }
    memcpy(file->head.magic, magic, sizeof magic);
    file->head.started_ns = jobfile_now_ns();
    file->head.pid = (uint64_t)getpid();
    file->head.launcher_rank = launcher_rank();
    file->head.nccl = (uint32_t)nccl;
    file->head.seconds = seconds;
    snprintf(file->head.host, sizeof file->head.host, "%s", this_host().name);
    snprintf(file->head.build, sizeof file->head.build, "%s", build_id);
    file->logger = logger;
}

/* Numbers that follow each other come out unlike: what stays has nothing to do with steps or blocks of the job. */
static uint64_t mixed(uint64_t sequence) {
    sequence = (sequence ^ sequence >> 31) * 0x7fb5d329728ea185u;
    sequence = (sequence ^ sequence >> 27) * 0x81dadef4bc2dd44du;
    return sequence ^ sequence >> 33;
}

static bool is_kept(const struct job_file *file, uint32_t sequence) {
    return (mixed(sequence) & (((uint64_t)1 << file->head.thinned) - 1)) == 0;
}

static void thin(struct job_file *file) {
    uint32_t kept = 0;
    file->head.thinned++;
    for (uint32_t i = 0; i < file->head.records; i++) {
        if (is_kept(file, file->records[i].sequence)) {
            file->records[kept++] = file->records[i];
        }
    }
    file->head.records = kept;
}

void jobfile_add(struct job_file *file, uint32_t kind, uint64_t sequence, double time_us, uint64_t ended_ns) {
    struct job_kind *of = &file->kinds[kind];
    if (time_us >= 0) {
        of->least_us = of->calls == 0 || time_us < of->least_us ? time_us : of->least_us;
        of->most_us = time_us > of->most_us ? time_us : of->most_us;
        of->sum_us += time_us;
        of->calls++;
    }
    while (file->head.records == MOST_RECORDS && file->head.thinned < 32) {
        thin(file);
    }
    if (file->head.records < MOST_RECORDS && is_kept(file, (uint32_t)sequence)) {
        uint64_t at_ns = ended_ns > file->head.started_ns ? ended_ns - file->head.started_ns : 0;
        file->records[file->head.records++] =
            (struct job_record){(uint32_t)sequence, kind, (float)time_us, (uint32_t)(at_ns / 1000000)};
    }
}

static bool write_all(int file, const void *bytes, size_t count) {
    for (const char *at = bytes; count > 0;) {
        ssize_t written = write(file, at, count);
        if (written <= 0) { /* no signal comes here that would make it worth another try */
            return false;
        }
        at += written;
        count -= (size_t)written;
    }
    return true;
}

void jobfile_write(struct job_file *file) {
    struct job_head *head = &file->head;
    char own[160], name[3400], begun[3400];
    int kept = errno;
    head->ended_ns = jobfile_now_ns();
    snprintf(own, sizeof own, "%s.%" PRIu64 ".%" PRIu64 ".%" PRIu64, head->host, head->pid, head->started_ns,
             head->number);
    snprintf(name, sizeof name, "%s/%s.job", file->folder, own);
    snprintf(begun, sizeof begun, "%s/.%s.begun", file->folder, own);
    if (mkdir(file->folder, 0755) != 0 && errno == EEXIST) {
        errno = 0;
    }
    unlink(begun);
    int to = open(begun, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    bool good = to >= 0 && write_all(to, head, sizeof *head) &&
                write_all(to, file->communicators, head->communicators * sizeof *file->communicators) &&
                write_all(to, file->kinds, head->kinds * sizeof *file->kinds) &&
                write_all(to, file->records, head->records * sizeof *file->records);
    if (to >= 0) {
        good = close(to) == 0 && good;
        good = good && rename(begun, name) == 0;
    }
    if (!good && !file->failed) {
        log_warn(file->logger, "%.512s: errno %d; what is measured of this job is not written (" JOB_VARIABLE ")", name,
                 errno);
    }
    if (!good && to >= 0) {
        unlink(begun);
    }
    file->failed = !good;
    errno = kept;
}

bool jobfile_is_over(const struct job_file *file, uint64_t now_ns) {
    return now_ns - file->head.started_ns >= (uint64_t)FILE_SECONDS * 1000000000u;
}

void jobfile_begin(struct job_file *file) {
    struct job_head *head = &file->head;
    head->started_ns = jobfile_now_ns();
    head->number++;
    head->records = 0;
    head->thinned -= head->thinned > 0;
    for (uint32_t i = 0; i < head->kinds; i++) {
        struct job_kind *kind = &file->kinds[i];
        kind->calls = 0;
        kind->sum_us = kind->least_us = kind->most_us = 0;
    }
}
