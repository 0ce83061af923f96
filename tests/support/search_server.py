"""A process that has loaded one release of libnccl, and forks for each communicator that is to be initialised.

``python -m tests.support.search_server FD`` with a connected socket. Before a fork there are no threads, and no
function of libnccl has been called; all that it reads from the environment is set before the fork calls the first.
"""

import os
import pickle
import signal
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace

from tuner.oracle.child.world import Failure, Loaded, World, configure
from tuner.oracle.messages import Failed, Intercepted, SimulatedMachine, Start


@dataclass(frozen=True, slots=True)
class Asked:
    """One communicator to initialise, on the library that was loaded."""

    env: Mapping[str, str]
    machine: SimulatedMachine
    intercepted: Intercepted
    ranks: int
    timeout_s: int


class _Forked(World):
    """As a :class:`World`, but that the library is loaded already."""

    def __init__(self, loaded: Loaded, asked: Asked) -> None:
        self.symbols = loaded.symbols
        self.start = replace(loaded.start, machine=asked.machine, intercepted=asked.intercepted, ranks=asked.ranks)
        self.base = loaded.base
        configure(asked.machine)
        self.intercept(asked.intercepted)
        self.load_tuner()
        self.init(asked.ranks)


def initialise(loaded: Loaded, asked: Asked) -> Failed | None:
    """Initialises a communicator in a fork; what NCCL writes into files is all that is left of it."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(asked.timeout_s)
        os.environ.update(asked.env)
        try:
            _Forked(loaded, asked)
        except Failure as failure:
            os.write(writing, str(failure).encode())
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as stream:
        reason = stream.read().decode()
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        reason = f"the libnccl process was killed by {signal.Signals(os.WTERMSIG(status)).name}"
    return Failed(reason) if reason else None


def serve(descriptor: int) -> None:
    """Answers until the parent is gone."""
    stream = socket.socket(fileno=descriptor).makefile("rwb")
    loaded: Loaded | None = None
    while True:
        try:
            request: Start | Asked = pickle.load(stream)
        except EOFError:
            return
        answer: Failed | None = None
        if isinstance(request, Start):
            loaded = Loaded(request)
        elif loaded is not None:
            answer = initialise(loaded, request)
        pickle.dump(answer, stream, pickle.HIGHEST_PROTOCOL)
        stream.flush()


if __name__ == "__main__":
    serve(int(sys.argv[1]))
