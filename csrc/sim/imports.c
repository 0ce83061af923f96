/* Replaces functions of other libraries where libnccl calls them, and nowhere else in the process. */
#define _GNU_SOURCE
#include "imports.h"

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <link.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "nccl.h"

/* Where libnccl has the address of a function of another library. */
static void **imported(const struct link_map *map, const char *name) {
    const char *strings = NULL;
    const ElfW(Sym) *symbols = NULL;
    const ElfW(Rela) *slots = NULL;
    size_t bytes = 0;
    for (const ElfW(Dyn) *entry = map->l_ld; entry->d_tag != DT_NULL; entry++) {
        if (entry->d_tag == DT_STRTAB) {
            strings = (const char *)entry->d_un.d_ptr;
        } else if (entry->d_tag == DT_SYMTAB) {
            symbols = (const ElfW(Sym) *)entry->d_un.d_ptr;
        } else if (entry->d_tag == DT_JMPREL) {
            slots = (const ElfW(Rela) *)entry->d_un.d_ptr;
        } else if (entry->d_tag == DT_PLTRELSZ) {
            bytes = entry->d_un.d_val;
        }
    }
    for (size_t i = 0; slots != NULL && i < bytes / sizeof *slots; i++) {
        if (strcmp(strings + symbols[ELF64_R_SYM(slots[i].r_info)].st_name, name) == 0) {
            return (void **)(map->l_addr + slots[i].r_offset);
        }
    }
    return NULL;
}

int sim_redirect_import(const char *name, uintptr_t function) {
    struct link_map *map;
    if (dlinfo(sim_nccl_library(), RTLD_DI_LINKMAP, &map) != 0) {
        return ENOENT;
    }
    void **slot = imported(map, name);
    if (slot == NULL) {
        return ENOENT;
    }
    uintptr_t page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE), page = (uintptr_t)slot / page_bytes * page_bytes;
    if (mprotect((void *)page, page_bytes, PROT_READ | PROT_WRITE) != 0) {
        return errno;
    }
    *slot = (void *)function;
    return 0;
}
