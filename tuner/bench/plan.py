"""What to measure: sizes that a collective can have, and what is requested at each of them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from tuner.base.errors import BadInput, one_of
from tuner.base.names import Algorithm, Collective, DataType, Op, Protocol
from tuner.bench.backend import Backend
from tuner.times.records.samples import Combination, Point, Task

SIZES = tuple(1 << power for power in range(3, 31))


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which combinations; no names are all of them. ``channels`` come besides NCCL's own number.

    ``own_alone``: none, only NCCL's own choice.
    """

    algorithms: Sequence[Algorithm] = ()
    protocols: Sequence[Protocol] = ()
    channels: Sequence[int] = ()
    own_alone: bool = False

    def of(self, offered: Iterable[Combination]) -> list[Combination]:
        """Those of the ``offered`` combinations that are wanted, with all wanted numbers of channels."""
        chosen = [
            combination
            for combination in offered
            if (not self.algorithms or combination.algorithm in self.algorithms)
            and (not self.protocols or combination.protocol in self.protocols)
        ]
        return [replace(each, channels=channels) for each in chosen for channels in (0, *self.channels)]


@dataclass(frozen=True, slots=True)
class How:
    """How each size is called: of which type and operation, out of place, in place or both, in a CUDA graph or not."""

    dtype: DataType = DataType.float32
    op: Op = Op.sum
    placements: tuple[bool, ...] = (False,)  # in place
    graph: bool = False


PLAIN_CALLS = How()


def points(
    collectives: Sequence[Collective],
    sizes: Sequence[int] | None,
    ranks: int,
    how: How = PLAIN_CALLS,
) -> list[Point]:
    """The calls of these sizes (nBytes) on ``ranks`` ranks.

    A size that a collective cannot have (whole elements, as many for each rank) is left out for it, BadInput where none
    can have it. Without sizes: powers of two from 8 B to 1 GiB, rounded down to whole elements.
    """
    units = {collective: Point(collective, 0, how.dtype, how.op).unit_bytes(ranks) for collective in collectives}
    for size in sizes or ():
        if all(size % unit for unit in units.values()):
            multiples = one_of(f"multiples of {unit} for {each.name}" for each, unit in units.items())
            raise BadInput(f"{size} bytes: no whole number of {how.dtype.name} for each of {ranks} ranks; {multiples}")
    return [
        Point(collective, size, how.dtype, how.op, in_place, how.graph)
        for collective, unit in units.items()
        for size in ([each for each in sizes if each % unit == 0] if sizes else _rounded(unit))
        for in_place in how.placements
    ]


def tasks(backend: Backend, points: Iterable[Point], wanted: Wanted) -> list[Task]:
    """NCCL's own choice and the wanted combinations at each point. BadInput where there is none at any point."""
    wanted_tasks: list[Task] = []
    offered: set[str] = set()
    for point in points:
        here = backend.combinations(point)
        offered.update(str(combination) for combination in here)
        chosen = [] if wanted.own_alone else wanted.of(here)
        if chosen or (here and wanted.own_alone):
            wanted_tasks += [Task(point, None), *(Task(point, combination) for combination in chosen)]
    if not wanted_tasks:
        raise BadInput(f"nothing to measure: none of the combinations requested runs here; {one_of(sorted(offered))}")
    return list(dict.fromkeys(wanted_tasks))


def _rounded(unit: int) -> list[int]:
    sizes = dict.fromkeys(size // unit * unit for size in SIZES)
    return [size for size in sizes if size > 0]
