/* Zeros that are there already. NCCL writes zeros over all that it allocates; of a NVLink domain's descriptions and paths
 * most is never used, and would take hundreds of megabytes for every rank. */
#define _GNU_SOURCE
#include "zeros.h"

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <link.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "export.h"
#include "nccl.h"
#include "oracle.h"

enum { PAGE_BYTES = 4096, LARGE_BYTES = 8 * PAGE_BYTES };

static const unsigned char zeros[PAGE_BYTES];

void sim_zero(void *target, size_t bytes) {
    unsigned char *at = target;
    for (size_t part; bytes > 0; at += part, bytes -= part) {
        part = PAGE_BYTES - (uintptr_t)at % PAGE_BYTES;
        part = part < bytes ? part : bytes;
        if (memcmp(at, zeros, part) != 0)
            memset(at, 0, part);
    }
}

void sim_copy_sparse(void *target, const void *source, size_t bytes) {
    unsigned char *to = target;
    const unsigned char *from = source;
    for (size_t part; bytes > 0; to += part, from += part, bytes -= part) {
        part = PAGE_BYTES - (uintptr_t)to % PAGE_BYTES;
        part = part < bytes ? part : bytes;
        if (memcmp(to, from, part) != 0)
            memcpy(to, from, part);
    }
}

static void *fill(void *target, int value, size_t bytes) {
    if (value != 0 || bytes < LARGE_BYTES)
        return memset(target, value, bytes);
    sim_zero(target, bytes);
    return target;
}

/* Where libnccl has the address of a function of another library. */
static void **imported(const struct link_map *map, const char *name) {
    const char *strings = NULL;
    const ElfW(Sym) *symbols = NULL;
    const ElfW(Rela) *slots = NULL;
    size_t bytes = 0;
    for (const ElfW(Dyn) *entry = map->l_ld; entry->d_tag != DT_NULL; entry++) {
        if (entry->d_tag == DT_STRTAB)
            strings = (const char *)entry->d_un.d_ptr;
        else if (entry->d_tag == DT_SYMTAB)
            symbols = (const ElfW(Sym) *)entry->d_un.d_ptr;
        else if (entry->d_tag == DT_JMPREL)
            slots = (const ElfW(Rela) *)entry->d_un.d_ptr;
        else if (entry->d_tag == DT_PLTRELSZ)
            bytes = entry->d_un.d_val;
    }
    for (size_t i = 0; slots != NULL && i < bytes / sizeof *slots; i++)
        if (strcmp(strings + symbols[ELF64_R_SYM(slots[i].r_info)].st_name, name) == 0)
            return (void **)(map->l_addr + slots[i].r_offset);
    return NULL;
}

SIM_EXPORT int sim_skip_zeros(void) {
    struct link_map *map;
    if (dlinfo(sim_nccl_library(), RTLD_DI_LINKMAP, &map) != 0)
        return ENOENT;
    void **slot = imported(map, "memset");
    if (slot == NULL)
        return ENOENT;
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), first = (uintptr_t)slot / page * page;
    if (mprotect((void *)first, page, PROT_READ | PROT_WRITE) != 0)
        return errno;
    *slot = (void *)(uintptr_t)fill;
    return 0;
}
