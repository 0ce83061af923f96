"""Result of an exact comparison: how many values were compared, and every difference with both values."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import field

from tuner.base.dataclass import dataclass
from tuner.base.records import json_form


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One difference, with both values."""

    what: str
    where: str
    emulator: object
    libnccl: object


@dataclass(frozen=True, slots=True)
class MatchReport:
    """How many numbers and choices were compared and how many agreed, per kind, and the differences."""

    title: str = field(metadata=json_form("communicator"))
    compared: Mapping[str, int]
    matched: Mapping[str, int]
    mismatches: tuple[Mismatch, ...]


class Comparing:
    """An exact comparison in progress: counts comparisons, and keeps the differences."""

    def __init__(self) -> None:
        self._compared = Counter[str]()
        self._mismatches: list[Mismatch] = []

    def compare(self, what: str, where: str, emulator: object, libnccl: object) -> None:
        """Counts one comparison, and keeps both values if they differ."""
        self._compared[what] += 1
        if emulator != libnccl:
            self._mismatches.append(Mismatch(what, where, emulator, libnccl))

    def add(self, what: str, number: int, mismatches: Sequence[Mismatch]) -> None:
        """Counts ``number`` comparisons at once, of which ``mismatches`` differ."""
        self._compared[what] += number
        self._mismatches += mismatches

    def report(self, title: str) -> MatchReport:
        """The report on the comparison so far."""
        differing = Counter(each.what for each in self._mismatches)
        matched = {what: number - differing[what] for what, number in self._compared.items()}
        return MatchReport(title, dict(self._compared), matched, tuple(self._mismatches))
