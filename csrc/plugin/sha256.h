/* SHA-256 (FIPS 180-4) of a file's content, so that ranks with different tables can be distinguished. */
#ifndef PLUGIN_SHA256_H
#define PLUGIN_SHA256_H

#include "text.h"

enum { HASH_DIGITS = 64 };

/* What sha256sum prints. */
struct hash {
    char text[HASH_DIGITS + 1];
};
struct hash sha256_of(struct slice content);

#endif
