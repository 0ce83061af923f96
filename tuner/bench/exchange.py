"""Questions to processes that are started for them, and the answers: pickles over a socket, one after the other."""

import copyreg
import os
import pickle
import signal
import socket
import subprocess
from collections.abc import Callable
from contextlib import suppress
from types import MappingProxyType
from typing import Any

from tuner.base.dataclass import dataclass
from tuner.base.errors import MeasuringFailed, TunerError

LAST = ("close", "make_way")  # questions that nothing comes after

Begun = Callable[[int, int], "subprocess.Popen[bytes]"]  # of a process's number, and of its descriptor or -1


def _frozen(values: dict[Any, Any]) -> MappingProxyType[Any, Any]:
    return MappingProxyType(values)


copyreg.pickle(MappingProxyType, lambda frozen: (_frozen, (dict(frozen),)))  # scenarios have them


@dataclass(frozen=True, slots=True)
class Question:
    """A method of tuner.bench.backend.Backend, to be called."""

    name: str
    arguments: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """What it returned, or the error it raised."""

    result: Any = None
    error: TunerError | None = None


class WorkerProcesses:
    """Processes that measure together, the first of which is asked; all are ended where it gives no answer.

    ``name`` is what errors call them, ``limit_s`` is for each answer (None for no limit), and ``last_words`` says what
    the first of them wrote last. Each leads a session of its own.
    """

    def __init__(self, name: str, limit_s: float | None, last_words: Callable[[], str] = str) -> None:
        self._name, self._limit_s, self._last_words = name, limit_s, last_words
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def pids(self) -> list[int]:
        """Of the processes that were started and not ended."""
        return [process.pid for process in self._processes]

    def start(self, begun: Begun, count: int = 1) -> None:
        """Starts them; the first gets the descriptor of a socket, over which it answers."""
        own, theirs = socket.socketpair()
        own.settimeout(self._limit_s)
        self._socket, self._stream = own, own.makefile("rwb")
        with theirs:
            for number in range(count):
                self._processes.append(begun(number, theirs.fileno() if number == 0 else -1))

    def ask(self, message: object, doing: str) -> Any:
        """The Answer to a message. Errors: that of the answer; MeasuringFailed where there is none."""
        return self._exchanged(doing, lambda: send(self._stream, message))

    def answer(self, doing: str) -> Any:
        """The Answer that comes unasked. Errors: as of :meth:`ask`."""
        return self._exchanged(doing, lambda: None)

    def _exchanged(self, doing: str, say: Callable[[], None]) -> Any:
        if not self._processes:
            raise MeasuringFailed(f"{self._name} has ended")
        try:
            say()
            answer: Answer = pickle.load(self._stream)
        except TimeoutError:
            self.end()
            raise MeasuringFailed(
                f"{self._name} did not answer within {self._limit_s:g} s ({doing}), and was ended"
            ) from None
        except (EOFError, OSError, pickle.UnpicklingError):
            how, last = _ending(self._processes[0]), self._last_words()
            self.end()
            raise MeasuringFailed(f"{self._name} {how} ({doing})" + (f": {last}" if last else "")) from None
        except BaseException:  # its answer is still to come, and would be taken for that of the next question
            self.end()
            raise
        if answer.error is not None:
            raise answer.error
        return answer

    def leave(self, how: str, limit_s: float) -> None:
        """Asks them to end, by one of ``LAST``, and gives each this time for it."""
        with suppress(MeasuringFailed):
            self.ask(Question(how), how)
        self.wait(limit_s)

    def wait(self, limit_s: float) -> None:
        """Ends them where they do not end by themselves in this time."""
        for process in self._processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(limit_s)
        self.end()

    def end(self) -> None:
        """Ends them at once, with all that they have started."""
        processes, self._processes = self._processes, []
        for process in processes:
            _kill(process)
        if processes:
            with suppress(OSError):  # what nobody reads any more
                self._stream.close()
            self._socket.close()


def send(stream: Any, message: object) -> None:
    """One question or answer to the other side."""
    pickle.dump(message, stream, pickle.HIGHEST_PROTOCOL)
    stream.flush()


def answer_all(stream: Any, answered: Callable[[Question], Answer]) -> None:
    """Answers until one of ``LAST`` is asked, or nobody asks any more."""
    with suppress(EOFError):
        while True:
            question: Question = pickle.load(stream)
            send(stream, answered(question))
            if question.name in LAST:
                return


def _ending(process: "subprocess.Popen[bytes]") -> str:
    """How a process came to give no answer, as words that follow its name; it has 5 s to end."""
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
