#include "expand.h"

#include <stdio.h>
#include <string.h>

#include "hardware.h"

static bool fail(struct expanded *expanded, const char *reason) {
    snprintf(expanded->reason, sizeof expanded->reason, "%s", reason);
    return false;
}

/* "NVIDIA H100 80GB HBM3" as "nvidia-h100-80gb-hbm3": one part of a path, whatever the name is. */
static void as_file_name(struct gpu_name *name) {
    for (char *letter = name->text; *letter; letter++) {
        bool upper = *letter >= 'A' && *letter <= 'Z', lower = *letter >= 'a' && *letter <= 'z';
        bool digit = *letter >= '0' && *letter <= '9';
        *letter = upper ? (char)(*letter - 'A' + 'a') : lower || digit ? *letter : '-';
    }
}

struct word {
    char text[96];
};

static bool expand_word(char letter, const struct shape *shape, struct word *word, struct expanded *expanded) {
    struct gpu_name name;
    size_t number = shape->nodes;
    switch (letter) {
    case '%':
        snprintf(word->text, sizeof word->text, "%%");
        return true;
    case 'g':
        if (!gpu_read_name(&name)) {
            return fail(expanded, "%g: the process has no NVML that gives all GPUs of the node one name");
        }
        as_file_name(&name);
        snprintf(word->text, sizeof word->text, "%s", name.text);
        return true;
    case 'l':
        if (shape->nodes == 0 || shape->ranks % shape->nodes != 0) {
            return fail(expanded, "%l: the nodes have different numbers of ranks");
        }
        number = shape->ranks / shape->nodes;
        break;
    case 'n':
        break;
    default:
        return fail(expanded, "an unknown word after % (valid: %g GPU, %n nodes, %l ranks per node, %%)");
    }
    if (!shape->known) {
        return fail(expanded, "%n and %l: this NCCL does not say which communicator asks");
    }
    snprintf(word->text, sizeof word->text, "%zu", number);
    return true;
}

bool expand(const char *name, const struct shape *shape, struct expanded *expanded) {
    *expanded = (struct expanded){.path = ""};
    size_t length = 0;
    for (const char *at = name; *at; at++) {
        struct word word = {{*at, '\0'}};
        if (*at == '%' && !expand_word(*++at, shape, &word, expanded)) {
            return false;
        }
        size_t more = strlen(word.text);
        if (length + more >= sizeof expanded->path) {
            return fail(expanded, "File name too long");
        }
        memcpy(expanded->path + length, word.text, more + 1);
        length += more;
    }
    return true;
}
