#include "libdl.h" /* before the headers of the C library */

#include "chain_library.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "log.h"
#include "settings.h"

/* What NCCL has room for. */
struct library_name {
    char text[256];
};

/* NCCL's own word for the program itself; it takes the beginnings of the word too, which is not imitated. */
static void *open_library(const char *name, int flags) {
    bool is_program = strcasecmp(name, "STATIC_PLUGIN") == 0;
    return dlopen(is_program ? NULL : name, RTLD_NOW | RTLD_LOCAL | flags);
}

/* As NCCL 2.28 and later: the name as it is, then as a part of a file's name. */
static void *open_by_name(const char *name, const char *prefix, int flags) {
    void *handle = open_library(name, flags);
    if (!handle && !strchr(name, '/')) {
        struct library_name part;
        int length = snprintf(part.text, sizeof part.text, "%s-%s.so", prefix, name);
        handle = length < (int)sizeof part.text ? open_library(part.text, flags) : NULL;
    }
    return handle;
}

static const void *exported(void *handle, int version) {
    char symbol[32];
    snprintf(symbol, sizeof symbol, "ncclTunerPlugin_v%d", version);
    return dlsym(handle, symbol);
}

/* By name, not by address: this file may have been copied, and a tuner that the process has loaded for all its libraries
 * would stand under this plugin's own symbols. */
static bool is_this_plugin(const struct next_tuner *tuner) {
    return strcmp(next_name(tuner), TUNER_NAME) == 0;
}

static struct next_tuner newest_of(void *handle, int oldest, int newest) {
    struct next_tuner tuner = {.version = newest};
    while (tuner.version >= oldest && !(tuner.plugin = exported(handle, tuner.version))) {
        tuner.version--;
    }
    return tuner;
}

enum taken { TAKEN, NO_TUNER, THIS_PLUGIN };

static enum taken take(void *handle, int oldest, int newest, struct next_library *found) {
    *found = (struct next_library){.handle = handle, .tuner = newest_of(handle, oldest, newest)};
    if (!found->tuner.plugin || !next_is_whole(&found->tuner)) {
        return NO_TUNER;
    }
    Dl_info where = {0};
    found->path = dladdr(found->tuner.plugin, &where) && where.dli_fname ? where.dli_fname : "";
    return is_this_plugin(&found->tuner) ? THIS_PLUGIN : TAKEN;
}

static bool find_named(const char *name, int newest, nccl_logger logger, struct next_library *found) {
    void *handle = open_by_name(name, "libnccl-tuner", 0);
    if (!handle) {
        const char *why = dlerror();
        log_warn(logger, NEXT_VARIABLE "=%.256s cannot be loaded (%.256s): no other tuner is asked", name,
                 why ? why : "no reason is given");
        return false;
    }
    switch (take(handle, OLDEST_VERSION, newest, found)) {
    case TAKEN:
        return true;
    case THIS_PLUGIN:
        log_info(logger, NEXT_VARIABLE "=%.256s is this plugin itself: no other tuner is asked", name);
        break;
    case NO_TUNER:
        log_info(logger,
                 NEXT_VARIABLE "=%.256s has no ncclTunerPlugin_v%d, which this NCCL looks up, and none before: no "
                               "other tuner is asked",
                 name, newest);
    }
    dlclose(handle);
    return false;
}

static void *open_last_loaded(const char *names) {
    void *last = NULL;
    while (*names) {
        struct library_name name;
        size_t length = strcspn(names, ",");
        snprintf(name.text, sizeof name.text, "%.*s", (int)(length < sizeof name.text ? length : 0), names);
        void *handle = name.text[0] ? open_by_name(name.text, "libnccl-net", RTLD_NOLOAD) : NULL;
        if (handle) {
            if (last) {
                dlclose(last);
            }
            last = handle;
        }
        names += length + (names[length] == ',');
    }
    return last;
}

/* NCCL's own, of the library that its logger is of; 0 where that does not say. */
static int nccl_version(nccl_logger logger) {
    int (*get)(int *version) = NULL;
    int version = 0;
    void *address, *symbol;
    Dl_info where = {0};
    memcpy(&address, &logger, sizeof address); /* C has no way from a function to an object but through memory */
    void *handle = logger && dladdr(address, &where) && where.dli_fname
                       ? dlopen(where.dli_fname, RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD)
                       : NULL;
    if (handle) {
        symbol = dlsym(handle, "ncclGetVersion");
        memcpy(&get, &symbol, sizeof get);
        if (get && get(&version) != RESULT_SUCCESS) {
            version = 0;
        }
        dlclose(handle);
    }
    return version;
}

/* From 2.21 to 2.25 NCCL's tuner part itself opens the library, whether or not it was good for a network. */
static bool nccl_opens_it_again(int newest, nccl_logger logger) {
    enum { FIRST_THAT_DOES_NOT = 22600, FIRST_OF_VERSION_4 = 22400 };
    int version = newest == 4 ? nccl_version(logger) : 0;
    return newest < 4 || (version >= FIRST_OF_VERSION_4 && version < FIRST_THAT_DOES_NOT);
}

/* The library of the network plugin, which NCCL has loaded when it comes to tuners. Since 2.27 several may be named,
 * and the one that was loaded last is asked for a tuner (ncclGetNetPluginLib, src/plugin/plugin_open.cc, v2.28.9-1). */
static void *open_network(int newest, nccl_logger logger) {
    const char *names = getenv("NCCL_NET_PLUGIN");
    if (!names || !names[0]) {
        names = "libnccl-net.so";
    }
    return nccl_opens_it_again(newest, logger) ? open_by_name(names, "libnccl-net", 0) : open_last_loaded(names);
}

static bool has_any(void *handle) {
    return newest_of(handle, OLDEST_VERSION, NEWEST_VERSION + 3).plugin; /* those to come included */
}

/* What NCCL does where NCCL_TUNER_PLUGIN is not set: openTunerPluginLib, src/misc/tuner.cc, v2.21.5-1 to v2.25.1-1, and
 * ncclTunerPluginLoad, src/plugin/tuner.cc, v2.26.2-1 to v2.30.7-1. 2.19 and 2.20 look nowhere, and no NCCL takes
 * version 1 later. */
static bool find_default(int newest, nccl_logger logger, struct next_library *found) {
    if (newest < 2) {
        return false;
    }
    for (int network = 0; network < 2; network++) {
        void *handle = network ? open_network(newest, logger) : open_library("libnccl-tuner.so", 0);
        if (!handle) {
            continue;
        }
        enum taken taken = take(handle, 2, newest, found);
        if (taken == TAKEN) {
            return true;
        }
        bool stop = taken == NO_TUNER;
        if (stop && has_any(handle)) {
            log_info(logger,
                     "the tuner in the library of NCCL's %s plugin has none of ncclTunerPlugin_v2 to v%d: it "
                     "is not asked",
                     network ? "network" : "tuner", newest);
        }
        dlclose(handle);
        if (stop) {
            break;
        }
    }
    return false;
}

bool chain_find(const char *name, int newest, nccl_logger logger, struct next_library *found) {
    if (!libdl_is_there()) {
        if (name) {
            log_warn(logger, "this process loads no libraries (it has no libdl): no other tuner is asked");
        }
        return false;
    }
    if (!name) {
        return find_default(newest, logger, found);
    }
    return strcasecmp(name, "none") != 0 && find_named(name, newest, logger, found);
}

void chain_let_go(const struct next_library *library) {
    dlclose(library->handle);
}
