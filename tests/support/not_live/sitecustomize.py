"""Keeps a test that isn't marked `live` from libnccl and the network, in its own process and in those that it starts.

tests/conftest.py names a file in NOT_LIVE_TRIED while such a test runs, and puts this folder on PYTHONPATH, from
where Python imports a module of this name at its start. What was tried is written to the file and raised.
"""

import contextlib
import os
import sys
from typing import Any

VARIABLE = "NOT_LIVE_TRIED"
LIBRARY = "libnccl.so.2"
ORACLE = "tuner.oracle.child"


def tried(event: str, arguments: tuple[Any, ...]) -> str | None:
    """What an audit event says was tried that only a live test may do."""
    if event == "open" and str(arguments[0]).endswith(LIBRARY) and _is_real(str(arguments[0])):
        return f"opened {arguments[0]}"
    if event == "subprocess.Popen":
        command = [str(word) for word in arguments[1]] if isinstance(arguments[1], (list, tuple)) else []
        if ORACLE in command:
            return "started the oracle's process"
    if event == "socket.connect" and isinstance(arguments[1], tuple) and not _is_local(str(arguments[1][0])):
        return f"connected to {arguments[1][0]}"
    return None


def _is_real(path: str) -> bool:
    """Whether it is a library's size: tests make small files of that name."""
    with contextlib.suppress(OSError):
        return os.stat(path).st_size > 10 << 20
    return False


def _is_local(host: str) -> bool:
    return host.startswith("127.") or host in ("::1", "localhost", "0.0.0.0")


def hook(event: str, arguments: tuple[Any, ...]) -> None:
    if event not in ("open", "subprocess.Popen", "socket.connect") or VARIABLE not in os.environ:
        return
    if (what := tried(event, arguments)) is not None:
        path = os.environ.pop(VARIABLE)  # writing opens a file
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{what}\n")
        os.environ[VARIABLE] = path
        raise RuntimeError(f"a test that is not marked live {what}")


sys.addaudithook(hook)
