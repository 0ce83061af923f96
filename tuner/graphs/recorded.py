"""What is written down of the searches for a graph, for an explanation; a plain search writes nothing."""

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from tuner.graphs.trial import Trial


class Short(NamedTuple):
    """Bandwidth that a link, or an adapter, had too little of."""

    left_gbs: float
    needed_gbs: float


class At(NamedTuple):
    """Who refused, while so many channels were laid whole."""

    channels: int
    number: int  # of a link, or of an adapter


@dataclass(slots=True)
class Refusals:
    """What refused during one search, and how often; and what was left when it did so first."""

    links: Counter[At] = field(default_factory=Counter)
    adapters: Counter[At] = field(default_factory=Counter)  # had too little left for a channel to enter
    left: dict[At, Short] = field(default_factory=dict)  # of links
    types: Counter[int] = field(default_factory=Counter)  # of paths that were farther than allowed

    def of_links(self) -> Counter[int]:
        """How often each link refused, by its number."""
        sums = Counter[int]()
        for at, times in self.links.items():
            sums[at.number] += times
        return sums


class Counts(NamedTuple):
    """How often links and adapters refused."""

    links: Counter[At]
    adapters: Counter[At]


@dataclass(frozen=True, slots=True)
class Attempt:
    """One search; ``asked`` is what it asked for, as it was then."""

    asked: Trial
    allowed: int  # GPUs that might be tried
    left: int  # of these
    found: bool  # something better
    known: bool  # it was the same as one before
    best: Trial  # after it
    refusals: Refusals


class Recorder:
    """Writes down one search after the other."""

    def __init__(self) -> None:
        self.attempts: list[Attempt] = []
        self._refusals = Refusals()
        self._trial: Trial

    def begin(self, trial: Trial) -> None:
        """A search begins."""
        self._trial, self._refusals = trial, Refusals()

    def end(self, best: Trial, tries: tuple[int, int], found: bool, known: bool) -> None:
        """It is over; ``tries`` are those allowed and those left."""
        self.attempts.append(Attempt(self._trial.copied(), *tries, found, known, best.copied(), self._refusals))

    def link(self, number: int, left_gbs: float, needed_gbs: float) -> None:
        """A link has too little left."""
        at = At(self._trial.channels, number)
        self._refusals.links[at] += 1
        self._refusals.left.setdefault(at, Short(left_gbs, needed_gbs))

    def adapter(self, number: int) -> None:
        """An adapter has too little left for one more channel to enter."""
        self._refusals.adapters[At(self._trial.channels, number)] += 1

    def path(self, type_: int) -> None:
        """A path is of a type that is farther than allowed."""
        self._refusals.types[type_] += 1

    def counts(self) -> Counts:
        """How often links and adapters refused so far."""
        return Counts(self._refusals.links.copy(), self._refusals.adapters.copy())

    def since(self, before: Counts) -> Counts:
        """How often they did since then."""
        return Counts(self._refusals.links - before.links, self._refusals.adapters - before.adapters)

    def again(self, counts: Counts) -> None:
        """They refuse so often once more, as they did before."""
        self._refusals.links.update(counts.links)
        self._refusals.adapters.update(counts.adapters)
