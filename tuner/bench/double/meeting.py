"""Where the ranks of a collective meet: in this process' memory, and in a file of each process that the others read."""

import hashlib
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from tuner.bench.double.contents import Formula
from tuner.times.records.samples import Combination

Key = tuple[str, int]  # a communicator's name, and the number of the collective in it
_LENGTH_BYTES = 8


@dataclass(frozen=True, slots=True)
class Arrival:
    """A rank whose kernel has begun: on which GPU of all, when (us of the virtual clock), what it runs and sends."""

    rank: int
    gpu: int
    at_us: float
    combination: Combination
    sent: Formula


class Meeting:
    """Arrivals of all ranks. With ``processes`` others, those of each are in a file of its own in ``folder``."""

    def __init__(self, folder: Path, process: int, processes: int) -> None:
        self._folder, self._process, self._processes = folder, process, processes
        self._here: dict[Key, dict[int, Arrival]] = {}
        self._left: dict[Key, int] = {}
        self._own: dict[str, BinaryIO] = {}  # by communicator, as the others
        self._others: dict[tuple[str, int], BinaryIO] = {}

    def arrive(self, key: Key, arrival: Arrival) -> None:
        """Once for each rank of this process."""
        self._here.setdefault(key, {})[arrival.rank] = arrival
        if self._processes > 1:
            content = pickle.dumps((key, arrival), pickle.HIGHEST_PROTOCOL)
            own = self._own.get(key[0]) or self._own.setdefault(key[0], self._file(key[0], self._process).open("wb"))
            own.write(len(content).to_bytes(_LENGTH_BYTES, "little") + content)
            own.flush()

    def all_arrived(self, key: Key, ranks: int) -> dict[int, Arrival] | None:
        """By rank; None as long as one is missing."""
        if len(self._here.get(key, {})) < ranks and self._processes > 1:
            self._look(key[0])
        arrived = self._here.get(key, {})
        return arrived if len(arrived) == ranks else None

    def leave(self, key: Key, local_ranks: int) -> None:
        """Each rank of this process, when it has its result."""
        self._left[key] = self._left.get(key, 0) + 1
        if self._left[key] == local_ranks:
            del self._left[key], self._here[key]

    def _look(self, communicator: str) -> None:
        for process in range(self._processes):
            other, path = (communicator, process), self._file(communicator, process)
            if process != self._process and other not in self._others and path.exists():
                self._others[other] = path.open("rb")
            while other in self._others and (found := _next(self._others[other])) is not None:
                key, arrival = found
                self._here.setdefault(key, {})[arrival.rank] = arrival

    def _file(self, communicator: str, process: int) -> Path:
        return self._folder / f"arrivals-{hashlib.sha256(communicator.encode()).hexdigest()[:16]}-{process}"


def _next(file: BinaryIO) -> tuple[Key, Arrival] | None:
    """The next whole arrival; None where there is none yet."""
    start = file.tell()
    head = file.read(_LENGTH_BYTES)
    length = int.from_bytes(head, "little")
    content = file.read(length) if len(head) == _LENGTH_BYTES else b""
    if not content or len(content) < length:
        file.seek(start)  # written in part: a page may be there before the next one is
        return None
    found: tuple[Key, Arrival] = pickle.loads(content)
    return found
