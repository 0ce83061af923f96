"""What a report shows: picks, every candidate's times and their reasons, by release, collective and number of nodes."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tuner.answers.choices import NOTHING, picks
from tuner.base.errors import BadInput, NoAlgorithm
from tuner.base.names import ALGO_PROTOS, AlgoProto, Collective, DataType, Op
from tuner.base.numerics import FloatArray, SizeArray
from tuner.base.trace import Steps
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.scenario import Scenario
from tuner.times.costmodels.bandwidth import bus_factor

# Powers of two and what lies half way, so that every size and count has a short name.
SIZES = np.array([part << shift for shift in range(32) for part in (8, 12)][:-1], np.uint64)
NODES = (1, *(part << shift for shift in range(11) for part in (2, 3)))[:-1]


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """One release, collective and number of nodes over all sizes.

    ``times_us`` is [candidate][size], not a number where NCCL ignores the candidate; ``pick`` is 3 x algorithm +
    protocol, -1 where NCCL finds nothing to run, and ``nothing`` says why, or where no call is so small:
    ``least_bytes`` is an element of each rank. ``steps`` are those of each candidate that is a pick, [size] from
    ``first`` on, the first size that is a call.
    """

    candidates: tuple[AlgoProto, ...]
    times_us: FloatArray
    pick: NDArray[np.int64]
    pick_us: FloatArray
    channels: NDArray[np.int64]
    threads: NDArray[np.int64]
    excluded: tuple[tuple[AlgoProto, str], ...]
    least_bytes: int
    nothing: str
    first: int
    steps: dict[AlgoProto, list[Steps]]


@dataclass(frozen=True, slots=True, eq=False)
class PageData:
    """``lines`` is by release, collective and number of nodes, in the order of these; ``sizes`` are bytes."""

    scenario: Scenario
    dtype: DataType
    op: Op
    releases: tuple[str, ...]
    nodes: tuple[int, ...]
    sizes: SizeArray
    lines: dict[tuple[str, Collective, int], Line]

    def bus_factor(self, collective: Collective, nodes: int) -> float:
        """What turns algorithm into bus bandwidth on so many nodes."""
        return float(bus_factor(collective, nodes * self.scenario.local_ranks()))


def collect(
    scenario: Scenario,
    releases: Sequence[str],
    dtype: DataType,
    op: Op,
    along: Callable[[Sequence[str]], Iterable[str]] = iter,
) -> PageData:
    """The report of a scenario for each of ``releases``; its own nodes are where a page opens.

    ``along`` is given the releases and iterates over them, such as a progress bar. Errors: BadInput for what the
    emulator refuses, and for nodes that differ or come with graphs of their own.
    """
    if scenario.others or scenario.graphs:
        raise BadInput("report: --node and --graphs are of one number of nodes; valid: --machine, --topology")
    nodes = nodes_of(scenario)
    collected = (
        line for name in along(releases) for line in lines(replace(scenario, nccl=name), dtype, op, nodes, SIZES)
    )
    return PageData(scenario, dtype, op, tuple(releases), nodes, SIZES, dict(collected))


def nodes_of(scenario: Scenario) -> tuple[int, ...]:
    """The numbers of nodes on the map, the scenario's own among them; of one rank there is nothing to pick."""
    fewest, most = scenario.node_counts
    counts = sorted(count for count in {*NODES, scenario.nodes} if fewest <= count <= most)
    return tuple(count for count in counts if count * scenario.local_ranks() > 1)


def lines(
    scenario: Scenario, dtype: DataType, op: Op, nodes: Sequence[int], sizes: SizeArray
) -> Iterator[tuple[tuple[str, Collective, int], Line]]:
    """The lines of the scenario's release, one for each number of nodes and collective; ``sizes`` are bytes.

    Errors: BadInput for what the emulator refuses.
    """
    for count in nodes:
        described = scenario.with_nodes(count)
        selection = Selection(described.communicator())
        for collective in Collective:
            yield (scenario.nccl, collective, count), _line(described, selection, Request(collective, dtype, op), sizes)


def _line(scenario: Scenario, selection: Selection, request: Request, sizes: SizeArray) -> Line:
    least_bytes, picked = request.unit_bytes(scenario.ranks), picks(selection, request, sizes)
    small = int(np.searchsorted(sizes, np.uint64(least_bytes)))
    end = small + np.count_nonzero(picked.algorithm != NOTHING)
    candidates = tuple(selection.candidates(request)) if selection.usable(request) else ()
    line = Line(
        candidates=candidates,
        times_us=np.full((len(candidates), len(sizes)), np.nan, np.float32),
        pick=np.where(picked.algorithm == NOTHING, NOTHING, picked.combinations),
        pick_us=picked.time_us,
        channels=picked.channels,
        threads=picked.threads,
        excluded=tuple(item for item in selection.excluded(request).items() if item[0] not in candidates),
        least_bytes=least_bytes,
        nothing=_nothing(selection, request, sizes[end:]),
        first=small,
        steps={},
    )
    table = selection.cost_table(request, sizes[small:])
    for row, algo_proto in enumerate(candidates):
        times_us = table[:, algo_proto[0], algo_proto[1]]
        line.times_us[row, small:] = np.where(times_us < 0, np.float32(np.nan), times_us)
    for algo_proto in candidates:
        if (line.pick == ALGO_PROTOS.index(algo_proto)).any():
            line.steps[algo_proto] = selection.steps_of_sizes(request, sizes[small:], algo_proto)
    return line


def _nothing(selection: Selection, request: Request, refused: SizeArray) -> str:
    if refused.size:
        try:
            selection.pick(request, refused)
        except NoAlgorithm as error:
            return str(error)
    return ""
