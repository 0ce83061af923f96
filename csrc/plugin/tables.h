/* The tables of this process. Each path is read once, so that all communicators that name it decide alike, whatever
 * becomes of the file; and communicators of one size share what the table says to them. Nothing here waits for a lock: a
 * process that forks while another thread is at it goes on with what there is. */
#ifndef PLUGIN_TABLES_H
#define PLUGIN_TABLES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "file.h"
#include "rules.h"
#include "sha256.h"
#include "table.h"

struct shared_rules {
    struct rules rules;
    size_t users; /* communicators; changed by whoever holds the table's `listing` */
    bool listed;  /* others may share them */
    struct shared_rules *next;
};

/* What came of reading a path. All but the rules is never changed. */
struct loaded_table {
    char *path; /* absolute */
    struct file_stamp stamp;
    struct hash sha256; /* empty where the file could not be read */
    struct table table;
    bool usable;
    size_t mistake_line; /* where it is not usable: of the mistake, 0 where the file could not be read */
    char reason[256];    /* and why */
    atomic_flag listing; /* held by a thread that looks at the list, or changes it */
    struct shared_rules *rules;
    atomic_bool complained; /* on standard error that it is not used */
    struct loaded_table *next;
};

/* The table of a path, read when it is first asked for; NULL when there is no memory. */
struct loaded_table *tables_get(const char *path);

/* Whether the file has another content than what was read. */
bool tables_changed(const struct loaded_table *loaded);

/* What a usable table says to such a communicator, until it is let go; NULL when there is no memory. The rules of the
 * last size that nobody uses any more are kept. */
struct shared_rules *tables_take_rules(struct loaded_table *loaded, const struct shape *shape);
void tables_let_go(struct loaded_table *loaded, struct shared_rules *shared);

/* Frees all tables; no communicator may be left, and none in the making. NCCL never asks for this. */
void tables_forget(void);

#endif
