#include "tables.h"

#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "parse.h"

static _Atomic(struct loaded_table *) tables;

static void free_table(struct loaded_table *loaded) {
    for (struct shared_rules *shared = loaded->rules, *next; shared; shared = next) {
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
    atomic_flag_clear(&loaded->listing);
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

/* Tries for a while: a thread that was at it when the process forked never lets go in the child. */
static bool take_list(struct loaded_table *loaded) {
    enum { TRIES = 10000 };
    for (int tries = 0; tries < TRIES; tries++) {
        if (!atomic_flag_test_and_set_explicit(&loaded->listing, memory_order_acquire)) {
            return true;
        }
        sched_yield();
    }
    return false;
}

static void let_list_go(struct loaded_table *loaded) {
    atomic_flag_clear_explicit(&loaded->listing, memory_order_release);
}

static bool is_same(const struct shape *left, const struct shape *right) {
    return left->ranks == right->ranks && left->nodes == right->nodes && left->known == right->known &&
           left->domains == right->domains;
}

static struct shared_rules *find_rules(struct shared_rules *shared, const struct shape *shape) {
    while (shared && !is_same(&shared->rules.shape, shape)) {
        shared = shared->next;
    }
    return shared;
}

static void free_rules(struct shared_rules *shared) {
    rules_free(&shared->rules);
    free(shared);
}

/* Rules that nobody uses, but for the newest. Only those in front of it in the list are newer. */
static void drop_unused(struct loaded_table *loaded) {
    bool kept = false;
    for (struct shared_rules **at = &loaded->rules, *shared; (shared = *at);) {
        if (shared->users > 0 || !kept) {
            kept |= shared->users == 0;
            at = &shared->next;
        } else {
            *at = shared->next;
            free_rules(shared);
        }
    }
}

static struct shared_rules *build_rules(const struct loaded_table *loaded, const struct shape *shape) {
    struct shared_rules *shared = calloc(1, sizeof *shared);
    if (shared && rules_build(&loaded->table, shape, &shared->rules)) {
        shared->users = 1;
        return shared;
    }
    free(shared);
    return NULL;
}

struct shared_rules *tables_take_rules(struct loaded_table *loaded, const struct shape *shape) {
    struct shared_rules *known = NULL;
    if (take_list(loaded)) {
        known = find_rules(loaded->rules, shape);
        if (known) {
            known->users++;
        }
        let_list_go(loaded);
    }
    struct shared_rules *mine = known ? NULL : build_rules(loaded, shape);
    if (!mine || !take_list(loaded)) {
        return known ? known : mine; /* which this communicator has for itself where the list cannot be had */
    }
    known = find_rules(loaded->rules, shape);
    if (known) { /* another thread was faster */
        known->users++;
    } else {
        mine->listed = true;
        mine->next = loaded->rules;
        loaded->rules = mine;
        drop_unused(loaded);
    }
    let_list_go(loaded);
    if (known) {
        free_rules(mine);
    }
    return known ? known : mine;
}

void tables_let_go(struct loaded_table *loaded, struct shared_rules *shared) {
    if (!shared->listed) {
        free_rules(shared);
    } else if (take_list(loaded)) {
        shared->users--;
        drop_unused(loaded);
        let_list_go(loaded);
    }
}

void tables_forget(void) {
    for (struct loaded_table *loaded = atomic_exchange(&tables, NULL), *next; loaded; loaded = next) {
        next = loaded->next;
        free_table(loaded);
    }
}
