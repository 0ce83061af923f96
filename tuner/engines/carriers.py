"""Who carries an AllReduce: an engine's first implementation whose conditions all hold for the size."""

from functools import cached_property

import numpy as np

from tuner.base.dataclass import dataclass
from tuner.base.findings import Finding, Severity
from tuner.engines.lookup import NumberTable
from tuner.engines.releases import EngineRelease, Implementation
from tuner.engines.rules import Condition, condition, sizes_of, unsure_sizes
from tuner.engines.situation import Situation
from tuner.engines.sizes import NONE, Sizes

# Conditions that turn an implementation away whatever else is not known
SWITCHES = ("engines.switch", "engines.switch-is-set", "engines.off")


@dataclass(frozen=True, slots=True)
class CarriedSizes:
    """Sizes from ``from_bytes`` to ``to_bytes``, both included, that the same implementation carries: its name and a
    title.
    """

    from_bytes: int
    to_bytes: int
    carrier: str
    title: str


class Carriers:
    """The implementations of an engine's release in a situation. The first request for sizes raises the rules' errors,
    all of them BadInput."""

    def __init__(self, situation: Situation, release: EngineRelease) -> None:
        self.situation = situation
        self.release = release

    @cached_property
    def sizes(self) -> tuple[Sizes, ...]:
        """The sizes that each implementation would take if no other came before it."""
        return tuple(sizes_of(self.situation, self.release, each.name) for each in self.release.implementations)

    def at(self, nbytes: int) -> Implementation:
        """The implementation that carries a size in bytes."""
        return self.release.implementations[self._number(nbytes)]

    def _number(self, nbytes: int) -> int:
        """Index of the implementation that carries a size; NCCL is the last one, and carries what no other does."""
        return next((number for number, each in enumerate(self.sizes[:-1]) if nbytes in each), len(self.sizes) - 1)

    @cached_property
    def numbers(self) -> NumberTable:
        """A table that gives, for each size, the index in ``release.implementations`` of the one that carries it."""
        borders = {border for each in self.sizes for border in each.borders()}
        return NumberTable(self._number, borders, {number for each in self.sizes for number in each.multiples()})

    def turned_away(self, nbytes: int) -> tuple[tuple[Implementation, Finding], ...]:
        """Each implementation that comes before the carrier of this size, with the first condition that turned it
        away."""
        away = []
        for each in self.release.implementations:
            failed = self.failed_condition(each, nbytes)
            if failed is None:
                break
            facts = {**failed.facts, "bytes": nbytes}
            away.append((each, Finding(f"engines.{failed.rule}", Severity.NOTE, facts)))
        return tuple(away)

    def compared(self, nbytes: int) -> bool:
        """Whether everything that decides who carries a size was compared with the engine's own functions.

        An implementation that the engine tries before the carrier, and that was not compared, does not matter if a
        switch turns it off. If the engine decides at its start, by measuring or allocating, whether an implementation
        takes the size, this counts as not compared.
        """
        away = self.turned_away(nbytes)
        if any(nbytes in sizes for several in self._unsure[: len(away) + 1] for sizes in several):
            return False
        return self.at(nbytes).compared and all(each.compared or because.code in SWITCHES for each, because in away)

    @cached_property
    def _unsure(self) -> tuple[tuple[Sizes, ...], ...]:
        return tuple(unsure_sizes(self.situation, self.release, each.name) for each in self.release.implementations)

    def failed_condition(self, implementation: Implementation, nbytes: int) -> Condition | None:
        """The first condition of an implementation that does not hold for a size; None if all do."""
        if implementation.name in self.situation.without:
            return Condition("off", NONE, {})
        for given in implementation.conditions:
            asked = condition(self.situation, self.release, given)
            if nbytes not in asked.sizes:
                return asked
        return None

    def ranges(self, low_bytes: int, high_bytes: int, step: int = 1) -> list[CarriedSizes]:
        """The ranges of sizes that one implementation carries, for multiples of ``step`` bytes from ``low_bytes`` to
        ``high_bytes``.

        The ranges only hold for multiples of the bytes that implementations require. If a kernel needs multiples of 16
        bytes, and ``step`` is the size of an element, the ranges say who carries multiples of 16 bytes; they leave out
        the other sizes, which the next implementation carries.
        """
        step = int(np.lcm.reduce([step, *(each.multiple for each in self.sizes if each)]))
        first, last = -(-low_bytes // step) * step, high_bytes // step * step
        starts = {first}
        for each in self.sizes:
            starts |= {-(-border // step) * step for border in each.borders()}
        ordered = sorted(start for start in starts if first <= start <= last)
        found: list[CarriedSizes] = []
        for index, start in enumerate(ordered):
            end = ordered[index + 1] - step if index + 1 < len(ordered) else last
            carrier = self.at(start)
            if found and found[-1].carrier == carrier.name:
                start = found.pop().from_bytes
            found.append(CarriedSizes(start, end, carrier.name, carrier.title))
        return found
