/* A whole file in memory. */
#ifndef PLUGIN_FILE_H
#define PLUGIN_FILE_H

#include <stdbool.h>

#include "text.h"

struct file {
    char *path; /* absolute: a relative one is taken from the working directory of the process */
    char *bytes;
    size_t size;
};

struct file_error {
    char reason[128];
};

/* False with a reason when it is not a file that can be read. The path is set in any case, but for lack of memory. */
bool file_read(const char *name, struct file *file, struct file_error *error);
void file_free(struct file *file);

#endif
