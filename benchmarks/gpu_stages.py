"""Stages of a run on borrowed GPUs: each a process of its own with a time limit, and its results copied out after it.

What a stage writes is on the disk before the next begins, a stage that hangs is ended, and a run that is started again
goes on after the stages that succeeded.
"""

import io
import json
import os
import signal
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, field, replace
from enum import StrEnum
from pathlib import Path
from typing import IO

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput
from tuner.bench.gpu.selftest import TOOK_TOO_LONG

_LET_END_S = 15.0  # after the limit, to write what is there: SIGINT, and then SIGKILL
_LONGEST = 500  # characters of what a stage said last
_STAGES = "stages.json"
ARCHIVE = "results.tar.gz"
INTERRUPTED = 130  # the exit code of a command that was interrupted and has kept what it had
NCCL_LOG = ".nccl."  # in the names of NCCL's logs, which are packed with each of their lines once


class Ended(StrEnum):
    """The end of a stage."""

    ok = "ok"
    failed = "failed"
    limit = "limit"  # it took too long
    interrupted = "interrupted"  # together with the run
    left_out = "left out"  # no time, or what it needs is not there


@dataclass(frozen=True, slots=True)
class Stage:
    """One command with these ``variables``. ``needs`` are stages that have to succeed before; its output goes to
    NAME.out and NAME.err.

    ``goes_on``: the command continues from what it wrote. To be interrupted at its limit is a success then, and it is
    called again in a run that is started again. ``answers_no``: exit code 1 is an answer. ``about_s`` is what it is
    expected to take.
    """

    name: str
    command: Sequence[str]
    limit_s: float
    needs: tuple[str, ...] = ()
    goes_on: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)
    about_s: float = 0.0
    answers_no: bool = False


@dataclass(frozen=True, slots=True)
class Done:
    """A stage that was begun and what came of it: in how many seconds, and the last line that it said."""

    name: str
    ended: Ended
    seconds: float
    said: str = ""

    @property
    def succeeded(self) -> bool:
        """Whether stages that need it may begin."""
        return self.ended is Ended.ok


class Stages:
    """Does stages in the folder ``out`` until ``seconds`` are over, and copies the results to ``copies`` after each.

    ``patience``: how many times its own limit each may take, where what stands in for GPUs is slow.
    """

    def __init__(
        self,
        out: Path,
        seconds: float,
        copies: Path | None = None,
        say: Callable[[str], None] = print,
        patience: float = 1.0,
    ) -> None:
        self._out, self._copies, self._say, self._patience = out, copies, say, patience
        self._end_s = time.monotonic() + seconds
        self._packed: dict[Path, tuple[tuple[int, int], bytes]] = {}  # NCCL's logs, by size and time of change
        try:
            for folder in filter(None, (out, copies)):
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadInput(f"{error.filename}: {error.strerror}") from error
        self.done: dict[str, Done] = self._before()

    def left_s(self) -> float:
        """Until all of it is to be over."""
        return max(0.0, self._end_s - time.monotonic())

    def succeeded(self, name: str) -> bool:
        """Whether a stage succeeded, in this run or before."""
        return name in self.done and self.done[name].succeeded

    def run(self, stage: Stage) -> bool:
        """Does a stage unless it was done before; whether it succeeded."""
        if self.succeeded(stage.name) and not stage.goes_on:
            self._say(f"== {stage.name}: done before")
            return True
        limit_s = min(self._patience * stage.limit_s, self.left_s() - _LET_END_S)
        missing = [name for name in stage.needs if not self.succeeded(name)]
        if missing or limit_s <= 0:
            why = f"needs {', '.join(missing)}" if missing else "no time left"
            done = Done(stage.name, Ended.left_out, 0.0, why)
        else:
            self._say(f"== {stage.name}, at most {limit_s:.0f} s")
            start_s = time.monotonic()
            try:
                done = self._ran(replace(stage, limit_s=limit_s))
            except KeyboardInterrupt:
                seconds = round(time.monotonic() - start_s, 1)
                self._note(Done(stage.name, Ended.interrupted, seconds, "the run was interrupted"))
                raise
        self._note(done)
        return done.succeeded

    def plan(self, stages: Iterable[Stage]) -> None:
        """Says how long these will take that are not done yet, before the first begins."""
        todo = [stage for stage in stages if stage.goes_on or not self.succeeded(stage.name)]
        about_s, most_s = sum(stage.about_s for stage in todo), sum(stage.limit_s for stage in todo)
        self._say(
            f"== {len(todo)} stages, about {about_s:.0f} s, at most {most_s:.0f} s; there are {self.left_s():.0f} s, "
            "and what comes last is left out where they are over"
        )

    def _note(self, done: Done) -> None:
        self._say(f"{done.name}: {done.ended}, {done.seconds:.1f} s: {done.said}")
        self.done[done.name] = done
        self._write()

    def _ran(self, stage: Stage) -> Done:
        start_s = time.monotonic()
        out, err = (self._out / f"{stage.name}.{end}" for end in ("out", "err"))
        with out.open("wb") as output, err.open("wb") as errors:
            try:
                code, at_limit = _code(stage, output, errors)
            except OSError as error:
                return Done(stage.name, Ended.failed, 0.0, str(error))
        seconds = round(time.monotonic() - start_s, 1)
        kept = code == 0 or (code == 1 and stage.answers_no) or (at_limit and stage.goes_on and code == INTERRUPTED)
        at_limit |= code == TOOK_TOO_LONG
        # What hangs has been told where on stderr, and what it was about to do stands last on stdout.
        first, second = (out, err) if kept or at_limit else (err, out)
        said = _last_line(first) or _last_line(second)
        if code < 0 and not at_limit:
            said = f"killed by {signal.Signals(-code).name}: {said}"
        return Done(stage.name, Ended.ok if kept else Ended.limit if at_limit else Ended.failed, seconds, said)

    def _before(self) -> dict[str, Done]:
        path = self._out / _STAGES
        if not path.is_file():
            return {}
        try:
            records = json.loads(path.read_text())
            return {each["name"]: Done(**{**each, "ended": Ended(each["ended"])}) for each in records}
        except (ValueError, TypeError, KeyError) as error:
            raise BadInput(f"{path}: not the stages of an earlier run: {error!r}; valid: another folder") from None

    def _write(self) -> None:
        """Writes and copies what is there; that it cannot is said, and ends nothing that is still to be measured."""
        text = json.dumps([asdict(done) for done in self.done.values()], indent=1) + "\n"
        path = self._out / _STAGES
        growing = path.with_name(f"{_STAGES}.part")
        try:
            growing.write_text(text)
            growing.replace(path)
        except OSError as error:
            self._say(f"{path}: {error.strerror}; a run that is started again does this stage again")
        if self._copies is not None:
            archive = self._copies / ARCHIVE
            try:
                self._pack(archive)
            except OSError as error:
                self._say(f"{archive}: {error.strerror}; it is as it was after the last stage that could be packed")

    def _pack(self, archive: Path) -> None:
        """All files of the folder as one archive, whole or not at all; of NCCL's logs each line once."""
        growing = archive.with_name(f"{archive.name}.part")
        try:
            with tarfile.open(growing, "w:gz", compresslevel=3) as packed:
                for path in sorted(path for path in self._out.rglob("*") if path.is_file()):
                    name = str(path.relative_to(self._out))
                    if NCCL_LOG not in path.name:
                        packed.add(path, name)
                        continue
                    content = self._without_repeats(path)
                    info = packed.gettarinfo(path, name)
                    info.size = len(content)
                    packed.addfile(info, io.BytesIO(content))
            growing.replace(archive)
        except OSError:
            growing.unlink(missing_ok=True)
            raise

    def _without_repeats(self, path: Path) -> bytes:
        """A log with the first of each of its lines: repeated calls say the same, and 'log --check' takes it once."""
        status = path.stat()
        key = (status.st_size, status.st_mtime_ns)
        if path not in self._packed or self._packed[path][0] != key:
            lines = path.read_text(errors="replace").splitlines(keepends=True)
            self._packed[path] = key, "".join(dict.fromkeys(lines)).encode()
        return self._packed[path][1]


def _code(stage: Stage, output: IO[bytes], errors: IO[bytes]) -> tuple[int, bool]:
    """The exit code of the command, and whether it was ended at its limit."""
    process = subprocess.Popen(
        list(stage.command),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=errors,
        start_new_session=True,
        env={**os.environ, **stage.variables},
    )
    at_limit = False
    try:
        process.wait(stage.limit_s)
    except subprocess.TimeoutExpired:
        at_limit = True
    finally:
        for number in (signal.SIGINT, signal.SIGKILL):
            if process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_LET_END_S)
    return process.wait(), at_limit


def _last_line(path: Path) -> str:
    lines = path.read_text(errors="replace").split("\n")
    return next((line.strip()[:_LONGEST] for line in reversed(lines) if line.strip()), "")
