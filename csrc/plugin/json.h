/* Text that grows, and JSON's strings. */
#ifndef PLUGIN_JSON_H
#define PLUGIN_JSON_H

#include <stdbool.h>
#include <stddef.h>

struct json {
    char *bytes; /* terminated, or NULL */
    size_t count, room;
    bool lost; /* there was no memory */
};

__attribute__((format(printf, 2, 3))) void json_add(struct json *json, const char *format, ...);

/* As a string in quotation marks. */
void json_add_text(struct json *json, const char *text);

void json_free(struct json *json);

#endif
