/* Zeros that are there already. NCCL writes zeros over all that it allocates; of a NVLink domain's descriptions and paths
 * most is never used, and would take hundreds of megabytes for every rank. */
#define _GNU_SOURCE
#include "zeros.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "export.h"
#include "imports.h"
#include "memory.h"
#include "oracle.h"

enum { PAGE_BYTES = 4096, LARGE_BYTES = 8 * PAGE_BYTES, PAGES_AT_ONCE = 512 };

static const unsigned char zeros[PAGE_BYTES];

/* What the kernel says of this process's pages (Documentation/admin-guide/mm/pagemap.rst), -1 where it is not asked. */
static int pagemap = -1;
static uintptr_t page_bytes;

/* A few entries of it, one after the other, of memory that ends at `end`. */
struct pages {
    const void *end;
    uintptr_t first;
    size_t number;
    uint64_t entries[PAGES_AT_ONCE];
};

static size_t smaller(size_t one, size_t other) {
    return one < other ? one : other;
}

static void look_at(struct pages *known, const void *start, size_t bytes) {
    known->end = (const char *)start + bytes;
    known->first = 0;
    known->number = 0;
}

/* Whether anything may have been read from this page or written to it: another one of malloc's reads as zeros. */
static int touched(struct pages *known, const void *address) {
    const uint64_t swapped_or_present = (uint64_t)3 << 62;
    if (pagemap < 0) {
        return 1;
    }
    uintptr_t page = (uintptr_t)address / page_bytes;
    if (page < known->first || page - known->first >= known->number) {
        size_t wanted = smaller(((uintptr_t)known->end - 1) / page_bytes - page + 1, PAGES_AT_ONCE) * sizeof(uint64_t);
        ssize_t got = pread(pagemap, known->entries, wanted, (off_t)(page * sizeof(uint64_t)));
        known->first = page;
        known->number = got < 0 ? 0 : (size_t)got / sizeof(uint64_t);
    }
    return known->number == 0 || (known->entries[page - known->first] & swapped_or_present) != 0;
}

static size_t until_next_page(const unsigned char *at, size_t bytes) {
    size_t part = PAGE_BYTES - (uintptr_t)at % PAGE_BYTES;
    return smaller(part, bytes);
}

static void zero(unsigned char *at, size_t bytes) {
    if (memcmp(at, zeros, bytes) != 0) {
        memset(at, 0, bytes);
    }
}

/* What is copied is within a page of the target. */
static void copy_page(unsigned char *to, const unsigned char *from, size_t part, int empty, struct pages *of_target) {
    if (!empty) {
        memcpy(to, from, part);
    } else if (touched(of_target, to)) {
        zero(to, part);
    }
}

void sim_copy_sparse(void *target, const void *source, size_t bytes) {
    struct pages of_target, of_source;
    look_at(&of_target, target, bytes);
    look_at(&of_source, source, bytes);
    unsigned char *to = target;
    const unsigned char *from = source;
    for (size_t part; bytes > 0; to += part, from += part, bytes -= part) {
        part = until_next_page(to, bytes);
        int empty = !touched(&of_source, from) && !touched(&of_source, from + part - 1);
        copy_page(to, from, part, empty || memcmp(from, zeros, part) == 0, &of_target);
    }
}

/* Of memory that is this process's alone the pages that nobody touched are zeros already. */
static void write_zeros(void *target, size_t bytes, int is_own) {
    struct pages known;
    look_at(&known, target, bytes);
    unsigned char *at = target;
    for (size_t part; bytes > 0; at += part, bytes -= part) {
        part = until_next_page(at, bytes);
        if (!is_own || touched(&known, at)) {
            zero(at, part);
        }
    }
}

/* Takes the memory from behind the whole pages of a shared mapping of a file in memory, which then read as zeros. Returns
 * 0, or -1 for other memory, which is left as it is. */
static int empty_shared(unsigned char *at, size_t bytes) {
    size_t before = (PAGE_BYTES - (uintptr_t)at % PAGE_BYTES) % PAGE_BYTES;
    size_t whole = (bytes - before) / PAGE_BYTES * PAGE_BYTES;
    if (madvise(at + before, whole, MADV_REMOVE) != 0) {
        return -1;
    }
    memset(at, 0, before);
    memset(at + before + whole, 0, bytes - before - whole);
    return 0;
}

static void *fill(void *target, int value, size_t bytes) {
    if (value != 0 || bytes < LARGE_BYTES) {
        return memset(target, value, bytes);
    }
    if (empty_shared(target, bytes) != 0) {
        write_zeros(target, bytes, sim_range_of(target, NULL, NULL) == 0);
    }
    return target;
}

/* Makes a file as large as asked, without memory behind it. */
static int reserve(int file, int mode, off_t from, off_t bytes) {
    struct stat known;
    if (mode != 0 || fstat(file, &known) != 0) {
        return fallocate(file, mode, from, bytes);
    }
    return known.st_size < from + bytes ? ftruncate(file, from + bytes) : 0;
}

/* What a thread allocated last of what is large: zeros but for what was written since. */
struct block {
    unsigned char *start;
    size_t bytes;
};

static _Thread_local struct block newest;

static void *allocate_zeros(size_t number, size_t bytes_each) {
    size_t bytes;
    if (__builtin_mul_overflow(number, bytes_each, &bytes) || bytes < LARGE_BYTES) {
        return calloc(number, bytes_each);
    }
    void *block = malloc(bytes);
    if (block == NULL) {
        return NULL;
    }
    write_zeros(block, bytes, 1);
    newest = (struct block){block, bytes};
    return block;
}

/* Copies only what is not zero into memory that the thread has just got as zeros: a rank's XML, of which most is unused,
 * into what all ranks of its node show each other. */
static void *copy(void *target, const void *source, size_t bytes) {
    size_t before = (size_t)((unsigned char *)target - newest.start);
    if (bytes < LARGE_BYTES || newest.start == NULL || before > newest.bytes || bytes > newest.bytes - before) {
        return memcpy(target, source, bytes);
    }
    struct pages known;
    look_at(&known, target, bytes);
    unsigned char *to = target;
    const unsigned char *from = source;
    for (size_t part; bytes > 0; to += part, from += part, bytes -= part) {
        part = until_next_page(to, bytes);
        copy_page(to, from, part, memcmp(from, zeros, part) == 0, &known);
    }
    return target;
}

/* Asks the kernel of pages from now on, if it knows one that was written to from one that was not: an emulator of
 * processors, which has other addresses than the kernel, does not. */
static void ask_for_pages(void) {
    page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
    unsigned char *two =
        mmap(NULL, 2 * page_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (two == MAP_FAILED) {
        return;
    }
    two[0] = 1;
    pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    struct pages written, unwritten;
    look_at(&written, two, page_bytes);
    look_at(&unwritten, two + page_bytes, page_bytes);
    if (pagemap >= 0 && (!touched(&written, two) || touched(&unwritten, two + page_bytes))) {
        close(pagemap);
        pagemap = -1;
    }
    munmap(two, 2 * page_bytes);
}

SIM_EXPORT int sim_skip_zeros(void) {
    ask_for_pages();
    const struct {
        const char *name;
        uintptr_t function;
    } rows[] = {{"memset", (uintptr_t)fill},
                {"calloc", (uintptr_t)allocate_zeros},
                {"memcpy", (uintptr_t)copy},
                {"fallocate", (uintptr_t)reserve}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int error = sim_redirect_import(rows[i].name, rows[i].function);
        if (error != 0 && (error != ENOENT || rows[i].function != (uintptr_t)reserve)) { /* 2.18 has none */
            return error;
        }
    }
    return 0;
}
