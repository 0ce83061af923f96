/* libFuzzer: a table's text through the parser, the lookup and the costs. `make fuzz`. */
#include "checks.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    struct source source = {.seed = size};
    check_text((struct slice){(const char *)bytes, size}, &source, 2);
    return 0;
}
