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
extern const struct sim_redirect sim_merging_redirects[];

SIM_EXPORT const struct sim_redirect *sim_redirects(int table) {
    static const struct sim_redirect *const tables[] = {
        sim_runtime_redirects, [SIM_MEETING_REDIRECTS] = sim_bootstrap_redirects, sim_nccl_redirects,
        sim_capture_redirects, sim_merging_redirects};
    return table >= 0 && table < 5 ? tables[table] : NULL;
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

enum { NEAR_JUMP_BYTES = 5, NEAR = INT32_MAX };

/* jmp rel32 */
static void write_near_jump(unsigned char *code, const unsigned char *target) {
    int32_t distance = (int32_t)(target - (code + NEAR_JUMP_BYTES));
    code[0] = 0xe9;
    memcpy(code + 1, &distance, sizeof distance);
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

enum { NEAR_JUMP_BYTES = 4, NEAR = 127 << 20 }; /* less than the 128 MiB that it reaches */

/* b; it counts from itself, in instructions */
static void write_near_jump(unsigned char *code, const unsigned char *target) {
    uint32_t instruction = 0x14000000u | ((uint32_t)((target - code) >> 2) & 0x03ffffffu);
    memcpy(code, &instruction, sizeof instruction);
}

#else
#error "no jump known for this architecture"
#endif

static int is_near(const unsigned char *code, const void *target) {
    int64_t distance = (int64_t)((intptr_t)target - (intptr_t)(code + NEAR_JUMP_BYTES));
    return distance > -(int64_t)NEAR && distance < (int64_t)NEAR;
}

unsigned char *sim_page_near(unsigned char *function) {
    enum { STEP = 16 << 20 };
    size_t bytes = (size_t)sysconf(_SC_PAGESIZE);
    for (intptr_t away = STEP; away < NEAR - STEP; away += STEP) {
        void *hint = function - away; /* libraries lie below what was mapped before them */
        void *got = mmap(hint, bytes, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (got == MAP_FAILED) {
            return NULL;
        }
        if (is_near(function, got)) {
            return got;
        }
        munmap(got, bytes);
    }
    return NULL;
}

/* Room for a whole jump where a near one reaches it; NULL where there is none. */
static unsigned char *near_room(unsigned char *function) {
    static unsigned char *page;
    static size_t used;
    if (page == NULL || used + JUMP_BYTES > (size_t)sysconf(_SC_PAGESIZE) || !is_near(function, page)) {
        page = sim_page_near(function);
        used = 0;
    }
    used += JUMP_BYTES;
    return page == NULL ? NULL : page + used - JUMP_BYTES;
}

SIM_EXPORT int sim_jump_bytes(void) {
    return JUMP_BYTES;
}

static int protect(void *function, int protection) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t first = (uintptr_t)function / page * page;
    uintptr_t last = ((uintptr_t)function + JUMP_BYTES - 1) / page * page;
    return mprotect((void *)first, last - first + page, protection) == 0 ? 0 : errno;
}

static int write_code(unsigned char *code, void *target, void (*write)(unsigned char *code, void *target)) {
    int error = protect(code, PROT_READ | PROT_WRITE | PROT_EXEC);
    if (error != 0) {
        return error;
    }
    write(code, target);
    __builtin___clear_cache((char *)code, (char *)code + JUMP_BYTES);
    return protect(code, PROT_READ | PROT_EXEC);
}

static void write_near(unsigned char *code, void *target) {
    write_near_jump(code, target);
}

SIM_EXPORT int sim_redirect(void *function, uint64_t bytes, void *replacement) {
    if (bytes >= JUMP_BYTES) {
        return write_code(function, replacement, write_jump);
    }
    unsigned char *room = bytes >= NEAR_JUMP_BYTES ? near_room(function) : NULL;
    if (room == NULL) {
        return ENOSPC;
    }
    int error = write_code(room, replacement, write_jump);
    return error != 0 ? error : write_code(function, room, write_near);
}

_Static_assert(JUMP_BYTES <= SIM_MAX_JUMP_BYTES, "a hook has to remember the whole jump");

int sim_hook(struct sim_hook *hook, void *function, void *replacement) {
    hook->function = function;
    hook->replacement = replacement;
    memcpy(hook->original, function, JUMP_BYTES);
    int error = protect(function, PROT_READ | PROT_WRITE | PROT_EXEC); /* and it stays so: it will be changed again */
    if (error == 0) {
        sim_hook_set(hook, 1);
    }
    return error;
}

void sim_hook_set(const struct sim_hook *hook, int redirected) {
    if (redirected) {
        write_jump(hook->function, hook->replacement);
    } else {
        memcpy(hook->function, hook->original, JUMP_BYTES);
    }
    __builtin___clear_cache((char *)hook->function, (char *)hook->function + JUMP_BYTES);
}
