#include "json.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static bool make_room(struct json *json, size_t more) {
    if (json->lost || more <= json->room - json->count) {
        return !json->lost;
    }
    size_t room = 2 * json->room + more;
    char *bytes = realloc(json->bytes, room);
    json->lost = !bytes;
    if (bytes) {
        json->bytes = bytes;
        json->room = room;
    }
    return bytes;
}

void json_add(struct json *json, const char *format, ...) {
    va_list values, again;
    va_start(values, format);
    va_copy(again, values);
    int length = vsnprintf(NULL, 0, format, values);
    if (length >= 0 && make_room(json, (size_t)length + 1)) {
        vsnprintf(json->bytes + json->count, (size_t)length + 1, format, again);
        json->count += (size_t)length;
    }
    va_end(again);
    va_end(values);
}

void json_add_text(struct json *json, const char *text) {
    json_add(json, "\"");
    for (const char *at = text; *at; at++) {
        bool plain = (unsigned char)*at >= ' ' && *at != '"' && *at != '\\';
        if (plain) {
            json_add(json, "%c", *at);
        } else {
            json_add(json, "\\u%04x", (unsigned)(unsigned char)*at);
        }
    }
    json_add(json, "\"");
}

void json_free(struct json *json) {
    free(json->bytes);
    *json = (struct json){0};
}
