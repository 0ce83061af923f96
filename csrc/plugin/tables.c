#include "tables.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "parse.h"

static _Atomic(struct loaded_table *) tables;

static void free_table(struct loaded_table *loaded) {
    for (struct shared_rules *shared = atomic_load(&loaded->rules), *next; shared; shared = next) {
        next = shared->next;
        rules_free(&shared->rules);
        free(shared);
    }
    table_free(&loaded->table);
    free(loaded->path);
    free(loaded);
}

static void parse(const struct file *file, struct loaded_table *loaded) {
    struct slice content = {file->bytes, file->size};
    struct table_error error;
    loaded->sha256 = sha256_of(content);
    loaded->usable = table_parse(content, &loaded->table, &error);
    if (!loaded->usable) {
        loaded->mistake_line = error.line;
        snprintf(loaded->reason, sizeof loaded->reason, "%s", error.reason);
    }
}

static struct loaded_table *load(char *path) {
    struct loaded_table *loaded = calloc(1, sizeof *loaded);
    if (!loaded) {
        return NULL;
    }
    struct file file;
    struct file_error error;
    bool read = file_read(path, &file, &error);
    loaded->stamp = file.stamp;
    if (read) {
        parse(&file, loaded);
    } else {
        snprintf(loaded->reason, sizeof loaded->reason, "%s", error.reason);
    }
    file_free(&file);
    loaded->path = path;
    return loaded;
}

static struct loaded_table *find(struct loaded_table *loaded, const char *path) {
    while (loaded && strcmp(loaded->path, path) != 0) {
        loaded = loaded->next;
    }
    return loaded;
}

struct loaded_table *tables_get(const char *name) {
    struct loaded_table *first = atomic_load_explicit(&tables, memory_order_acquire);
    char *path = file_absolute(name);
    struct loaded_table *known = path ? find(first, path) : NULL;
    struct loaded_table *loaded = path && !known ? load(path) : NULL;
    if (!loaded) {
        free(path);
        return known;
    }
    loaded->next = first; /* the tables that were looked through: any that came since makes the exchange fail */
    while (!atomic_compare_exchange_weak(&tables, &loaded->next, loaded)) {
        /* Another thread added a table in the meantime: perhaps this one, and then theirs is the one. */
        known = find(loaded->next, path);
        if (known) {
            free_table(loaded);
            return known;
        }
    }
    return loaded;
}

bool tables_changed(const struct loaded_table *loaded) {
    struct file_stamp stamp = file_status(loaded->path);
    if (memcmp(&stamp, &loaded->stamp, sizeof stamp) == 0) {
        return false;
    }
    struct file file;
    struct file_error error;
    bool same = file_read(loaded->path, &file, &error) &&
                strcmp(sha256_of((struct slice){file.bytes, file.size}).text, loaded->sha256.text) == 0;
    file_free(&file);
    return !same;
}

static bool is_same(const struct shape *left, const struct shape *right) {
    return left->ranks == right->ranks && left->nodes == right->nodes && left->known == right->known &&
           left->domains == right->domains;
}

static const struct rules *find_rules(const struct shared_rules *shared, const struct shape *shape) {
    while (shared && !is_same(&shared->rules.shape, shape)) {
        shared = shared->next;
    }
    return shared ? &shared->rules : NULL;
}

const struct rules *tables_rules(struct loaded_table *loaded, const struct shape *shape) {
    struct shared_rules *first = atomic_load_explicit(&loaded->rules, memory_order_acquire);
    const struct rules *known = find_rules(first, shape);
    if (known) {
        return known;
    }
    struct shared_rules *shared = malloc(sizeof *shared);
    if (!shared || !rules_build(&loaded->table, shape, &shared->rules)) {
        free(shared);
        return NULL;
    }
    shared->next = first;
    while (!atomic_compare_exchange_weak(&loaded->rules, &shared->next, shared)) {
        known = find_rules(shared->next, shape);
        if (known) {
            rules_free(&shared->rules);
            free(shared);
            return known;
        }
    }
    return &shared->rules;
}

void tables_forget(void) {
    for (struct loaded_table *loaded = atomic_exchange(&tables, NULL), *next; loaded; loaded = next) {
        next = loaded->next;
        free_table(loaded);
    }
}
