/* SHA-256 (FIPS 180-4) of a file's content, so that ranks with different tables can be distinguished. */
#ifndef PLUGIN_SHA256_H
#define PLUGIN_SHA256_H

#include "text.h"

/* What sha256sum prints. */
struct hash {
    char text[65];
};
struct hash sha256_of(struct slice content);

#endif
