"""Kinks of measured curves: whether they are where NCCL's pick changes, for docs/calibrated-times.md."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, pairwise

import numpy as np

from tuner.base.dataclass import dataclass
from tuner.times.regret.arms import Arm, MeasuredCall

FEWEST_SIZES = 8
ANY = "any"


@dataclass(frozen=True, slots=True)
class Kinks:
    """Of curves in which the pick changes from ``before`` to ``after``: in how many the largest kink is there.

    A kink is a second difference of the time's logarithm over doubled sizes; it is at a change where it is centred on
    the last size before it or on the first after it. ``by_chance`` is in how many it would be there by chance. Where
    ``before`` and ``after`` are ``ANY``, it is at one of all changes of its curve.
    """

    before: str
    after: str
    curves: int
    largest_there: int
    by_chance: float


def kinks(calls: Iterable[MeasuredCall]) -> list[Kinks]:
    """Of curves of NCCL's own choices out of place, over sizes that double: of any change, then the commonest first."""
    changes: dict[tuple[str, str], list[tuple[bool, float]]] = defaultdict(list)
    for curve in _forced_curves(calls):
        picks = [one.pick.plain for one, _ in curve]
        bends = np.abs(np.diff([arm.log_us for _, arm in curve], 2))
        largest = int(np.argmax(bends)) + 1  # the size that it is centred on
        every: set[int] = set()
        for index, (before, after) in enumerate(pairwise(picks)):
            if before != after:
                centres = {index, index + 1} & set(range(1, len(curve) - 1))
                every |= centres
                changes[str(before), str(after)].append((largest in centres, len(centres) / len(bends)))
        if every:
            changes[ANY, ANY].append((largest in every, len(every) / len(bends)))
    made = [
        Kinks(*names, len(each), sum(there for there, _ in each), sum(chance for _, chance in each))
        for names, each in changes.items()
    ]
    return sorted(made, key=_order)


def together(several: Iterable[Kinks]) -> list[Kinks]:
    """Of several sets of curves as one."""
    by_name: dict[tuple[str, str], list[Kinks]] = defaultdict(list)
    for one in several:
        by_name[one.before, one.after].append(one)
    made = [
        Kinks(
            *names,
            sum(one.curves for one in its),
            sum(one.largest_there for one in its),
            sum(one.by_chance for one in its),
        )
        for names, its in by_name.items()
    ]
    return sorted(made, key=_order)


def _order(one: Kinks) -> tuple[bool, int, str, str]:
    return one.before != ANY, -one.curves, one.before, one.after


def _forced_curves(calls: Iterable[MeasuredCall]) -> Iterator[Sequence[tuple[MeasuredCall, Arm]]]:
    """The longest stretches of sizes that double."""
    own = sorted(
        ((one, one.default) for one in calls if one.default is not None and not one.call.in_place),
        key=lambda pair: (str(pair[0].call.curve), pair[0].call.bytes),
    )
    for _, of_curve in groupby(own, key=lambda pair: str(pair[0].call.curve)):
        stretch: list[tuple[MeasuredCall, Arm]] = []
        for pair in of_curve:
            if stretch and pair[0].call.bytes != 2 * stretch[-1][0].call.bytes:
                if len(stretch) >= FEWEST_SIZES:
                    yield stretch
                stretch = []
            stretch.append(pair)
        if len(stretch) >= FEWEST_SIZES:
            yield stretch
