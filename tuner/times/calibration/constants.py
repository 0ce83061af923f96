"""The constants of a release that times may depend on, and how a vector of their changes becomes tables."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tuner.release import ALGORITHM_NAMES, HARDWARE, PROTOCOL_KEYS, PROTOCOL_NAMES, Release
from tuner.release.convert import plain
from tuner.release.schema import Latencies

LARGEST_FACTOR = 8.0
LEAST_PLATEAU = 1.001  # it raises the latency; newer releases divide by what it is above 1
DIGITS = 8


@dataclass(frozen=True, slots=True)
class Constant:
    """One number: where it stands, NCCL's value, how far its logarithm may move.

    ``after`` orders constants of the same effect: the smaller is fitted, the others keep NCCL's value. That of a
    ``tree_correction`` is an exponent, 1 in NCCL: its 23 factors keep their shape, the dip becomes deeper or flatter.
    """

    path: tuple[str | int, ...]
    nccl: float
    after: int
    low: float = -math.log(LARGEST_FACTOR)
    high: float = math.log(LARGEST_FACTOR)

    def __str__(self) -> str:
        path = [str(part) for part in self.path]
        if self.path[0] == "cap_gbs":
            path[-1] = ("1_node", "2_nodes", "more_nodes")[int(self.path[-1])]
        return ".".join([*path, "exponent"] if self.path[0] == "tree_correction" else path)

    @property
    def is_cap(self) -> bool:
        """Whether it is a cap on a bandwidth, GB/s."""
        return self.path[0] == "cap_gbs"

    @property
    def is_efficiency(self) -> bool:
        """Whether it is the share of a bandwidth that is reached."""
        return self.path[0] == "efficiency"

    @property
    def is_latency(self) -> bool:
        """Whether it is a latency, us, or a factor on one."""
        return self.path[0] in ("base_latency_us", "hw_latency_us", "ring_plateau")

    def value(self, change: float) -> float:
        """After a change of its logarithm."""
        return self.nccl * math.exp(change)

    def within(self, value: float) -> float:
        """The nearest value that may be fitted."""
        return min(max(value, self.value(self.low)), self.value(self.high))


def constants(nccl: Release) -> tuple[list[Constant], list[str]]:
    """Those that can change, then the names of those that NCCL sets to 0, for which there is no factor."""
    numbers = list(_all(nccl))
    return [one for one in numbers if one.nccl > 0], [str(one) for one in numbers if one.nccl <= 0]


def _all(nccl: Release) -> Iterator[Constant]:
    yield from _latencies(("base_latency_us",), nccl.base_latency_us)
    for hardware in HARDWARE:
        yield from _latencies(("hw_latency_us", hardware), nccl.hw_latency_us[hardware])
    for algorithm in nccl.rules.bandwidth:
        yield from (Constant(("efficiency", ALGORITHM_NAMES[algorithm], key), 1.0, 0) for key in PROTOCOL_KEYS)
    for generation, factor in nccl.ring_plateau.factors.items():
        low = min(0.0, math.log(LEAST_PLATEAU / factor))
        yield Constant(("ring_plateau", generation), factor, 1, low)
    for key in PROTOCOL_KEYS:
        yield Constant(("tree_correction", key), 1.0, 1)
    for name, rows in nccl.cap_gbs.items():
        for row, values in rows.items():
            yield from (Constant(("cap_gbs", name, row, column), value, 2) for column, value in enumerate(values))


def _latencies(path: tuple[str, ...], rows: Latencies) -> Iterator[Constant]:
    for algorithm, row in rows.items():
        for protocol, value in row.items():
            yield Constant((*path, ALGORITHM_NAMES[algorithm], PROTOCOL_NAMES[protocol]), value, 0)


def tables(nccl: Release, values: Mapping[Constant, float]) -> dict[str, Any]:
    """Tables of these values, as in a file of fitted constants; those that are NCCL's are left out."""
    made: dict[str, Any] = {}
    for constant, value in values.items():
        if value == constant.nccl:
            continue
        name, *rows, last = constant.path
        table: dict[Any, Any] = made.setdefault(str(name), {})
        if name == "cap_gbs":
            kind, row = rows
            caps: Any = nccl.cap_gbs
            own = plain(caps[kind][row])
            table.setdefault(kind, {}).setdefault(row, own)[last] = value
        elif name == "tree_correction":
            table[last] = [rounded(factor**value) for factor in nccl.tree_correction[PROTOCOL_KEYS[str(last)]]]
        else:
            for row in rows:
                table = table.setdefault(row, {})
            table[last] = value
    return made


def rounded(value: float) -> float:
    """As many digits as a file of fitted constants holds."""
    return float(f"{value:.{DIGITS}g}")
