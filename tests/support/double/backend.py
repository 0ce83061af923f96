"""The code for GPUs as a backend, run in processes of its own on simulated GPUs."""

import pickle
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import field, replace
from pathlib import Path
from typing import Any

from tests.support.double.settings import STARTED, DoubleEnvironment, DoubleSettings
from tuner.base.dataclass import dataclass
from tuner.base.errors import BadMeasurement, MeasuringFailed
from tuner.bench.backend import Options, Run, options_of
from tuner.bench.exchange import Question, WorkerAnswer, WorkerProcesses
from tuner.bench.gpu.rendezvous import RankAddress
from tuner.times.measured.header import DOUBLE, Header
from tuner.times.measured.samples import Combination, Point


@dataclass(frozen=True, slots=True)
class Opened:
    """The answer to the start."""

    header: Header
    release: str
    ranks: int


@dataclass(frozen=True, slots=True)
class CountedAnswer(WorkerAnswer):
    """``launched`` counts what libnccl launched in this process meanwhile."""

    launched: Mapping[tuple[Point, Combination], int] = field(default_factory=dict)


NAME = DOUBLE
CHILD = "tests.support.double.child"
START_S = 120.0  # that a start may take, besides what the ranks wait for each other
_LAST_LINES = 3


class Double:
    """A Backend (tuner.bench.backend) whose processes have one GPU code, :mod:`tuner.bench.gpu`, as it is.

    Errors: those of that code; MeasuringFailed where a process dies, or takes longer than the code's own limit.
    """

    def __init__(self, settings: DoubleSettings, options: Options) -> None:
        self.settings, self._limit_s = settings, options.limit_s
        self._environment = DoubleEnvironment(settings, options.library)
        self._workers = WorkerProcesses("the double's process", options.limit_s + START_S, self._last_words)
        self.launched: Mapping[tuple[Point, Combination], int] = {}  # by rank 0's process, in the last request
        self._options = replace(options, ranks_per_gpu=settings.ranks_per_gpu, library=self._environment.library)
        self._started = 0
        self._table: str | None = None
        opened = self._begin()
        self.header, self.release, self.ranks = opened.header, opened.release, opened.ranks

    def _begin(self) -> Opened:
        # with its temporary files in the folder, so that a process that is killed leaves none behind
        own_files = {"TMPDIR": str(self._environment.folder)}
        self._variables = {**self._environment.variables(), **own_files, STARTED: str(self._started)}
        self._started += 1
        self._port, self._secret = _free_port(), secrets.token_hex(32)
        try:
            self._workers.start(self._begun, self.settings.ranks if self.settings.process_per_rank else 1)
            opened: Opened = self._workers.answer("opening").result
        except BaseException:
            self._workers.end()
            self._environment.close()
            raise
        return opened

    def _begun(self, rank: int, descriptor: int) -> "subprocess.Popen[bytes]":
        with self._output(rank).open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", CHILD, str(descriptor)],
                env={**self._variables, **(self._launched(rank) if self.settings.process_per_rank else {})},
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                pass_fds=() if descriptor < 0 else (descriptor,),
                start_new_session=True,
            )
        assert process.stdin is not None
        with suppress(BrokenPipeError), process.stdin as stdin:
            stdin.write(pickle.dumps(self._options))
        return process

    def _launched(self, rank: int) -> dict[str, str]:
        """What a process is told that stands for one of torchrun's."""
        per_node = self.settings.ranks // self.settings.scenario.nodes
        address = RankAddress(
            rank, self.settings.ranks, rank % per_node, "torchrun", "127.0.0.1", self._port, self._secret
        )
        return {"RANK": str(rank), **address.handed()}  # by RANK the simulated computer knows its processes

    def _output(self, rank: int) -> Path:
        return self._environment.folder / f"output-{rank}"

    # --- Backend ---

    def describe(self) -> Header:
        """As the code for GPUs says it."""
        return self.header

    def combinations(self, point: Point) -> list[Combination]:
        """The cells that NCCL hands its tuner."""
        found: list[Combination] = self._ask("combinations", point)
        return found

    def run(self, point: Point, requested: Combination | None, repeats: int) -> Run:
        """Planted times of what was launched. MeasuringFailed where NCCL's log says that it was something else."""
        run: Run = self._ask("run", point, requested, repeats)
        launched = {combination for _, combination in self.launched}
        if run.executed is not None and not (launched and all(_is_that(run.executed, each) for each in launched)):
            names = ", ".join(map(str, sorted(launched)))
            raise MeasuringFailed(f"NCCL's log says that {run.executed} ran, and it launched {names or 'nothing'}")
        return run

    def now_s(self) -> float:
        """Seconds of a clock that only goes forwards: real ones."""
        return time.monotonic()

    def use_table(self, text: str | None) -> None:
        """The decision table from here on, in later processes as well."""
        self._table = text
        self._ask("use_table", text)

    def renew(self) -> bool:
        """Ends the processes and begins others."""
        self._workers.leave("close", self._limit_s)
        self._begin()
        if self._table is not None:
            self._ask("use_table", self._table)
        return True

    def rest(self, seconds: float) -> None:
        """Does not wait: nothing of the double's noise lasts longer than a call."""

    def close(self) -> None:
        """Ends the processes."""
        self._workers.leave("close", self._limit_s)
        self._environment.close()

    def _ask(self, name: str, *arguments: Any) -> Any:
        answer = self._workers.ask(Question(name, arguments), name)
        self.launched = answer.launched
        return answer.result

    def _last_words(self) -> str:
        lines = self._output(0).read_text(errors="replace").splitlines()[-_LAST_LINES:]
        return " | ".join(line.strip() for line in lines)


def from_header(header: Header) -> Double:
    """The double that a file was made with; BadMeasurement where the header does not say all of it."""
    try:
        settings = DoubleSettings.from_record(header.others[DOUBLE])
    except (KeyError, TypeError, ValueError) as error:
        raise BadMeasurement(f"the header does not say how to build the double again: {error!r}") from None
    return Double(settings, options_of(header))


def _is_that(said: Combination, launched: Combination) -> bool:
    """Whether a log that says this, up to 2.23 without channels, is of that launch."""
    return said in (launched, launched.plain)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
