"""Sets of sizes in bytes: the multiples of a number within given ranges, both ends included."""

from collections.abc import Iterator
from math import lcm

from tuner.base.dataclass import dataclass
from tuner.base.sizes import LARGEST_BYTES


@dataclass(frozen=True, slots=True)
class Sizes:
    """A set of sizes in bytes: those within one of ``ranges`` (in ascending order) that ``multiple`` divides.

    Sizes in one of the sets ``but_not`` do not belong to it.
    """

    ranges: tuple[tuple[int, int], ...] = ((1, LARGEST_BYTES),)
    multiple: int = 1
    but_not: tuple["Sizes", ...] = ()

    def __bool__(self) -> bool:
        """Whether the set has a range at all; all of its sizes may still be in ``but_not``."""
        return bool(self.ranges)

    def __contains__(self, nbytes: int) -> bool:
        return (
            nbytes % self.multiple == 0
            and any(low <= nbytes <= high for low, high in self.ranges)
            and not any(nbytes in each for each in self.but_not)
        )

    def __and__(self, other: "Sizes") -> "Sizes":
        both = (
            (max(low, other_low), min(high, other_high))
            for low, high in self.ranges
            for other_low, other_high in other.ranges
        )
        ranges = tuple(sorted(pair for pair in both if pair[0] <= pair[1]))
        return Sizes(ranges, lcm(self.multiple, other.multiple), (*self.but_not, *other.but_not))

    def borders(self) -> Iterator[int]:
        """For each range, its first size and the first size after it; also those of ``but_not``."""
        for low, high in self.ranges:
            yield from (low, high + 1)
        for each in self.but_not:
            yield from each.borders()

    def multiples(self) -> Iterator[int]:
        """The numbers whose multiples the set distinguishes, including those of ``but_not``."""
        yield self.multiple
        for each in self.but_not:
            yield from each.multiples()


ALL = Sizes()
NONE = Sizes(())


def at_most(nbytes: int) -> Sizes:
    """All sizes up to and including ``nbytes``; no size for a number below 1."""
    return Sizes(((1, nbytes),)) if nbytes >= 1 else NONE


def multiples(number: int) -> Sizes:
    """All sizes that ``number`` divides."""
    return Sizes(multiple=number)


def outside(low: int, high: int) -> Sizes:
    """All sizes up to ``low`` and all sizes from ``high`` on; ``low`` and ``high`` themselves are included."""
    return Sizes(((1, low), (high, LARGEST_BYTES)))
