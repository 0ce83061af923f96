/* A function that is redirected and still called: its first instructions, moved, and a jump to the rest. Unlike a hook it is
 * never changed again, so any number of threads may be in it. */
#define _GNU_SOURCE
#include "trampoline.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#include "export.h"
#include "oracle.h"
#include "redirect.h"

#if defined(__x86_64__)

enum { FAR_JUMP_BYTES = 14, NEAR_JUMP_BYTES = 5 };

/* Bytes of what a ModRM byte stands before: itself, a SIB byte, a displacement, which is_relative() to the instruction or
 * not. */
static int operand_bytes(const unsigned char *modrm) {
    int mode = modrm[0] >> 6, base = modrm[0] & 7;
    if (mode == 3) {
        return 1;
    }
    if (base == 4) {
        return mode == 1 ? 3 : mode == 2 ? 6 : (modrm[1] & 7) == 5 ? 6 : 2;
    }
    return mode == 1 ? 2 : mode == 2 || base == 5 ? 5 : 1;
}

static int is_relative(const unsigned char *modrm) {
    return (modrm[0] & 0xc7) == 0x05;
}

/* Bytes of an instruction as compilers begin functions with, that does the same elsewhere once `displacement`, in which
 * byte it has one relative to itself, is changed; 0 where it has none. Returns 0: another. */
static int movable_instruction(const unsigned char *code, int *displacement) {
    static const unsigned char entry[] = {0xf3, 0x0f, 0x1e, 0xfa}; /* endbr64 */
    *displacement = 0;
    if (memcmp(code, entry, sizeof entry) == 0) {
        return sizeof entry;
    }
    int prefix = code[0] == 0x66;
    prefix += code[prefix] >= 0x40 && code[prefix] <= 0x4f;
    const unsigned char *at = code + prefix;
    int immediate = 0, opcode = 1;
    if (at[0] >= 0x50 && at[0] <= 0x57) { /* push */
        return prefix + 1;
    }
    if (at[0] >= 0xb8 && at[0] <= 0xbf) { /* mov of a constant to a register, of 8 bytes with REX.W */
        return prefix + 1 + (prefix > 0 && (at[-1] & 0xf8) == 0x48 ? 8 : 4);
    }
    switch (at[0]) {
    case 0x31: /* xor */
    case 0x33:
    case 0x63: /* movsxd */
    case 0x85: /* test */
    case 0x89: /* mov */
    case 0x8b:
    case 0x8d: /* lea */
        break;
    case 0x83: /* arithmetic with a constant */
        immediate = 1;
        break;
    case 0x81:
    case 0xc7: /* mov of a constant */
        immediate = 4;
        break;
    case 0x0f: /* pxor, xorps: they clear a register; movups and movaps */
        if (at[1] != 0xef && at[1] != 0x57 && at[1] != 0x10 && at[1] != 0x11 && at[1] != 0x28 && at[1] != 0x29) {
            return 0;
        }
        opcode = 2;
        break;
    default:
        return 0;
    }
    *displacement = is_relative(at + opcode) ? prefix + opcode + 1 : 0;
    return prefix + opcode + operand_bytes(at + opcode) + immediate;
}

/* Bytes of whole instructions from the start of a function, enough for a jump over them, if need be a near one. 0 where
 * they cannot be moved. */
static int movable_bytes(const unsigned char *code) {
    int bytes = 0, displacement;
    while (bytes < sim_jump_bytes()) {
        int more = movable_instruction(code + bytes, &displacement);
        if (more == 0) {
            return bytes >= NEAR_JUMP_BYTES ? bytes : 0;
        }
        bytes += more;
    }
    return bytes;
}

/* Has the copy of so many bytes mean what the function does. False where it is too far away. */
static bool relocate(unsigned char *copy, const unsigned char *function, int bytes) {
    int64_t distance = (int64_t)((intptr_t)function - (intptr_t)copy);
    for (int at = 0, displacement; at < bytes; at += movable_instruction(function + at, &displacement)) {
        movable_instruction(function + at, &displacement);
        int32_t value;
        memcpy(&value, function + at + displacement, sizeof value);
        int64_t moved = value + distance;
        if (displacement != 0 && (moved > INT32_MAX || moved < INT32_MIN)) {
            return false;
        }
        if (displacement != 0) {
            value = (int32_t)moved;
            memcpy(copy + at + displacement, &value, sizeof value);
        }
    }
    return true;
}

/* jmp [rip]; the address: it changes no register */
static void write_far_jump(unsigned char *code, const void *target) {
    static const unsigned char jump[] = {0xff, 0x25, 0, 0, 0, 0};
    uint64_t address = (uint64_t)(uintptr_t)target;
    memcpy(code, jump, sizeof jump);
    memcpy(code + sizeof jump, &address, sizeof address);
}

#elif defined(__aarch64__)

enum { FAR_JUMP_BYTES = 16 };

/* A branch, or an address or a load relative to the instruction, which means another elsewhere. */
static int is_relative(uint32_t instruction) {
    return (instruction & 0x7c000000u) == 0x14000000u    /* b, bl */
           || (instruction & 0xff000000u) == 0x54000000u /* b.cond */
           || (instruction & 0x7c000000u) == 0x34000000u /* cbz, cbnz, tbz, tbnz */
           || (instruction & 0x1f000000u) == 0x10000000u /* adr, adrp */
           || (instruction & 0x3b000000u) == 0x18000000u /* ldr of a constant */;
}

static int movable_bytes(const unsigned char *code) {
    for (int at = 0; at < sim_jump_bytes(); at += (int)sizeof(uint32_t)) {
        uint32_t instruction;
        memcpy(&instruction, code + at, sizeof instruction);
        if (is_relative(instruction)) {
            return 0;
        }
    }
    return sim_jump_bytes();
}

static bool relocate(unsigned char *copy SIM_UNUSED, const unsigned char *function SIM_UNUSED, int bytes SIM_UNUSED) {
    return true; /* nothing that would have to be is moved */
}

/* ldr x17, .+8; br x17; the address. x17 is nobody's at a function's entry, and compilers take x16 before it. */
static void write_far_jump(unsigned char *code, const void *target) {
    uint32_t instructions[2] = {0x58000051u, 0xd61f0220u};
    uint64_t address = (uint64_t)(uintptr_t)target;
    memcpy(code, instructions, sizeof instructions);
    memcpy(code + sizeof instructions, &address, sizeof address);
}

#else
#error "no instructions known for this architecture"
#endif

void *sim_redirect_keeping(void *function, void *replacement) {
    int moved = movable_bytes(function);
    if (moved == 0) {
        return NULL;
    }
    size_t bytes = (size_t)moved + FAR_JUMP_BYTES;
    unsigned char *copy = sim_page_near(function);
    if (copy == NULL || mprotect(copy, bytes, PROT_READ | PROT_WRITE) != 0) {
        return NULL;
    }
    memcpy(copy, function, (size_t)moved);
    write_far_jump(copy + moved, (unsigned char *)function + moved);
    bool good = relocate(copy, function, moved);
    __builtin___clear_cache((char *)copy, (char *)copy + bytes);
    if (!good || mprotect(copy, bytes, PROT_READ | PROT_EXEC) != 0 ||
        sim_redirect(function, (uint64_t)moved, replacement) != 0) {
        munmap(copy, bytes);
        return NULL;
    }
    return copy;
}
