/* Redirecting a function of a loaded library: a jump over its first instructions. */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "export.h"
#include "redirect.h"

extern const struct sim_redirect sim_runtime_redirects[];
extern const struct sim_redirect sim_bootstrap_redirects[];
extern const struct sim_redirect sim_nccl_redirects[];
extern const struct sim_redirect sim_capture_redirects[];

/* The tables, for whoever knows where libnccl's functions are; NULL after the last. */
SIM_EXPORT const struct sim_redirect *sim_redirects(int table) {
    static const struct sim_redirect *const tables[] = {sim_runtime_redirects, sim_bootstrap_redirects,
                                                        sim_nccl_redirects, sim_capture_redirects};
    return table >= 0 && table < 4 ? tables[table] : NULL;
}

#if defined(__x86_64__)

enum { JUMP_BYTES = 12 };

/* mov rax, target; jmp rax */
static void write_jump(unsigned char *code, void *target) {
    uint64_t address = (uint64_t)(uintptr_t)target;
    code[0] = 0x48;
    code[1] = 0xb8;
    memcpy(code + 2, &address, sizeof address);
    code[10] = 0xff;
    code[11] = 0xe0;
}

#elif defined(__aarch64__)

enum { JUMP_BYTES = 16 };

/* ldr x16, .+8; br x16; the address. x16 is free at a function's entry. */
static void write_jump(unsigned char *code, void *target) {
    uint32_t instructions[2] = {0x58000050u, 0xd61f0200u};
    uint64_t address = (uint64_t)(uintptr_t)target;
    memcpy(code, instructions, sizeof instructions);
    memcpy(code + 8, &address, sizeof address);
}

#else
#error "no jump known for this architecture"
#endif

SIM_EXPORT int sim_jump_bytes(void) {
    return JUMP_BYTES;
}

static int protect(void *function, int protection) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t first = (uintptr_t)function / page * page;
    uintptr_t last = ((uintptr_t)function + JUMP_BYTES - 1) / page * page;
    return mprotect((void *)first, last - first + page, protection) == 0 ? 0 : errno;
}

/* 0, or errno. The function must be at least sim_jump_bytes() long and not running. */
SIM_EXPORT int sim_redirect(void *function, void *replacement) {
    int error = protect(function, PROT_READ | PROT_WRITE | PROT_EXEC);
    if (error != 0)
        return error;
    write_jump(function, replacement);
    __builtin___clear_cache((char *)function, (char *)function + JUMP_BYTES);
    return protect(function, PROT_READ | PROT_EXEC);
}

_Static_assert(JUMP_BYTES <= SIM_MAX_JUMP_BYTES, "a hook has to remember the whole jump");

int sim_hook(struct sim_hook *hook, void *function, void *replacement) {
    hook->function = function;
    hook->replacement = replacement;
    memcpy(hook->original, function, JUMP_BYTES);
    int error = protect(function, PROT_READ | PROT_WRITE | PROT_EXEC); /* and it stays so: it will be changed again */
    if (error == 0)
        sim_hook_set(hook, 1);
    return error;
}

void sim_hook_set(const struct sim_hook *hook, int redirected) {
    if (redirected)
        write_jump(hook->function, hook->replacement);
    else
        memcpy(hook->function, hook->original, JUMP_BYTES);
    __builtin___clear_cache((char *)hook->function, (char *)hook->function + JUMP_BYTES);
}
