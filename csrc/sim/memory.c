/* Simulated device memory: address space that costs nothing until somebody writes to it. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "memory.h"

struct range {
    char *base;
    size_t bytes;
};

#define MAX_RANGES (1 << 20)

static struct range ranges[MAX_RANGES];
static size_t n_ranges;

/* Those without memory behind them are few, and every copy has to know them. */
static struct range untouchables[8];
static int n_untouchables;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int remember(void *base, size_t bytes) {
    pthread_mutex_lock(&lock);
    int full = n_ranges == MAX_RANGES;
    if (!full) {
        ranges[n_ranges++] = (struct range){base, bytes};
    }
    pthread_mutex_unlock(&lock);
    return full ? -1 : 0;
}

/* The newest first: NCCL frees and looks up what it allocated last. The lock must be held. */
static struct range *find(const void *address) {
    const char *wanted = address;
    for (size_t i = n_ranges; i-- > 0;) {
        if (wanted >= ranges[i].base && wanted < ranges[i].base + ranges[i].bytes) {
            return &ranges[i];
        }
    }
    return NULL;
}

void *sim_map(size_t bytes, size_t alignment) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (alignment < page) {
        alignment = page;
    }
    bytes = (bytes + page - 1) / page * page;
    if (bytes == 0) {
        bytes = page;
    }
    size_t slack = alignment > page ? alignment : 0;
    char *start = mmap(NULL, bytes + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) {
        return NULL;
    }
    char *base = (char *)(((uintptr_t)start + alignment - 1) / alignment * alignment);
    if (base > start) {
        munmap(start, (size_t)(base - start));
    }
    if (base + bytes < start + bytes + slack) {
        munmap(base + bytes, (size_t)(start + slack - base));
    }
    if (remember(base, bytes) != 0) {
        munmap(base, bytes);
        return NULL;
    }
    return base;
}

void *sim_map_untouchable(size_t bytes) {
    if (n_untouchables == sizeof untouchables / sizeof *untouchables) {
        return NULL;
    }
    enum { ALIGNMENT = 2 << 20 }; /* as the driver aligns allocations, which NVLS up to 2.22 looks at */
    char *start = mmap(NULL, bytes + ALIGNMENT, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) {
        return NULL;
    }
    char *base = (char *)(((uintptr_t)start + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
    if (remember(base, bytes) != 0) {
        munmap(base, bytes);
        return NULL;
    }
    untouchables[n_untouchables++] = (struct range){base, bytes};
    return base;
}

int sim_unmap(void *address) {
    pthread_mutex_lock(&lock);
    struct range *range = find(address);
    struct range found = {0};
    if (range != NULL) {
        found = *range;
        *range = ranges[--n_ranges];
    }
    pthread_mutex_unlock(&lock);
    return range == NULL ? -1 : munmap(found.base, found.bytes);
}

int sim_range_of(const void *address, void **base, size_t *bytes) {
    pthread_mutex_lock(&lock);
    struct range *range = find(address);
    if (range != NULL) {
        if (base != NULL) {
            *base = range->base;
        }
        if (bytes != NULL) {
            *bytes = range->bytes;
        }
    }
    pthread_mutex_unlock(&lock);
    return range == NULL ? -1 : 0;
}

static int untouchable(const void *address) {
    for (int i = 0; i < n_untouchables; i++) {
        const char *base = untouchables[i].base;
        if ((const char *)address >= base && (const char *)address < base + untouchables[i].bytes) {
            return 1;
        }
    }
    return 0;
}

/* The user's buffers have no memory behind them, so copies from or to them move nothing. */
void sim_copy(void *target, const void *source, size_t bytes) {
    if (target == NULL || source == NULL || target == source || untouchable(target) || untouchable(source)) {
        return;
    }
    memmove(target, source, bytes);
}

void sim_fill(void *target, int value, size_t bytes) {
    if (target == NULL || untouchable(target)) {
        return;
    }
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    /* Whole pages of zeros are what an untouched mapping reads as: give the pages back instead of writing them. */
    if (value == 0 && bytes >= 16 * page && (uintptr_t)target % page == 0 && bytes % page == 0 &&
        madvise(target, bytes, MADV_DONTNEED) == 0) {
        return;
    }
    memset(target, value, bytes);
}
