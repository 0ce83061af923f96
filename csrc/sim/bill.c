/* What libnccl asks the simulated devices for.
 *
 * Bytes are those of the request. A device gives more: it rounds, and has contexts and kernels of its own.
 */
#include "bill.h"

#include <pthread.h>
#include <stdlib.h>

#include "export.h"
#include "machine.h"
#include "oracle.h"

struct item {
    uintptr_t key; /* address or handle */
    size_t bytes;
    int device;
    int on_host;
    int holders;
};

struct items {
    struct item *all;
    int n;
};

static struct items plain, created;
static struct items mapped; /* by address; bytes is the handle */
static struct sim_bill bills[SIM_MAX_RANKS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct item *find(const struct items *items, uintptr_t key) {
    for (int i = items->n; i-- > 0;) { /* the newest first */
        if (items->all[i].key == key) {
            return &items->all[i];
        }
    }
    return NULL;
}

static void append(struct items *items, struct item item) {
    if ((items->n & (items->n - 1)) == 0) {
        items->all = realloc(items->all, (items->n == 0 ? 1 : 2 * (size_t)items->n) * sizeof item);
        if (items->all == NULL) {
            abort();
        }
    }
    items->all[items->n++] = item;
}

static void drop(struct items *items, struct item *item) {
    *item = items->all[--items->n];
}

static void charge(const struct item *item) {
    struct sim_bill *bill = &bills[item->device];
    if (item->on_host) {
        bill->host_bytes += item->bytes;
        return;
    }
    bill->device_bytes += item->bytes;
    if (bill->device_bytes > bill->peak_device_bytes) {
        bill->peak_device_bytes = bill->device_bytes;
    }
}

static void refund(const struct item *item) {
    struct sim_bill *bill = &bills[item->device];
    *(item->on_host ? &bill->host_bytes : &bill->device_bytes) -= item->bytes;
}

void sim_bill_add(const void *address, size_t bytes, int on_host) {
    pthread_mutex_lock(&lock);
    append(&plain, (struct item){(uintptr_t)address, bytes, sim_device(), on_host, 1});
    charge(&plain.all[plain.n - 1]);
    pthread_mutex_unlock(&lock);
}

void sim_bill_remove(const void *address) {
    pthread_mutex_lock(&lock);
    struct item *item = find(&plain, (uintptr_t)address);
    if (item != NULL) {
        refund(item);
        drop(&plain, item);
    }
    pthread_mutex_unlock(&lock);
}

void sim_bill_create(uint64_t handle, size_t bytes, int on_host) {
    pthread_mutex_lock(&lock);
    append(&created, (struct item){handle, bytes, sim_device(), on_host, 1});
    charge(&created.all[created.n - 1]);
    pthread_mutex_unlock(&lock);
}

/* The lock must be held. Handles that others exported are not among them. */
static void hold(uint64_t handle, int more) {
    struct item *item = find(&created, handle);
    if (item == NULL) {
        return;
    }
    item->holders += more;
    if (item->holders == 0) {
        refund(item);
        drop(&created, item);
    }
}

void sim_bill_hold(uint64_t handle) {
    pthread_mutex_lock(&lock);
    hold(handle, 1);
    pthread_mutex_unlock(&lock);
}

void sim_bill_let_go(uint64_t handle) {
    pthread_mutex_lock(&lock);
    hold(handle, -1);
    pthread_mutex_unlock(&lock);
}

void sim_bill_map(const void *address, uint64_t handle) {
    pthread_mutex_lock(&lock);
    append(&mapped, (struct item){.key = (uintptr_t)address, .bytes = handle});
    hold(handle, 1);
    pthread_mutex_unlock(&lock);
}

void sim_bill_unmap(const void *address) {
    pthread_mutex_lock(&lock);
    struct item *item = find(&mapped, (uintptr_t)address);
    if (item != NULL) {
        hold(item->bytes, -1);
        drop(&mapped, item);
    }
    pthread_mutex_unlock(&lock);
}

uint64_t sim_bill_handle_at(const void *address) {
    pthread_mutex_lock(&lock);
    const struct item *item = find(&mapped, (uintptr_t)address);
    uint64_t handle = item == NULL ? 0 : item->bytes;
    pthread_mutex_unlock(&lock);
    return handle;
}

SIM_EXPORT struct sim_bill sim_bill_of(int device) {
    pthread_mutex_lock(&lock);
    struct sim_bill bill = bills[device];
    pthread_mutex_unlock(&lock);
    return bill;
}
