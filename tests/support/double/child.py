"""A process of the double: it opens the simulated GPUs as real ones are opened, and serves the process that started it.

``python -m tests.support.double.child DESCRIPTOR``, in an environment of the double; rank 0's descriptor is a socket,
the others' is -1: they serve rank 0.
"""

import pickle
import re
import socket
import sys
from functools import partial
from typing import Any

from tests.support.double.backend import CountedAnswer, Opened
from tests.support.double.computer import computer
from tests.support.double.settings import DoubleSettings, Fault, FaultKind
from tuner.base.errors import TunerError
from tuner.bench.exchange import Question, answer_all, send
from tuner.bench.gpu.opening import open_gpus
from tuner.plugin.forcing import Forcing


def main() -> None:
    """The first request opens, the last one closes."""
    descriptor = int(sys.argv[1])
    options = pickle.loads(sys.stdin.buffer.read())
    stream = None if descriptor < 0 else socket.socket(fileno=descriptor).makefile("rwb")
    backend: Any = None
    try:
        plant(computer().settings)
        backend = open_gpus(options)
        answer = CountedAnswer(Opened(backend.describe(), backend.release, backend.ranks) if backend else None)
    except TunerError as error:
        answer = CountedAnswer(error=error)
    if stream is None:
        if answer.error is not None:
            sys.exit(f"{answer.error}")
        return
    send(stream, answer)
    if backend is not None:
        answer_all(stream, partial(_answered, backend))


def _answered(backend: Any, question: Question) -> CountedAnswer:
    launched = computer().launched
    launched.clear()
    try:
        result = getattr(backend, question.name)(*question.arguments)
    except TunerError as error:
        return CountedAnswer(error=error, launched=dict(launched))
    return CountedAnswer(result, launched=dict(launched))


def plant(settings: DoubleSettings) -> None:
    """Plants faults outside of CUDA: the forcing plugin is handed another table than its process gives it."""
    replaced = [fault for fault in settings.faults if fault.kind is FaultKind.replaced]
    if not replaced:
        return
    use_table = Forcing.use_table

    def swapped(forcing: Forcing, text: str | None) -> None:
        use_table(forcing, None if text is None else _swapped(text, replaced))

    Forcing.use_table = swapped  # type: ignore[method-assign, assignment]


def _swapped(text: str, faults: list[Fault]) -> str:
    for fault in faults:
        text = re.sub(rf"-> {re.escape(fault.forced)}(?!\S)", f"-> {fault.instead}", text)  # tree/ll is not tree/ll128
    return re.sub(r" sha256 \S+$", "", text, flags=re.MULTILINE)  # of what was changed


if __name__ == "__main__":
    main()
