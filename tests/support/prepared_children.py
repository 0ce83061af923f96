"""The oracle's children, forked from a process that has imported what they import: a fourth of a start is Python's.

What a child does is `tuner.oracle.child` itself, run after the fork in its own folder, environment and shared memory.
The first start of a test process is as users' are, and so is each whose environment the loader would read at a start.
"""

import functools
import gc
import importlib
import os
import pickle
import resource
import runpy
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tuner.base import children

MODULE = "tests.support.prepared_children"
# Modules of the child that do nothing when they are imported
IMPORTED = ("channels", "configuration", "issue", "memory", "messages", "ring", "works", "world")
# The loader looks for libraries where a process is at that time: children are in a folder of their scratch folder.
LIBRARIES = "/proc/self/cwd/.."
READ_AT_START = ("LD_", "MALLOC_", "GLIBC_")
OWN = {"MALLOC_ARENA_MAX": "1024"}
LIMITS = sorted({getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")})
MOST_BYTES = 64 << 10  # of a request
as_users_do = children.start


class Prepared:
    """The process that forks, which ends with the last of its children's handles and of its users."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = {name: value for name, value in os.environ.items() if not name.startswith(READ_AT_START)}
        with other:
            self._process = subprocess.Popen(
                children.command(MODULE, str(other.fileno())),
                cwd="/",
                env={**children.environment(environment), **OWN, "LD_LIBRARY_PATH": LIBRARIES},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(other.fileno(),),
                start_new_session=True,
            )

    def ask(self, request: object, descriptors: Sequence[int] = ()) -> int:
        """What it answers with a number; EOFError where it has ended."""
        with self._lock:
            socket.send_fds(self._socket, [pickle.dumps(request)], descriptors)
            answer = self._socket.recv(64)
        if not answer:
            raise EOFError(f"{MODULE} has ended")
        return int(answer)


class Forked:
    """What the oracle uses of a `subprocess.Popen`."""

    def __init__(self, prepared: Prepared, pid: int) -> None:
        self.pid, self.returncode = pid, None
        self._prepared, self._ended = prepared, os.pidfd_open(pid)  # not reaped yet, so that the number is its own

    def poll(self) -> int | None:
        return self._status(0)

    def wait(self, timeout: float | None = None) -> int:
        status = self._status(None if timeout is None else timeout * 1000)
        if status is None:
            raise subprocess.TimeoutExpired(MODULE, timeout or 0)
        return status

    def _status(self, most_ms: float | None) -> int | None:
        if self.returncode is None:
            waiting = select.poll()
            waiting.register(self._ended, select.POLLIN)
            if waiting.poll(most_ms):
                self.returncode = self._prepared.ask(self.pid)
                os.close(self._ended)
        return self.returncode

    returncode: int | None


@functools.lru_cache(1)
def _prepared(_here: object) -> Prepared:
    return Prepared()


def start(program: str, *arguments: str, **popen: Any) -> Any:
    """Instead of :func:`tuner.base.children.start`."""
    global _started
    env, folder = popen.get("env", {}), Path(popen.get("cwd", "/")).parent
    for_loader = {name: value for name, value in env.items() if name.startswith(READ_AT_START)}
    request = pickle.dumps((arguments, str(popen.get("cwd")), dict(env)))
    usual = for_loader == {**OWN, "LD_LIBRARY_PATH": str(folder)} and len(request) < MOST_BYTES
    if program != children.ORACLE or not usual or not hasattr(os, "pidfd_open") or not _started:
        _started |= program == children.ORACLE
        return as_users_do(program, *arguments, **popen)
    sys.audit("subprocess.Popen", sys.executable, [program, *arguments], str(folder), None)  # as a start is known by
    limits = tuple(resource.getrlimit(each) for each in LIMITS)
    prepared = _prepared((os.getpid(), limits, tuple(children.command(program)), sys.pycache_prefix))
    (descriptor,) = popen["pass_fds"]
    return Forked(prepared, prepared.ask((arguments, str(popen["cwd"]), env), [descriptor, popen["stderr"].fileno()]))


_started = False  # whether this process has started the oracle


def _serve(control: socket.socket) -> None:
    """Forks a child for each request, and says how one has ended that has."""
    for name in IMPORTED:
        importlib.import_module(f"{children.ORACLE}.{name}")
    gc.disable()
    gc.freeze()
    while True:
        text, descriptors, _, _ = socket.recv_fds(control, MOST_BYTES, 2)
        if not text:
            return
        request = pickle.loads(text)
        if isinstance(request, int):
            control.send(str(os.waitstatus_to_exitcode(os.waitpid(request, 0)[1])).encode())
            continue
        if (pid := os.fork()) == 0:
            os.setpgid(0, 0)
            control.close()
            _become(*request, *descriptors)
            return
        os.setpgid(pid, pid)  # whoever is first: the group is there when its number is known
        for each in descriptors:
            os.close(each)
        control.send(str(pid).encode())


def _become(arguments: Sequence[str], folder: str, env: dict[str, str], descriptor: int, output: int) -> None:
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    sys.argv[1:] = [str(descriptor), *arguments[1:]]
    runpy.run_module(children.ORACLE, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
