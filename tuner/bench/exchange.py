"""Sends questions to worker processes and receives their answers, one by one, as pickles over a socket.

A worker process runs ``main`` and has its own backend. A worker can be ended and replaced by a new one. What stays the
same for the life of a process, such as addresses of buffers, then varies between measurements.
"""

import copyreg
import ctypes
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from functools import partial
from types import MappingProxyType
from typing import Any

from tuner.base import children
from tuner.base.dataclass import dataclass
from tuner.base.errors import MeasuringFailed, TunerError
from tuner.base.scratch import ScratchFolder
from tuner.bench.backend import Backend, Run
from tuner.times.measured.header import Header
from tuner.times.measured.samples import Combination, Point

LAST = ("close", "make_way")  # after these questions no other may follow

Begun = Callable[[int, int], "subprocess.Popen[bytes]"]  # gets the number of a process, and its descriptor or -1


def _frozen(values: dict[Any, Any]) -> MappingProxyType[Any, Any]:
    return MappingProxyType(values)


copyreg.pickle(MappingProxyType, lambda frozen: (_frozen, (dict(frozen),)))  # scenarios contain such mappings


@dataclass(frozen=True, slots=True)
class Question:
    """A call of a method of :class:`tuner.bench.backend.Backend` in another process."""

    name: str
    arguments: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkerAnswer:
    """The result of a question, or the error that it raised."""

    result: Any = None
    error: TunerError | None = None


class WorkerProcesses:
    """Processes that measure together. Questions go to the first one; if it does not answer, all of them are ended.

    ``name`` is what errors call the processes. ``limit_s`` is the time to wait for each answer; None for no limit.
    ``last_words`` is a function that returns what the first process wrote last. Each process leads its own session.
    """

    def __init__(self, name: str, limit_s: float | None, last_words: Callable[[], str] = str) -> None:
        self._name, self._limit_s, self._last_words = name, limit_s, last_words
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def pids(self) -> list[int]:
        """The ids of those processes that were started and have not ended."""
        return [process.pid for process in self._processes]

    def start(self, begun: Begun, count: int = 1) -> None:
        """Starts the processes; the first gets the descriptor of a socket over which it answers."""
        own, theirs = socket.socketpair()
        own.settimeout(self._limit_s)
        self._socket, self._stream = own, own.makefile("rwb")
        with theirs:
            for number in range(count):
                self._processes.append(begun(number, theirs.fileno() if number == 0 else -1))

    def ask(self, message: object, doing: str) -> Any:
        """Sends a message, waits for the answer and returns it, a WorkerAnswer.

        Raises the error in the answer, if it has one; MeasuringFailed if there is no answer.
        """
        return self._exchanged(doing, lambda: send(self._stream, message))

    def answer(self, doing: str) -> Any:
        """Waits for the next WorkerAnswer without sending anything, and returns it.

        Raises the error in the answer, if it has one; MeasuringFailed if there is no answer.
        """
        return self._exchanged(doing, lambda: None)

    def _exchanged(self, doing: str, say: Callable[[], None]) -> Any:
        if not self._processes:
            raise MeasuringFailed(f"{self._name} has ended")
        try:
            say()
            answer: WorkerAnswer = pickle.load(self._stream)
        except TimeoutError:
            self.end()
            raise MeasuringFailed(
                f"{self._name} did not answer within {self._limit_s:g} s ({doing}), and was ended"
            ) from None
        except (EOFError, OSError, pickle.UnpicklingError):
            how, last = _ending(self._processes[0]), self._last_words()
            self.end()
            raise MeasuringFailed(f"{self._name} {how} ({doing})" + (f": {last}" if last else "")) from None
        except BaseException:  # the answer is still to come, and must not be taken for that of the next question
            self.end()
            raise
        if answer.error is not None:
            raise answer.error
        return answer

    def leave(self, how: str, limit_s: float) -> None:
        """Asks the processes to end, and waits up to ``limit_s`` for each.

        ``how`` is one of the questions ``LAST``.
        """
        with suppress(MeasuringFailed):
            self.ask(Question(how), how)
        self.wait(limit_s)

    def wait(self, limit_s: float) -> None:
        """Waits up to ``limit_s`` for each process to end, then kills those that are left."""
        for process in self._processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(limit_s)
        self.end()

    def end(self) -> None:
        """Kills the processes at once, with everything that they started."""
        processes, self._processes = self._processes, []
        for process in processes:
            _kill(process)
        if processes:
            with suppress(OSError):  # nobody reads the rest any more
                self._stream.close()
            self._socket.close()


def send(stream: Any, message: object) -> None:
    """Sends one question or answer to the other side."""
    pickle.dump(message, stream, pickle.HIGHEST_PROTOCOL)
    stream.flush()


def answer_all(stream: Any, answered: Callable[[Question], WorkerAnswer]) -> None:
    """Answers questions until the other side is gone, or until one of the questions ``LAST`` was answered."""
    with suppress(EOFError):
        while True:
            question: Question = pickle.load(stream)
            send(stream, answered(question))
            if question.name in LAST:
                return


def _ending(process: "subprocess.Popen[bytes]") -> str:
    """A text that says how a process ended without answering, to follow its name. Waits up to 5 s for its end."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(5)
    code = process.poll()
    if code is None:
        return "closed its connection"
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit status {code}"


def _kill(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


_NAME = "the process that measures"
_FOLDER = "measure"
_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG
CLOSE_S = 30.0  # time that a process gets to end by itself

Opener = Callable[[], Backend]  # a function that pickle can name: of a module, or a partial of one


def _begun(folder: str, number: int, descriptor: int) -> "subprocess.Popen[bytes]":
    """Starts a process whose temporary files are in this folder, so that no file is left over if it is killed.

    The process runs in the current folder, so that file names mean the same, but imports nothing from there.
    """
    return children.start(
        children.MEASURING,
        str(descriptor),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=(descriptor,),
        env={**children.environment(), "TMPDIR": folder},
        start_new_session=True,  # Ctrl-C must reach the asking process only
    )


class OwnProcess:
    """A Backend (tuner.bench.backend) that ``opener`` opens in a fresh process, and in another one at each
    :meth:`renew`.

    Errors of the backend are raised here. MeasuringFailed if the process dies, or does not answer within ``limit_s``.
    """

    def __init__(self, opener: Opener, limit_s: float | None = None) -> None:
        self._opener, self._workers = opener, WorkerProcesses(_NAME, limit_s)
        self._folder = ScratchFolder(_FOLDER)
        self._table: str | None = None
        try:
            self.ranks = self._begin()
        except BaseException:
            self._folder.cleanup()
            raise

    def _begin(self) -> int:
        """Starts the process and returns its number of ranks."""
        return int(_first_answer(self._workers, self._folder.name, self._opener))

    def describe(self) -> Header:
        """The backend's header."""
        found: Header = self._ask("describe")
        return found

    def combinations(self, point: Point) -> Sequence[Combination]:
        """Combinations that can be requested at this point."""
        found: Sequence[Combination] = self._ask("combinations", point)
        return found

    def run(self, point: Point, requested: Combination | None, repeats: int) -> Run:
        """Runs a point on the backend."""
        found: Run = self._ask("run", point, requested, repeats)
        return found

    def now_s(self) -> float:
        """The backend's clock."""
        found: float = self._ask("now_s")
        return found

    def use_table(self, text: str | None) -> None:
        """Sets the decision table, also for later processes."""
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
        """Waits for ``seconds``."""
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
    """Serves another rank's measurement: opens backends in fresh processes, one after the other, as long as more are
    needed.

    Raises what ``opener`` raises; MeasuringFailed if a process dies.
    """
    with ScratchFolder(_FOLDER) as folder:
        while _served(opener, folder):
            continue


def _served(opener: Callable[[], bool], folder: str) -> bool:
    """Serves in one process until it ends; returns whether another process follows."""
    workers = WorkerProcesses(_NAME, None)
    again = bool(_first_answer(workers, folder, opener))
    workers.wait(CLOSE_S)
    return again


def main() -> None:
    """Opens the backend with the function in the first message, and answers until it is told to close or the other side
    is gone.
    """
    # Otherwise it would keep the GPUs if the other side is killed
    ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)
    with socket.socket(fileno=int(sys.argv[1])) as connection, connection.makefile("rwb") as stream, suppress(EOFError):
        try:
            backend = pickle.load(stream)()
        except TunerError as error:
            send(stream, WorkerAnswer(error=error))
            return
        if isinstance(backend, bool):  # it has served already
            send(stream, WorkerAnswer(backend))
            return
        with closing(backend):
            send(stream, WorkerAnswer(backend.ranks))
            answer_all(stream, partial(_answered, backend))


def _answered(backend: Backend, question: Question) -> WorkerAnswer:
    try:
        return WorkerAnswer(getattr(backend, question.name, backend.close)(*question.arguments))
    except TunerError as error:
        return WorkerAnswer(error=error)
