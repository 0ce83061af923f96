"""A backend in a process of its own, which can be ended and begun anew: what is fixed in a process is drawn again then.

``python -m tuner.bench.own_process DESCRIPTOR`` is that process. It serves the one that started it over a socket.
"""

import ctypes
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from functools import partial
from typing import Any

from tuner.base.errors import TunerError
from tuner.bench.backend import Backend, Run
from tuner.bench.exchange import Answer, Question, WorkerProcesses, answer_all, send
from tuner.times.records.header import Header
from tuner.times.records.samples import Combination, Point

_NAME = "the process that measures"
_FOLDER = "nccl-tuner-measure-"
_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG
CLOSE_S = 30.0  # that a process is given to end by itself

Opener = Callable[[], Backend]  # a function that pickle knows: of a module, or a partial of one


def _begun(folder: str, number: int, descriptor: int) -> "subprocess.Popen[bytes]":
    """A process whose temporary files lie in this folder, so that none stays behind where it is killed."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", __name__, str(descriptor)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=(descriptor,),
        env={**os.environ, "TMPDIR": folder},
        start_new_session=True,  # Ctrl-C is for the process that asks
    )


class OwnProcess:
    """A Backend (tuner.bench.backend) that ``opener`` opens in a fresh process, and again at each :meth:`renew`.

    Errors: those of the backend; MeasuringFailed where the process dies, or does not answer within ``limit_s``.
    """

    def __init__(self, opener: Opener, limit_s: float | None = None) -> None:
        self._opener, self._workers = opener, WorkerProcesses(_NAME, limit_s)
        self._folder = tempfile.TemporaryDirectory(prefix=_FOLDER)
        self._table: str | None = None
        try:
            self.ranks = self._begin()
        except BaseException:
            self._folder.cleanup()
            raise

    def _begin(self) -> int:
        """How many ranks there are in the process that is begun."""
        return int(_first_answer(self._workers, self._folder.name, self._opener))

    def describe(self) -> Header:
        """As the backend says it."""
        found: Header = self._ask("describe")
        return found

    def combinations(self, point: Point) -> Sequence[Combination]:
        """What can be requested at this point."""
        found: Sequence[Combination] = self._ask("combinations", point)
        return found

    def run(self, point: Point, requested: Combination | None, repeats: int) -> Run:
        """The backend's times."""
        found: Run = self._ask("run", point, requested, repeats)
        return found

    def now_s(self) -> float:
        """The backend's clock."""
        found: float = self._ask("now_s")
        return found

    def use_table(self, text: str | None) -> None:
        """The decision table from here on, in later processes as well."""
        self._table = text
        self._ask("use_table", text)

    def renew(self) -> bool:
        """Ends the process and begins another."""
        self._workers.leave("make_way", CLOSE_S)
        self._begin()
        if self._table is not None:
            self._ask("use_table", self._table)
        return True

    def rest(self, seconds: float) -> None:
        """Waits."""
        time.sleep(seconds)

    def close(self) -> None:
        """Ends the process."""
        self._workers.leave("close", CLOSE_S)
        self._folder.cleanup()

    def _ask(self, name: str, *arguments: Any) -> Any:
        return self._workers.ask(Question(name, arguments), name).result


def _first_answer(workers: WorkerProcesses, folder: str, opener: Callable[[], Any]) -> Any:
    workers.start(partial(_begun, folder))
    return workers.ask(opener, "opening").result


def serve(opener: Callable[[], bool]) -> None:
    """On a rank that serves another's measurement: in fresh processes, as long as ``opener`` says that one more is due.

    Errors: those of ``opener``; MeasuringFailed where a process dies.
    """
    with tempfile.TemporaryDirectory(prefix=_FOLDER) as folder:
        while _served(opener, folder):
            continue


def _served(opener: Callable[[], bool], folder: str) -> bool:
    """Serves to the end in one process; whether there is one more to come."""
    workers = WorkerProcesses(_NAME, None)
    again = bool(_first_answer(workers, folder, opener))
    workers.wait(CLOSE_S)
    return again


def main() -> None:
    """Opens what the first message says, and answers until it is told to close or nobody asks any more."""
    ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)  # or it would keep the GPUs where the other side is killed
    with socket.socket(fileno=int(sys.argv[1])) as connection, connection.makefile("rwb") as stream, suppress(EOFError):
        try:
            backend = pickle.load(stream)()
        except TunerError as error:
            send(stream, Answer(error=error))
            return
        if isinstance(backend, bool):  # it has served already
            send(stream, Answer(backend))
            return
        with closing(backend):
            send(stream, Answer(backend.ranks))
            answer_all(stream, partial(_answered, backend))


def _answered(backend: Backend, question: Question) -> Answer:
    try:
        return Answer(getattr(backend, question.name, backend.close)(*question.arguments))
    except TunerError as error:
        return Answer(error=error)


if __name__ == "__main__":
    from tuner.bench import own_process  # under the name that the other side's pickles know

    own_process.main()
