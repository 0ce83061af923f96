"""A log of the searches for a graph, for an explanation; a plain search writes none."""

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from tuner.graphs.trial import Trial


class Shortfall(NamedTuple):
    """Bandwidth that a link, or an adapter, had too little of, in GB/s."""

    left_gbs: float
    needed_gbs: float


class Position(NamedTuple):
    """A link or an adapter, and how many channels were laid whole when it rejected another."""

    channels: int
    number: int  # of a link, or of an adapter


@dataclass(slots=True)
class RejectionLog:
    """Links, adapters and paths that rejected a channel in one search, how often, and what was left at first."""

    links: Counter[Position] = field(default_factory=Counter)
    adapters: Counter[Position] = field(default_factory=Counter)  # with too little left for a channel to enter
    left: dict[Position, Shortfall] = field(default_factory=dict)  # of links
    types: Counter[int] = field(default_factory=Counter)  # of paths that were farther than allowed

    def of_links(self) -> Counter[int]:
        """Rejections by each link, by its number."""
        sums = Counter[int]()
        for at, times in self.links.items():
            sums[at.number] += times
        return sums


class Rejections(NamedTuple):
    """Numbers of rejections by links and adapters."""

    links: Counter[Position]
    adapters: Counter[Position]


@dataclass(frozen=True, slots=True)
class Attempt:
    """One search; ``asked`` is what it asked for, as it was then."""

    asked: Trial
    allowed: int  # GPUs that might be tried
    left: int  # of these
    found: bool  # something better
    known: bool  # it was the same as one before
    best: Trial  # after it
    rejections: RejectionLog


class Recorder:
    """Writes down one search after the other."""

    def __init__(self) -> None:
        self.attempts: list[Attempt] = []
        self._rejections = RejectionLog()
        self._trial: Trial

    def begin(self, trial: Trial) -> None:
        """Begins another search."""
        self._trial, self._rejections = trial, RejectionLog()

    def end(self, best: Trial, tries: tuple[int, int], found: bool, known: bool) -> None:
        """Ends the current search; ``tries`` are (allowed, left)."""
        self.attempts.append(Attempt(self._trial.copied(), *tries, found, known, best.copied(), self._rejections))

    def link(self, number: int, left_gbs: float, needed_gbs: float) -> None:
        """A link has too little left."""
        at = Position(self._trial.channels, number)
        self._rejections.links[at] += 1
        self._rejections.left.setdefault(at, Shortfall(left_gbs, needed_gbs))

    def adapter(self, number: int) -> None:
        """An adapter has too little left for one more channel to enter."""
        self._rejections.adapters[Position(self._trial.channels, number)] += 1

    def path(self, type_: int) -> None:
        """A path is of a type that is farther than allowed."""
        self._rejections.types[type_] += 1

    def counts(self) -> Rejections:
        """Rejections by links and adapters so far."""
        return Rejections(self._rejections.links.copy(), self._rejections.adapters.copy())

    def since(self, before: Rejections) -> Rejections:
        """Rejections since ``before``."""
        return Rejections(self._rejections.links - before.links, self._rejections.adapters - before.adapters)

    def again(self, counts: Rejections) -> None:
        """Adds earlier rejections once more."""
        self._rejections.links.update(counts.links)
        self._rejections.adapters.update(counts.adapters)
