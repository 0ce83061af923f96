"""NCCL's picks over sizes and node counts: the records that maps of choices show."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from tuner.base.dataclass import dataclass
from tuner.base.errors import NoAlgorithm
from tuner.base.frames import Column, Framed, arrays_of
from tuner.base.names import AlgoProto
from tuner.base.numerics import FloatArray, SizeArray
from tuner.emulator.ranges import largest
from tuner.emulator.request import Request
from tuner.emulator.selection import Picks, Selection
from tuner.scenario import Scenario
from tuner.times.costmodels.operations import bus_factor

NOTHING = -1


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Choices(Framed):
    """Picks as rank 0 sees them, arrays [nodes][bytes]; ``algorithm`` and ``protocol`` are NCCL's ids.

    Arrays are int8, int64 and float32; ``bytes`` is uint64 [bytes], NCCL's nBytes. If NCCL finds nothing to run,
    algorithm and protocol are -1, channels and threads 0, and the time is NaN.
    """

    nodes: tuple[int, ...]
    bytes: SizeArray
    algorithm: NDArray[np.int8]
    protocol: NDArray[np.int8]
    channels: NDArray[np.int64]
    threads: NDArray[np.int64]
    time_us: FloatArray

    def columns(self) -> dict[str, Column]:
        """A row for each number of nodes and size: nodes, bytes, algorithm, protocol, channels, threads, time_us."""
        return {
            "nodes": np.repeat(self.nodes, len(self.bytes)),
            "bytes": np.tile(self.bytes, len(self.nodes)),
            **arrays_of(self, "algorithm", "protocol", "channels", "threads", "time_us"),
        }


def choices(
    scenario: Scenario,
    request: Request,
    sizes: SizeArray,
    nodes: Sequence[int],
    progress: Callable[[], None] = lambda: None,
) -> Choices:
    """The picks of ``sizes`` (nBytes, ascending, at least one) with each number of nodes in ``nodes``, not with the
    scenario's.

    ``progress`` is called after each number. BadInput for what the emulator refuses, such as a single rank.
    """
    rows = []
    for count in nodes:
        rows.append(picks(Selection(scenario.with_nodes(count).communicator()), request, sizes))
        progress()
    names = ("algorithm", "protocol", "channels", "threads", "time_us")
    return Choices(tuple(nodes), sizes, *(np.stack([getattr(row, name) for row in rows]) for name in names))


def picks(selection: Selection, request: Request, sizes: SizeArray, table_us: FloatArray | None = None) -> Picks:
    """The picks of ``sizes`` (ascending, at least one); if there is nothing to run, values are as in :class:`Choices`.

    Nothing can run if a part of nBytes is less than one element, or if nBytes is above the largest size that NCCL
    accepts. ``table_us``: the cost table, if known, of those ``sizes`` that have at least one element.
    """
    shape = sizes.shape
    made = Picks(
        sizes,
        np.full(shape, NOTHING, np.int8),
        np.full(shape, NOTHING, np.int8),
        np.full(shape, np.nan, np.float32),
        np.zeros(shape, np.int64),
        np.zeros(shape, np.int64),
    )
    first = int(np.searchsorted(sizes, np.uint64(request.unit_bytes(selection.communicator.ranks))))
    picked = _picked(selection, request, sizes[first:], table_us)
    if picked is None:
        most = largest(selection, request, int(sizes[-1]))
        last = int(np.searchsorted(sizes, np.uint64(most + 1)))
        picked = selection.pick(request, sizes[first:last]) if first < last else None
    if picked is not None:
        for name in ("algorithm", "protocol", "time_us", "channels", "threads"):
            getattr(made, name)[first : first + len(picked.bytes)] = getattr(picked, name)
    return made


def _picked(selection: Selection, request: Request, sizes: SizeArray, table_us: FloatArray | None) -> Picks | None:
    """The picks of the sizes; None if nothing can run for some size, or if some size cannot use the buffers."""
    if not len(sizes) or request.symmetric:
        return None
    try:
        if table_us is None or selection.may_leave_classic_path(request):
            return selection.pick(request, sizes)
        return selection.model_pick(request, sizes, table_us)
    except NoAlgorithm:
        return None


def changed(before: Choices, after: Choices) -> NDArray[np.bool_]:
    """Whether the algorithm or the protocol differs between ``before`` and ``after``: an array of truth values with a
    row for each number of nodes and a column for each size.
    """
    differ: NDArray[np.bool_] = (before.algorithm != after.algorithm) | (before.protocol != after.protocol)
    return differ


def ratio(before: Choices, after: Choices) -> FloatArray:
    """Predicted time after over before, [nodes][bytes], each by its own constants; NaN if either has no time."""
    return after.time_us / before.time_us


@dataclass(frozen=True, slots=True, eq=False)
class Curves:
    """Times of combinations over sizes. ``time_us`` is [combination][size], NaN if NCCL ignores the combination;
    ``picks`` has one row.
    """

    algo_protos: tuple[AlgoProto, ...]
    time_us: FloatArray
    picks: Choices
    bus_factor: float

    @property
    def bytes(self) -> SizeArray:
        """Sizes of the picks in bytes, [size]."""
        return self.picks.bytes

    def busbw_gbs(self, time_us: FloatArray) -> NDArray[np.float64]:
        """nccl-tests' bus bandwidth, GB/s (1e9 bytes per second), of times by size in us."""
        busbw_gbs: NDArray[np.float64] = self.bytes.astype(np.float64) / time_us * 1e-3 * self.bus_factor
        return busbw_gbs


def curves(scenario: Scenario, request: Request, sizes: SizeArray) -> Curves:
    """Times of the combinations that the call may use at ``sizes`` (nBytes, ascending, at least one), as rank 0 sees
    them.

    Errors: BadInput for what the emulator refuses, NoAlgorithm if nothing can run at any of the sizes.
    """
    selection = Selection(scenario.communicator())
    picks = choices(scenario, request, sizes, [scenario.nodes])
    if (picks.algorithm == NOTHING).all():
        selection.pick(request, sizes[:1])  # says why
    return curves_beside(picks, selection, request)


def curves_beside(picks: Choices, selection: Selection, request: Request) -> Curves:
    """The times of the combinations that the call may use, over the sizes of ``picks``. ``picks`` has one row, and
    becomes the curves' ``picks``.
    """
    sizes = picks.bytes
    algo_protos = tuple(selection.candidates(request))
    table_us = selection.cost_table(request, sizes)
    times_us = (
        np.stack([table_us[:, *algo_proto] for algo_proto in algo_protos])
        if algo_protos
        else np.empty((0, len(sizes)), np.float32)
    )
    known_us = np.where(times_us > 0, times_us, np.float32(np.nan))
    return Curves(algo_protos, known_us, picks, float(bus_factor(request.collective, selection.communicator.ranks)))
