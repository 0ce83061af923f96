#define _DEFAULT_SOURCE /* open, mmap, posix_fallocate beside plain C11 */

#include "live.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "counters.h"
#include "log.h"

static const char magic[8] = "ncclt01";

enum { MOST_FILES = 100000, LINE_BYTES = 64 };

static void copy(char *to, size_t room, const char *text) {
    snprintf(to, room, "%s", text);
}

/* A new file of the process in the folder, by the first number that is free. -1 with errno. */
static int create(const char *folder, const char *host, const char *kind, int most, char **path) {
    int file = -1;
    if (mkdir(folder, 0755) != 0 && errno != EEXIST) {
        return -1;
    }
    for (int number = 0; number < most; number++) {
        size_t room = strlen(folder) + strlen(host) + 64;
        char *name = malloc(room);
        if (!name) {
            return -1;
        }
        snprintf(name, room, "%s/%s.%ld.%s%d", folder, host, (long)getpid(), kind, number);
        file = open(name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
        if (file >= 0) {
            *path = name;
            return file;
        }
        free(name);
        if (errno != EEXIST) {
            return -1;
        }
    }
    return -1;
}

/* Space for all of it is had at once: a full disk shows here, and not as a signal when a page is touched. */
static struct live_head *map(int file, size_t bytes) {
    bool held = stats_hold_signal();
    int wrong = posix_fallocate(file, 0, (off_t)bytes);
    stats_let_signal(held, wrong);
    void *memory = wrong ? MAP_FAILED : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    errno = wrong ? wrong : errno;
    return memory == MAP_FAILED ? NULL : memory;
}

static void fill(const struct stats *stats, struct live_head *head) {
    memcpy(head->magic, magic, sizeof magic);
    head->communicator = stats->communicator;
    head->ranks = stats->shape.ranks;
    head->nodes = stats->shape.nodes;
    head->pid = (uint64_t)getpid();
    head->started_s = stats->started_s;
    head->nccl = (uint64_t)stats->nccl;
    head->rank = launcher_rank();
    copy(head->host, sizeof head->host, this_host().name);
    copy(head->build, sizeof head->build, build_id);
    copy(head->sha256, sizeof head->sha256, stats->loaded->sha256.text);
    copy(head->table, sizeof head->table, stats->loaded->path);
}

static void fill_lines(const struct table *table, struct live_head *head) {
    uint32_t *lines = (uint32_t *)(head + 1), *cost_lines = lines + table->choice_count;
    for (size_t i = 0; i < table->decision_count; i++) {
        uint32_t choice = table->decisions[i].choice;
        do {
            lines[choice] = choice >= FIRST_CHOICE ? table->decisions[i].line : 0;
        } while (table->choices[choice++].more);
    }
    for (size_t i = 0; i < table->cost_count; i++) {
        cost_lines[i] = table->costs[i].line;
    }
}

static struct live_head *make(const struct stats *stats, const char *kind, int most, size_t bytes, char **path) {
    const char *folder = getenv(LIVE_VARIABLE);
    if (!folder || !folder[0]) {
        return NULL;
    }
    int kept = errno, file = create(folder, this_host().name, kind, most, path);
    struct live_head *head = file >= 0 ? map(file, bytes) : NULL;
    if (!head && (file >= 0 || most > 1 || errno != EEXIST)) {
        log_warn(stats->logger, "%.512s: errno %d; nobody can look at the counts while they run (" LIVE_VARIABLE ")",
                 file >= 0 ? *path : folder, errno);
    }
    if (!head && file >= 0) {
        unlink(*path);
        free(*path);
        *path = NULL;
    }
    if (file >= 0) {
        close(file);
    }
    errno = kept;
    return head;
}

void *live_open(const struct stats *stats, struct live *live) {
    const struct table *table = &stats->loaded->table;
    size_t lines = (table->choice_count + table->cost_count) * sizeof(uint32_t);
    size_t from = (sizeof(struct live_head) + lines + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES;
    size_t bytes = from + counters_bytes(table);
    *live = (struct live){NULL, NULL};
    struct live_head *head = make(stats, "", MOST_FILES, bytes, &live->path);
    if (!head) {
        return NULL;
    }
    fill(stats, head);
    fill_lines(table, head);
    head->bytes = bytes;
    head->choices = table->choice_count;
    head->costs = table->cost_count;
    head->counts_from = from;
    atomic_store_explicit(&head->state, LIVE_OPEN, memory_order_release);
    live->head = head;
    return (char *)head + from;
}

void live_refuse(const struct stats *stats, const char *reason) {
    char *path = NULL, kind[32];
    uint64_t hash = 5381; /* of the table's path: one file for each */
    for (const char *at = stats->loaded->path; *at; at++) {
        hash = hash * 33 + (unsigned char)*at;
    }
    snprintf(kind, sizeof kind, "refused%08" PRIx32 ".", (uint32_t)hash);
    struct live_head *head = make(stats, kind, 1, sizeof *head, &path);
    if (head) {
        fill(stats, head);
        head->bytes = head->counts_from = sizeof *head;
        copy(head->reason, sizeof head->reason, reason);
        atomic_store_explicit(&head->state, LIVE_REFUSED, memory_order_release);
        munmap(head, sizeof *head);
        free(path);
    }
}

void live_close(struct live *live) {
    if (live->head) {
        /* A child that was forked since may end its parent's communicators: the file is not its own. */
        bool own = live->head->pid == (uint64_t)getpid();
        munmap(live->head, live->head->bytes);
        if (own) {
            unlink(live->path);
        }
        free(live->path);
        *live = (struct live){NULL, NULL};
    }
}
