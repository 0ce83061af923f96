"""Where the ranks of a collective meet: in this process' memory, and in a file of each process that the others read."""

import pickle
from dataclasses import dataclass
from io import BufferedRandom, BufferedReader
from pathlib import Path

from tuner.measure.double.contents import Formula
from tuner.measure.records.samples import Combination

Key = tuple[str, int]  # a communicator's name, and the number of the collective in it
_LENGTH_BYTES = 8


@dataclass(frozen=True, slots=True)
class Arrival:
    """A rank whose kernel has begun: when (us of the virtual clock), what it runs, what it sends."""

    rank: int
    at_us: float
    combination: Combination
    sent: Formula


class Meeting:
    """Arrivals of all ranks. With ``processes`` others, those of each are in a file of its own in ``folder``."""

    def __init__(self, folder: Path, process: int, processes: int) -> None:
        self._here: dict[Key, dict[int, Arrival]] = {}
        self._left: dict[Key, int] = {}
        self._own: BufferedRandom | None = None
        self._others: dict[Path, BufferedReader] = {}
        if processes > 1:
            self._own = _file(folder, process).open("w+b", buffering=0)  # type: ignore[assignment]
            self._paths = [_file(folder, each) for each in range(processes) if each != process]

    def arrive(self, key: Key, arrival: Arrival) -> None:
        """Once for each rank of this process."""
        self._here.setdefault(key, {})[arrival.rank] = arrival
        if self._own is not None:
            content = pickle.dumps((key, arrival), pickle.HIGHEST_PROTOCOL)
            self._own.write(len(content).to_bytes(_LENGTH_BYTES, "little") + content)

    def all_arrived(self, key: Key, ranks: int) -> dict[int, Arrival] | None:
        """By rank; None as long as one is missing."""
        if len(self._here.get(key, {})) < ranks and self._own is not None:
            self._look()
        arrived = self._here.get(key, {})
        return arrived if len(arrived) == ranks else None

    def leave(self, key: Key, local_ranks: int) -> None:
        """Each rank of this process, when it has its result."""
        self._left[key] = self._left.get(key, 0) + 1
        if self._left[key] == local_ranks:
            del self._left[key], self._here[key]

    def _look(self) -> None:
        for path in self._paths:
            if path not in self._others and path.exists():
                self._others[path] = path.open("rb")
        for file in self._others.values():
            while (found := _next(file)) is not None:
                key, arrival = found
                self._here.setdefault(key, {})[arrival.rank] = arrival


def _file(folder: Path, process: int) -> Path:
    return folder / f"arrivals-{process}"


def _next(file: BufferedReader) -> tuple[Key, Arrival] | None:
    """The next whole arrival; None where there is none yet."""
    start = file.tell()
    length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
    content = file.read(length) if length else b""
    if not length or len(content) < length:
        file.seek(start)
        return None
    found: tuple[Key, Arrival] = pickle.loads(content)
    return found
