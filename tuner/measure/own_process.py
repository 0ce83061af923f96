"""A backend in a process of its own, which can be ended and begun anew: what is fixed in a process is drawn again then.

``python -m tuner.measure.own_process DESCRIPTOR`` is that process. It serves the one that started it over a socket.
"""

import copyreg
import ctypes
import os
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from tuner.base.errors import MeasuringFailed, TunerError
from tuner.measure.backend import Backend, Run
from tuner.measure.records.header import Header
from tuner.measure.records.samples import Combination, Point

_LAST = ("close", "make_way")
_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG
CLOSE_S = 30.0  # that a process is given to end by itself

Opener = Callable[[], Backend]  # a function that pickle knows: of a module, or a partial of one


def _frozen(values: dict[Any, Any]) -> MappingProxyType[Any, Any]:
    return MappingProxyType(values)


copyreg.pickle(MappingProxyType, lambda frozen: (_frozen, (dict(frozen),)))  # scenarios have them


def ending(process: subprocess.Popen[bytes]) -> str:
    """How a process came to give no answer, as words that follow its name; it has 5 s to end."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(5)
    code = process.poll()
    if code is None:
        return "closed its connection"
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit status {code}"


def kill(process: subprocess.Popen[bytes]) -> None:
    """Ends a process that leads its own session, with all that it has started."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def send(stream: Any, answer: object) -> None:
    """One answer to the process that asks."""
    pickle.dump(answer, stream, pickle.HIGHEST_PROTOCOL)
    stream.flush()


@dataclass(frozen=True, slots=True)
class _Answer:
    result: Any = None
    error: TunerError | None = None


class _Asked:
    """A fresh process that is asked; ``limit_s`` is for each answer, None for no limit."""

    def __init__(self, opener: Callable[[], Any], limit_s: float | None) -> None:
        self._opener, self._limit_s = pickle.dumps(opener), limit_s
        self._process: subprocess.Popen[bytes] | None = None

    def _begin(self) -> Any:
        """What the process says first."""
        own, theirs = socket.socketpair()
        own.settimeout(self._limit_s)
        self._socket, self._stream = own, own.makefile("rwb")
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,  # Ctrl-C is for the process that asks
            )
        try:
            return self._exchanged("opening", self._opener)
        except BaseException:
            self._end()
            raise

    def _exchanged(self, doing: str, message: bytes) -> Any:
        if self._process is None:
            raise MeasuringFailed("the process that measured has ended")
        try:
            self._stream.write(message)
            self._stream.flush()
            answer: _Answer = pickle.load(self._stream)
        except TimeoutError:
            self._end()
            raise MeasuringFailed(
                f"the process that measures did not answer within {self._limit_s:g} s ({doing}), and was ended"
            ) from None
        except (EOFError, OSError, pickle.UnpicklingError):
            raise MeasuringFailed(f"the process that measures {self._death()} ({doing})") from None
        except BaseException:  # its answer is still to come, and would be taken for that of the next question
            self._end()
            raise
        if answer.error is not None:
            raise answer.error
        return answer.result

    def _death(self) -> str:
        assert self._process is not None
        said = ending(self._process)
        self._end()
        return said

    def _end(self) -> None:
        process, self._process = self._process, None
        self._stream.close()
        self._socket.close()
        if process is not None:
            kill(process)


class OwnProcess(_Asked):
    """A Backend (tuner.measure.backend) that ``opener`` opens in a fresh process, and again at each :meth:`renew`.

    Errors: those of the backend; MeasuringFailed where the process dies, or does not answer within ``limit_s``.
    """

    def __init__(self, opener: Opener, limit_s: float | None = None) -> None:
        super().__init__(opener, limit_s)
        self._table: str | None = None
        self.ranks: int = self._begin()

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
        self._leave("make_way")
        self._begin()
        if self._table is not None:
            self._ask("use_table", self._table)
        return True

    def close(self) -> None:
        """Ends the process."""
        self._leave("close")

    def _leave(self, how: str) -> None:
        if self._process is not None:
            with suppress(MeasuringFailed):
                self._ask(how)
            with suppress(subprocess.TimeoutExpired):
                if self._process is not None:
                    self._process.wait(CLOSE_S)
            self._end()

    def _ask(self, name: str, *arguments: Any) -> Any:
        return self._exchanged(name, pickle.dumps((name, arguments)))


class _Served(_Asked):
    def whole(self) -> bool:
        """Serves to the end; whether there is one more to come."""
        again = bool(self._begin())
        with suppress(subprocess.TimeoutExpired):
            if self._process is not None:
                self._process.wait(CLOSE_S)
        self._end()
        return again


def serve(opener: Callable[[], bool]) -> None:
    """On a rank that serves another's measurement: in fresh processes, as long as ``opener`` says that one more is due.

    Errors: those of ``opener``; MeasuringFailed where a process dies.
    """
    while _Served(opener, None).whole():
        continue


def main() -> None:
    """Opens what the first message says, and answers until it is told to close or nobody asks any more."""
    ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)  # or it would keep the GPUs where the other side is killed
    with socket.socket(fileno=int(sys.argv[1])) as connection, connection.makefile("rwb") as stream, suppress(EOFError):
        try:
            backend = pickle.load(stream)()
        except TunerError as error:
            send(stream, _Answer(error=error))
            return
        if isinstance(backend, bool):  # it has served already
            send(stream, _Answer(backend))
            return
        with closing(backend):
            send(stream, _Answer(backend.ranks))
            while True:
                name, arguments = pickle.load(stream)
                send(stream, _answered(backend, name, arguments))
                if name in _LAST:
                    return


def _answered(backend: Backend, name: str, arguments: Sequence[Any]) -> _Answer:
    try:
        return _Answer(getattr(backend, name, backend.close)(*arguments))
    except TunerError as error:
        return _Answer(error=error)


if __name__ == "__main__":
    from tuner.measure import own_process  # under the name that the other side's pickles know

    own_process.main()
