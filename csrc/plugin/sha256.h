/* SHA-256 (FIPS 180-4) of a file's content, so that ranks with different tables can be distinguished. */
#ifndef PLUGIN_SHA256_H
#define PLUGIN_SHA256_H

#include "text.h"

/* The first 12 hexadecimal digits of what sha256sum prints. */
struct short_hash {
    char text[13];
};
struct short_hash sha256_short(struct slice content);

#endif
