/* Waits where NCCL spins. Ranks of a real job have cores of their own, and ask their sockets again and again; here many
 * threads share a few cores, and whoever spins keeps from running the one that it waits for. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <sys/socket.h>

#include "export.h"
#include "imports.h"
#include "oracle.h"

enum { WAIT_MS = 1 }; /* at most, for the same thread may have other sockets to serve */

/* Whether a call that would have had to wait may be made again. */
static int ready(int socket) {
    if (errno != EAGAIN && errno != EWOULDBLOCK) {
        return 0;
    }
    struct pollfd wanted = {.fd = socket, .events = POLLIN};
    int found = poll(&wanted, 1, WAIT_MS);
    errno = EAGAIN;
    return found > 0;
}

static ssize_t receive(int socket, void *buffer, size_t bytes, int flags) {
    ssize_t got = recv(socket, buffer, bytes, flags);
    return got < 0 && ready(socket) ? recv(socket, buffer, bytes, flags) : got;
}

static int accept_one(int socket, struct sockaddr *restrict address, socklen_t *restrict bytes) {
    int got = accept(socket, address, bytes);
    return got < 0 && ready(socket) ? accept(socket, address, bytes) : got;
}

SIM_EXPORT int sim_wait_for_peers(void) {
    int error = sim_redirect_import("recv", (uintptr_t)receive);
    return error != 0 ? error : sim_redirect_import("accept", (uintptr_t)accept_one);
}
