"""A process of the double: it opens the simulated GPUs as real ones are opened, and serves the process that started it.

``python -m tuner.measure.double.child DESCRIPTOR``, in an environment of the double; rank 0's descriptor is a socket,
the others' is -1: they serve rank 0.
"""

import pickle
import socket
import sys
from typing import Any

from tuner.base.errors import TunerError
from tuner.measure.double.computer import computer
from tuner.measure.double.faults import plant
from tuner.measure.double.requests import Answer, Opened, Request
from tuner.measure.gpu.opening import open_gpus
from tuner.measure.own_process import send


def main() -> None:
    """The first request opens, the last one closes."""
    descriptor = int(sys.argv[1])
    options = pickle.loads(sys.stdin.buffer.read())
    stream = None if descriptor < 0 else socket.socket(fileno=descriptor).makefile("rwb")
    backend: Any = None
    try:
        plant(computer().settings)
        backend = open_gpus(options)
        answer = Answer(Opened(backend.describe(), backend.release, backend.ranks) if backend else None)
    except TunerError as error:
        answer = Answer(error=error)
    if stream is None:
        if answer.error is not None:
            sys.exit(f"{answer.error}")
        return
    send(stream, answer)
    while backend is not None:
        try:
            request: Request = pickle.load(stream)
        except EOFError:
            return
        send(stream, _answered(backend, request))
        if request.name == "close":
            return


def _answered(backend: Any, request: Request) -> Answer:
    launched = computer().launched
    launched.clear()
    try:
        result = getattr(backend, request.name)(*request.arguments)
    except TunerError as error:
        return Answer(error=error, launched=dict(launched))
    return Answer(result, launched=dict(launched))


if __name__ == "__main__":
    main()
