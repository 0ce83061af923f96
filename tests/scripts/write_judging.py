"""Writes tables/judging.toml, the limits that times are held against, as the healthy public runs teach them.

A healthy run is held against the runs of all other sites, once by each nearness, and what it takes over their typical
time is noted, in logarithms over how unsure so few sites leave that time. Of a site counts what 9 of 10 of its sizes
stay within; of sites, what most further ones stay within, so that no single site decides once there are six.
``benchmarks/accept.py`` learns the same without the site that it judges.

Run from the repository's root: python -m tests.scripts.write_judging
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TypeAlias

import numpy as np

from tuner.base.dataclass import dataclass
from tuner.times.acceptance import limits, public_runs
from tuner.times.acceptance.limits import FORCED, MANY_NODES, ClassNearness, TimeLimits
from tuner.times.acceptance.public_runs import EXCHANGES, ComparedCurve, Network, PublicCurve
from tuner.times.timemodel.features import Array

FROM_BYTES = (0, 1 << 16, 1 << 20, 1 << 24, 1 << 28, 1 << 30)
WITHIN = 0.9  # of a site's sizes
SITES = 0.85  # of further sites, that are no slower; of fast ones the fastest of all counts
# What a cluster differs by from day to day, which one run of each does not show; on many nodes by 30 % (the rows of
# tables/measured/b200-8x-64n__*), and in both directions, for too few sites show their fastest day.
DAYS, DAYS_OF_MANY = 1.05, 1.3
ALONE = 1.5  # times the slowest healthy size, that a size fails from by itself;
# Between nodes below 1 GiB eight to twelve sites show how slow a healthy run can be, and one of these, whose large
# calls are as fast as any, takes 2 to 10 times as long there (h100-8x-2n__unknown__mghpcc): what three in a row and one
# size alone may take is not learnt there, but stands here.
ROW_BETWEEN = {1 << 20: 10.0, 1 << 24: 10.0, 1 << 28: 2.5}
ALONE_BETWEEN = {1 << 20: 20.0, 1 << 24: 20.0, 1 << 28: 5.0}
MOST_ALONE, ALONE_BYTES = 20.0, 1 << 20  # at most, so that a row 60 times slower always does; below none does
_WIDE = math.log(FORCED)
LEAST_SITES = 3  # that say something; else the next nearness does


@dataclass(frozen=True, slots=True)
class Seen:
    """A healthy size over the typical one of other sites, a natural logarithm; ``sites``: how many these are."""

    site: str
    place: str
    nearness: ClassNearness
    bin: int
    off: float
    sites: int
    forced: bool

    @property
    def slower(self) -> float:
        """The same, without what a forced algorithm may take."""
        return self.off - (_WIDE if self.forced else 0.0)


def compared(curve: PublicCurve) -> ComparedCurve:
    """A public run as the one that is judged."""
    shape = curve.nodes, curve.gpus_per_node
    sizes, model = np.array(curve.bytes, np.uint64), np.array(curve.model_us)
    return ComparedCurve(curve.machine, *shape, curve.collective, curve.forced, sizes, model)


@cache
def _near(curve: PublicCurve, nearness: ClassNearness) -> tuple[PublicCurve, ...]:
    """The healthy runs of other sites that are as near."""
    others = (each for each in public_runs.shipped() if each.site != curve.site)
    return tuple(public_runs.matching(compared(curve), others, nearness))


@cache
def _off(curve: PublicCurve, nearness: ClassNearness, without: str) -> list[tuple[float, int]]:
    """Its times over the typical ones, natural logarithms, and of how many sites; NaN where too few runs decide."""
    those = [each for each in _near(curve, nearness) if each.site != without]
    sizes = np.array(curve.bytes, np.uint64)
    same = nearness is ClassNearness.same_class
    typical, _, sites = public_runs.typical_of(sizes, those, times=same)
    typical = typical if same else typical + np.log(np.array(curve.model_us))
    return list(zip((np.log(np.array(curve.time_us)) - typical).tolist(), sites.tolist(), strict=True))


def place_of(curve: PublicCurve) -> str:
    """Where a limit holds: in a node, between nodes, or on many of these."""
    if curve.nodes == 1:
        return "in_a_node"
    return "between_nodes" if curve.nodes < MANY_NODES else "many_nodes"


def seen(without: str = "") -> list[Seen]:
    """What healthy runs take over the runs of other sites, nothing of the site ``without``."""
    found = []
    for curve in public_runs.shipped():
        unfit = curve.site == without or curve.collective in EXCHANGES or curve.machine.network is Network.sockets
        if not curve.is_healthy or unfit:
            continue
        for nearness in ClassNearness:
            left = without if any(each.site == without for each in _near(curve, nearness)) else ""
            for nbytes, (off, sites) in zip(curve.bytes, _off(curve, nearness, left), strict=True):
                if not math.isnan(off):
                    at = int(np.searchsorted(FROM_BYTES, nbytes, side="right")) - 1
                    found.append(Seen(curve.site, place_of(curve), nearness, at, off, sites, bool(curve.forced)))
    return found


_Cells: TypeAlias = defaultdict[tuple[str, ClassNearness, int], defaultdict[str, list[Seen]]]


def learnt(those: Sequence[Seen]) -> TimeLimits:
    """The limits by place, nearness and size."""
    of_cells: _Cells = defaultdict(lambda: defaultdict(list))
    for each in those:
        # Runs on many nodes are too few to tell a nearness from another.
        nearness = ClassNearness.same_class if each.place == "many_nodes" else each.nearness
        of_cells[each.place, nearness, each.bin][each.site].append(each)
    rows: dict[str, dict[str, dict[str, list[float]]]] = {}
    for place in ("many_nodes", "between_nodes", "in_a_node"):
        rows[place] = {}
        before: Mapping[str, Sequence[float]] = {}
        for nearness in ClassNearness:
            cells = [of_cells[place, nearness, at] for at in range(len(FROM_BYTES))]
            before = rows[place][nearness.name] = _of_nearness(cells, before, place)
    forced = [[each.off for each in those if each.forced and each.bin == at] for at in range(len(FROM_BYTES))]
    fastest = np.minimum.accumulate([math.exp(min(each, default=0.0)) for each in forced[::-1]])[::-1]
    return TimeLimits(FROM_BYTES, rows, [math.floor(100 * each) / 100 for each in fastest.tolist()])


def _of_nearness(
    cells: Sequence[Mapping[str, Sequence[Seen]]], before: Mapping[str, Sequence[float]], place: str
) -> dict[str, list[float]]:
    """TimeLimits by size. Those of smaller calls, and of runs that are further away, are no tighter."""
    low, high, far = 1.0, 1.0, 1.0
    many, between = place == "many_nodes", place != "in_a_node"
    slower, faster = (DAYS_OF_MANY, DAYS_OF_MANY) if many else (DAYS, 1.0)
    rows: dict[str, list[float]] = {"low": [], "high": [], "row": [], "far": []}
    for at, first in reversed(list(enumerate(FROM_BYTES))):
        if before:
            low, high, far = (
                fold(own, before[name][at])
                for name, own, fold in (("low", low, min), ("high", high, max), ("far", far, max))
            )
        sites = cells[at]
        if len(sites) >= LEAST_SITES:
            offs = [[each.slower for each in site] for site in sites.values()]
            over_many = [[each.slower / limits.unsure(each.sites) for each in site] for site in sites.values()]
            slow = _further([np.quantile(each, WITHIN) for each in over_many])
            high = max(high, slower * math.exp(slow))
            far = max(far, ALONE * math.exp(max(map(max, offs))))
        chosen = [own for site in sites.values() if (own := [each.off for each in site if many or not each.forced])]
        if len(chosen) >= LEAST_SITES:
            low = min(low, math.exp(min(np.quantile(each, 1 - WITHIN) for each in chosen)) / faster)
        far = max(far, ALONE * high, ALONE_BETWEEN.get(first, 1.0) if between else 1.0)
        far = math.inf if first < ALONE_BYTES else min(far, MOST_ALONE)
        rows["low"].append(math.floor(100 * low) / 100)
        together = max(high, ROW_BETWEEN.get(first, 1.0)) if between else high
        rows["high"].append(round(high, 2))
        rows["row"].append(round(far if many or (between and first < ALONE_BYTES) else together, 2))
        rows["far"].append(round(far, 2))
    return {name: each[::-1] for name, each in rows.items()}


def _further(of_sites: Iterable[float]) -> float:
    """What most further sites stay below; the worst site where there are too few to say."""
    ordered: Array = np.sort(np.array(list(of_sites), np.float64))
    return float(ordered[min(int(SITES * (len(ordered) + 1)), len(ordered)) - 1])


HEAD = """# Limits on times over the typical time of public runs: factors by the size of a call and by how near the runs
# are (tuner/times/acceptance/limits.py). Above "high" a size is slow, and fails as one of the two largest; above "row"
# it fails with two others in a row, above "far" by itself. "low" is what the fastest healthy runs take: a size that at
# twice its speed would be faster than these is not passed for healthy, but left open, so that no run at half of its
# speed passes. "high" is over the typical time of many sites; over that of few it is further away.
# Learnt from the healthy runs of tables/measured, each held against the runs of other sites, and written by
# tests/scripts/write_judging.py. From 64 nodes on the limits are the wider ones of [many_nodes] and of the nearness.
"""


def text_of(made: TimeLimits) -> str:
    """The table as it is kept."""
    parts = [HEAD, f"from_bytes = {list(made.from_bytes)}\n"]
    parts.append(f"forced_low = {list(made.forced_low)} # of algorithms that were forced, wherever\n")
    for place, nearnesses in made.rows.items():
        parts.append(f"\n[{place}]\n")
        for name, rows in nearnesses.items():
            inside = ", ".join(f"{key} = {list(rows[key])}" for key in ("low", "high", "row", "far"))
            parts.append(f"{name:15} = {{ {inside} }}\n")
    return "".join(parts)


def main() -> None:
    """Writes the file."""
    Path("tables", limits.FILE).write_text(text_of(learnt(seen())), encoding="utf-8")


if __name__ == "__main__":
    main()
