/* What sim_redirect_keeping makes of functions: one whose first instructions can be moved, and some whose cannot. */
#include <stdio.h>
#include <string.h>

#include "sim/redirect.h"
#include "sim/trampoline.h"

const struct sim_redirect sim_runtime_redirects[1], sim_bootstrap_redirects[1], sim_nccl_redirects[1],
    sim_capture_redirects[1], sim_merging_redirects[1];

#define FUNCTION(name, instructions)                                                                       \
    __asm__(".text\n.balign 16\n.globl " #name "\n.type " #name ", %function\n" #name ":\n" instructions); \
    int name(int);

#if defined(__aarch64__)
FUNCTION(thrice,
         "mov w1, #3\n mul w0, w0, w1\n stp x29, x30, [sp, #-16]!\n mov x29, sp\n ldp x29, x30, [sp], #16\n ret")
#define RELATIVE(row)                                                                                 \
    row(branch, "b .+16") row(call, "bl .+16") row(condition, "b.eq .+16") row(zero, "cbz w0, .+16")  \
        row(not_zero, "cbnz x0, .+16") row(bit, "tbz w0, #3, .+16") row(no_bit, "tbnz x0, #40, .+16") \
            row(address, "adr x0, .+16") row(page, "adrp x0, .") row(constant, "ldr x0, .+16")        \
                row(of_32_bits, "ldr w0, .+16") row(sign, "ldrsw x0, .+16") row(vector, "ldr q0, .+16")
#define BEFORE "mov w1, w0\n mov w2, w0\n mov w3, w0\n"
#else
FUNCTION(
    thrice,
    "push %rbp\n mov %rsp, %rbp\n mov $3, %eax\n mov %edi, %ecx\n xor %edx, %edx\n imul %ecx, %eax\n pop %rbp\n ret")
#define RELATIVE(row)                                                                               \
    row(branch, "jmp .+16") row(call, "call .+16") row(condition, "je .+16") row(loop, "loop .+16") \
        row(zero, "jrcxz .+16")
#define BEFORE "push %rbp\n"
#endif

#define FIRST_AND_LATER(name, instruction)                                                 \
    FUNCTION(first_##name, instruction "\n nop\n nop\n nop\n nop\n nop\n nop\n nop\n ret") \
    FUNCTION(later_##name, BEFORE instruction "\n nop\n nop\n nop\n nop\n nop\n nop\n nop\n ret")
RELATIVE(FIRST_AND_LATER)

/* Shorter than a whole jump, with another behind it that has to stay. */
#if defined(__aarch64__)
FUNCTION(adds, "add w0, w0, #40\n nop\n nop\n nop\n nop\n nop\n ret")
FUNCTION(brief, "mov w0, #1\n ret\n.globl behind\n.type behind, %function\nbehind: mov w0, #2\n ret")
#else
/* Its first instruction has an address relative to itself. */
FUNCTION(adds,
         "mov number(%rip), %eax\n add %edi, %eax\n nop\n nop\n nop\n nop\n nop\n ret\n.data\nnumber: .long 40\n.text")
FUNCTION(brief, "xor %eax, %eax\n nop\n nop\n ret\n nop\n nop\n nop\n.globl behind\n.type behind, %function\nbehind: "
                "mov $2, %eax\n ret")
#endif
enum { BRIEF_BYTES = 8 };
int behind(int);

static int (*kept)(int);

static int constant(int value) {
    return 40 + value;
}

static int replacement(int value) {
    return 100 + kept(value);
}

static void try(const char *name, int (*function)(int)) {
    char before[SIM_MAX_JUMP_BYTES];
    memcpy(before, (void *)(size_t)function, sizeof before);
    void *moved = sim_redirect_keeping((void *)(size_t)function, (void *)(size_t)replacement);
    int same = memcmp(before, (void *)(size_t)function, sizeof before) == 0;
    printf("%s %s\n", name, moved == NULL && same ? "refused" : "moved");
}

#define TRY(name, instruction) try(#name, first_##name), try(#name, later_##name);

int main(void) {
    void *moved = sim_redirect_keeping((void *)(size_t)thrice, (void *)(size_t)replacement);
    memcpy(&kept, &moved, sizeof kept);
    printf("%d\n", kept == NULL ? -1 : thrice(7));
    moved = sim_redirect_keeping((void *)(size_t)adds, (void *)(size_t)replacement);
    memcpy(&kept, &moved, sizeof kept);
    printf("%d\n", kept == NULL ? -1 : adds(2));
    printf("%d\n", sim_redirect((void *)(size_t)brief, BRIEF_BYTES, (void *)(size_t)constant));
    printf("%d %d\n", brief(2), behind(0));
    RELATIVE(TRY)
    return 0;
}
