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

/* Tables of a library's own file: what it calls in others by name. */
struct tables {
    const char *strings;
    const ElfW(Sym) * symbols;
    const ElfW(Rela) * slots[2]; /* of calls, and of addresses that are taken otherwise */
    size_t bytes[2];
};

static struct tables tables_of(const struct link_map *map) {
    struct tables tables = {0};
    for (const ElfW(Dyn) *entry = map->l_ld; entry->d_tag != DT_NULL; entry++) {
        switch (entry->d_tag) {
        case DT_STRTAB:
            tables.strings = (const char *)entry->d_un.d_ptr;
            break;
        case DT_SYMTAB:
            tables.symbols = (const ElfW(Sym) *)entry->d_un.d_ptr;
            break;
        case DT_JMPREL:
            tables.slots[0] = (const ElfW(Rela) *)entry->d_un.d_ptr;
            break;
        case DT_PLTRELSZ:
            tables.bytes[0] = entry->d_un.d_val;
            break;
        case DT_RELA:
            tables.slots[1] = (const ElfW(Rela) *)entry->d_un.d_ptr;
            break;
        case DT_RELASZ:
            tables.bytes[1] = entry->d_un.d_val;
            break;
        default:
            break;
        }
    }
    return tables;
}

static int write_slot(void **slot, uintptr_t function) {
    uintptr_t page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE), page = (uintptr_t)slot / page_bytes * page_bytes;
    if (mprotect((void *)page, page_bytes, PROT_READ | PROT_WRITE) != 0) {
        return errno;
    }
    *slot = (void *)function;
    return 0;
}

/* Every slot with the address of a function of that name; how many there were, or -1 with errno. */
static int redirect(void *library, const char *name, uintptr_t function) {
    struct link_map *map;
    if (library == NULL || dlinfo(library, RTLD_DI_LINKMAP, &map) != 0) {
        errno = ENOENT;
        return -1;
    }
    struct tables tables = tables_of(map);
    int found = 0;
    for (int kind = 0; kind < 2; kind++) {
        const ElfW(Rela) *slots = tables.slots[kind];
        for (size_t i = 0; slots != NULL && i < tables.bytes[kind] / sizeof *slots; i++) {
            const ElfW(Sym) *symbol = &tables.symbols[ELF64_R_SYM(slots[i].r_info)];
            if (symbol->st_shndx != SHN_UNDEF || strcmp(tables.strings + symbol->st_name, name) != 0) {
                continue;
            }
            int error = write_slot((void **)(map->l_addr + slots[i].r_offset), function);
            if (error != 0) {
                errno = error;
                return -1;
            }
            found++;
        }
    }
    return found;
}

int sim_redirect_import(const char *name, uintptr_t function) {
    int found = redirect(sim_nccl_library(), name, function);
    return found > 0 ? 0 : found == 0 ? ENOENT : errno;
}

int sim_redirect_imports_of(void *library, const char *name, uintptr_t function) {
    return redirect(library, name, function) < 0 ? errno : 0;
}
