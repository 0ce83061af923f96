/* dlopen() and what belongs to it, so that the plugin loads wherever NCCL does. They moved from libdl to libc in glibc
 * 2.34, under a new version. By their first version, and weak, an object that is built there loads on older systems too;
 * where the process has no libdl they are NULL. It comes before all other headers: it defines _GNU_SOURCE. */
#ifndef PLUGIN_LIBDL_H
#define PLUGIN_LIBDL_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* dladdr, RTLD_NOLOAD beside plain C11 */
#endif

#include <dlfcn.h>
#include <stdbool.h>

#if defined(__GLIBC__) && defined(__x86_64__)
#define LIBDL_SINCE "GLIBC_2.2.5"
#elif defined(__GLIBC__) && defined(__aarch64__)
#define LIBDL_SINCE "GLIBC_2.17"
#endif

#ifdef LIBDL_SINCE
#pragma weak dlopen
#pragma weak dlsym
#pragma weak dlclose
#pragma weak dlerror
#pragma weak dladdr
/* Headers of an older glibc mean the first version anyway, and not every linker finds that by its name. */
#if __GLIBC_PREREQ(2, 34)
__asm__(".symver dlopen,dlopen@" LIBDL_SINCE);
__asm__(".symver dlsym,dlsym@" LIBDL_SINCE);
__asm__(".symver dlclose,dlclose@" LIBDL_SINCE);
__asm__(".symver dlerror,dlerror@" LIBDL_SINCE);
__asm__(".symver dladdr,dladdr@" LIBDL_SINCE);
#endif
#endif

/* Whether there is a libdl. Through a variable: a compiler that knows dlopen as a function may take it for never NULL. */
static inline bool libdl_is_there(void) {
    void *(*needed)(const char *, int) = dlopen;
    return needed;
}

#endif
