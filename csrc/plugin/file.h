/* A whole file in memory. */
#ifndef PLUGIN_FILE_H
#define PLUGIN_FILE_H

#include <stdbool.h>
#include <stdint.h>

#include "text.h"

/* Which file, and which state of it; zeros where there is none that can be opened. */
struct file_stamp {
    uint64_t device, inode, size, modified_s, modified_ns;
};

struct file {
    char *bytes;
    size_t size;
    struct file_stamp stamp;
};

struct file_error {
    char reason[128];
};

/* A relative name starts at the working directory of the process. NULL when there is no memory; to be freed. */
char *file_absolute(const char *name);

/* False with a reason when it is not a file that can be read, or is being written. */
bool file_read(const char *path, struct file *file, struct file_error *error);

/* The same of a file to which lines may be added meanwhile. */
bool file_read_growing(const char *path, struct file *file, struct file_error *error);
void file_free(struct file *file);

struct file_stamp file_status(const char *path);
bool file_is_regular(int descriptor);

#endif
