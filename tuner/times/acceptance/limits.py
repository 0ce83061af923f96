"""How much longer than public runs a call may take, by size and by the runs' similarity (``tables/judging.toml``)."""

import math
from collections.abc import Mapping, Sequence
from enum import IntEnum
from functools import cache
from typing import Any

from tuner.base import tables
from tuner.base.dataclass import dataclass

FILE = "judging.toml"
MANY_NODES = 64
FORCED = 1.2  # factor by which times differ more if an algorithm was forced for which NCCL may not be tuned


class ClassNearness(IntEnum):
    """The degrees of similarity between public runs and the run that is judged, the most similar first."""

    same_class = 0  # times are compared; for all others, times over what the links allow
    same_machines = 1  # another number of nodes in the same band, or another collective
    same_generation = 2  # also other adapters
    any_nodes = 3  # any number of nodes from two on
    any_machine = 4  # other GPUs, on the same family of networks
    any_network = 5


@dataclass(frozen=True, slots=True)
class TimeLimit:
    """Limits as factors over the typical time of a size. Up to ``sure`` a size is healthy, above ``high`` it is slow.
    Three of four successive sizes above ``row`` fail, and so does a single size above ``far``.
    """

    sure: float
    high: float
    row: float
    far: float


# For sends and receives of any size: in a node, and between nodes.
EXCHANGE = TimeLimit(sure=1.3, high=2.5, row=2.5, far=20.0)
EXCHANGE_BETWEEN = TimeLimit(sure=1.3, high=2.5, row=20.0, far=20.0)


def unsure(sites: int) -> float:
    """The factor by which a limit, as a logarithm, is widened because the typical time comes from only ``sites`` sites.

    The typical time of a single site is as uncertain as the time that is compared with it.
    """
    return math.sqrt(1 + 1 / sites)


@dataclass(frozen=True, slots=True, eq=False)
class TimeLimits:
    """Limits learnt from public runs, for typical times of many sites. ``rows`` has the lists ``low``, ``high``,
    ``row`` and ``far`` by place (``between_nodes``, ``in_a_node``, ``many_nodes``) and nearness. Each list has one
    element per element of ``from_bytes``, for sizes (nBytes) from there on. ``forced_low``: ``low`` for forced choices.
    """

    from_bytes: Sequence[int]
    rows: Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]]
    forced_low: Sequence[float]

    def limit(self, nbytes: int, nearness: ClassNearness, nodes: int, sites: int, *, forced: bool = False) -> TimeLimit:
        """The limit for a size (NCCL's nBytes) if the typical time is from ``sites`` sites; wider if the algorithm or
        protocol was forced.
        """
        at = max(index for index, first in enumerate(self.from_bytes) if nbytes >= first)
        row = self.rows["between_nodes" if nodes > 1 else "in_a_node"][nearness.name]
        low, high, together, far = (row[name][at] for name in ("low", "high", "row", "far"))
        if nodes >= MANY_NODES:
            many = self.rows["many_nodes"][nearness.name]
            low, high = min(low, many["low"][at]), max(high, many["high"][at])
            together, far = max(together, many["row"][at]), max(far, many["far"][at])
        high **= unsure(sites)
        together, far = max(together, high), max(far, high)
        if forced:
            low, high, together = min(low, self.forced_low[at]), high * FORCED, together * FORCED
        return TimeLimit(min(high, 2 * low), high, together, far)


@cache
def shipped() -> TimeLimits:
    """The limits that ship."""
    table: dict[str, Any] = dict(tables.toml(tables.folder() / FILE))
    from_bytes, forced_low = table.pop("from_bytes"), table.pop("forced_low")
    return TimeLimits(from_bytes, table, forced_low)
