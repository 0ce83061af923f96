"""Gives a child its own shared memory: a file system that exists only for this process, and disappears with it.

NCCL makes files of at least 34 MB in /dev/shm, and removes them once all ranks have mapped them. A process that ends
earlier leaves them there. In a separate mount namespace nothing is left, however the process ends.
"""

import ctypes
import os
from contextlib import suppress
from pathlib import Path

_NEW_MOUNTS, _NEW_USER = 0x00020000, 0x10000000  # CLONE_NEWNS, CLONE_NEWUSER of sched.h
_PRIVATE, _NO_PROGRAMS = 0x4000 | 0x40000, 2 | 4  # MS_REC | MS_PRIVATE; MS_NOSUID | MS_NODEV of sys/mount.h


def separate() -> bool:
    """Gives this process, which must have only one thread, its own shared memory; returns whether that worked.

    Without the right to mount, it makes a user namespace first, if the system allows that.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.geteuid(), os.getegid()
    if libc.unshare(_NEW_MOUNTS) != 0:
        if libc.unshare(_NEW_MOUNTS | _NEW_USER) != 0:
            return False
        with suppress(OSError):
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
            Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    if libc.mount(b"none", b"/", None, _PRIVATE, None) != 0:
        return False
    return bool(libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", _NO_PROGRAMS, b"mode=1777") == 0)


OWN_SHARED_MEMORY = separate()  # done at import, before anything starts threads
