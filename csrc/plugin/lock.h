/* A lock that needs no thread library, for what is seldom held at once: whoever waits lets others run. */
#ifndef PLUGIN_LOCK_H
#define PLUGIN_LOCK_H

#include <sched.h>
#include <stdatomic.h>

static inline void lock_take(atomic_flag *lock) {
    while (atomic_flag_test_and_set_explicit(lock, memory_order_acquire)) {
        sched_yield();
    }
}

static inline void lock_release(atomic_flag *lock) {
    atomic_flag_clear_explicit(lock, memory_order_release);
}

#endif
