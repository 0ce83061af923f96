"""Finds which implementation carries an AllReduce of a serving engine, and what NCCL picks if NCCL carries it."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from typing import TypedDict

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tuner.answers import picks
from tuner.answers.picks import CallPicks, PickAnswer
from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput
from tuner.base.findings import Finding
from tuner.base.frames import Column, Framed
from tuner.base.names import Buffers, Collective, DataType, Op, Sides, by_name
from tuner.base.numerics import SizeArray
from tuner.base.records import json_form
from tuner.base.spelling import option
from tuner.emulator.compiled import CompiledSelection
from tuner.emulator.request import Request
from tuner.emulator.selection import Picks, whole_numbers
from tuner.engines import nccl_environment, releases, switches
from tuner.engines.carriers import CarriedSizes, Carriers
from tuner.engines.lookup import NumberTable
from tuner.engines.measured import MeasuredAllReduce, measured
from tuner.engines.releases import EngineRelease, Implementation
from tuner.engines.rules import holds, is_there
from tuner.engines.situation import Situation
from tuner.machine import gpus
from tuner.machine.topology import Topology
from tuner.machine.topology.records import Target
from tuner.scenario import Scenario

FIRST_CAPABILITY_WITH_MULTICAST = 90
BY_SOURCE = "by source, not compared"


@dataclass(frozen=True, slots=True)
class TurnedAway:
    """An implementation that does not carry a size, and the first of its conditions that does not hold."""

    implementation: str
    because: Finding


@dataclass(frozen=True, slots=True)
class CarriedCall:
    """The implementation that carries an AllReduce of ``bytes``: its name and a title. ``pick`` is NCCL's pick if NCCL
    carries it.

    ``turned_away`` are the implementations that the engine asks before this one. ``source`` is ``compared`` if the
    engine's own code was run and agreed, else :data:`BY_SOURCE`. ``measured`` is a published measurement of the engine
    at this size, with any implementation and release; it is no prediction.
    """

    bytes: int
    carrier: str
    title: str
    source: str
    turned_away: tuple[TurnedAway, ...]
    pick: PickAnswer | None = field(default=None, metadata=json_form(optional=True))
    measured: MeasuredAllReduce | None = field(default=None, metadata=json_form(optional=True))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class CarriedBy(Framed):
    """Which implementation carries AllReduces, one element per size: ``bytes`` uint64 [size], ``numbers`` int8 [size]
    are indices into ``names``.
    """

    bytes: SizeArray
    numbers: NDArray[np.int8]
    names: tuple[str, ...]

    def tolist(self) -> list[str]:
        """Name of the implementation that carries each size."""
        return [self.names[number] for number in self.numbers.tolist()]

    def columns(self) -> dict[str, Column]:
        """One row per size: bytes, carrier."""
        return {"bytes": self.bytes, "carrier": np.array(self.names)[self.numbers]}


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ServedPicks(Framed):
    """Which implementation carries AllReduces, and NCCL's picks for the same sizes, [size]. A pick runs only if NCCL
    carries the size.

    The picks are for plain buffers; :meth:`ServedGroup.calls` has the picks if NCCL carries calls on symmetric windows.
    """

    carried: CarriedBy
    nccl: CallPicks

    def columns(self) -> dict[str, Column]:
        """One row per size: bytes, carrier, and nccl_algorithm, _protocol, _channels, _threads and _time_us."""
        picks = Picks.columns(self.nccl)
        of_nccl = {f"nccl_{name}": column for name, column in picks.items() if name != "bytes"}
        return {**self.carried.columns(), **of_nccl}


class EngineSettings(TypedDict, total=False):
    """What a user sets for an engine, by the names of :class:`ServedGroup`'s parameters."""

    environment: Mapping[str, str]
    arguments: Sequence[str]
    graph: bool
    hidden_size: int | None
    without: Collection[str]


class ServedGroup:
    """A tensor-parallel group of an engine on a described communicator.

    ``environment``: variables that the user set, the engine's and NCCL's. ``arguments``: the engine's arguments.
    ``graph``: whether calls are captured in CUDA graphs. ``hidden_size``: number of columns of the tensors.
    ``without``: names of implementations that are switched off whatever their conditions say. BadInput for what the
    engine's release does not know, and for nodes that differ.
    """

    def __init__(
        self,
        scenario: Scenario,
        engine: str | EngineRelease,
        environment: Mapping[str, str] | None = None,
        arguments: Sequence[str] = (),
        *,
        graph: bool = True,
        hidden_size: int | None = None,
        without: Collection[str] = (),
    ) -> None:
        if scenario.others or scenario.members is not None:
            raise BadInput(
                "an engine can only be asked about one group of ranks on equal nodes: describe one machine, without "
                f"{option('ranks')}"
            )
        self.scenario = scenario
        self.release = releases.load(engine) if isinstance(engine, str) else engine
        if self.release.one_node and scenario.nodes > 1:
            raise BadInput(f"{self.release.name} serves a model on one node, but {scenario.nodes} are described")
        self.environment = dict(environment or {})
        self.arguments = tuple(arguments)
        self.graph, self.hidden_size, self.without = graph, hidden_size, frozenset(without)
        self.switches = switches.read(self.release, self.environment, self.arguments)
        self._numbers: dict[DataType | str, NumberTable] = {}

    def situation(self, dtype: DataType) -> Situation:
        """The facts about the described machine and settings on which the engine's conditions depend."""
        own = self.scenario.resolve().own
        topology, hosts = own.topology, own.trays or 1
        used = topology.with_gpus(sorted(set(own.gpu_of_rank))) if own.gpu_of_rank else topology
        return Situation(
            capability=used.gpus[0].sm,
            ranks=self.scenario.ranks,
            nodes=self.scenario.nodes * hosts,
            dtype=dtype,
            nvlink_everywhere=nvlink_everywhere(used),
            peer_access=peer_access(used),
            multicast=multicast(used),
            one_domain=self.scenario.nodes == 1 and hosts > 1,
            graph=self.graph,
            hidden_size=self.hidden_size,
            switches=self.switches,
            without=self.without,
        )

    def there(self, dtype: DataType) -> tuple[Implementation, ...]:
        """The implementations, including NCCL, that the engine enables for some size. BadInput for settings with which
        the engine exits.
        """
        situation = self.situation(dtype)
        return tuple(each for each in self.release.implementations if is_there(situation, self.release, each.name))

    def carriers(self, dtype: DataType) -> Carriers:
        """The engine's implementations for tensors of a type. BadInput for settings with which the engine exits."""
        return Carriers(self.situation(dtype), self.release)

    @cached_property
    def nccls_scenario(self) -> Scenario:
        """The communicator with the environment that the engine sets for NCCL."""
        situation = self.situation(DataType.bfloat16)
        of_nccl = {**(self.scenario.environment or {}), **self._without_own}
        made = nccl_environment.given(situation, self.release, of_nccl)
        return replace(self.scenario, environment=made) if made else self.scenario

    @property
    def one_rank_per_node(self) -> bool:
        """Whether the group is on several nodes, with one of its ranks on each."""
        return self.scenario.nodes == self.scenario.ranks > 1

    def windows(self, of: str) -> Sides:
        """Which buffers of a call the engine has in symmetric windows. ``of`` is the name of a collective, or
        ``logits`` for the call that gathers the logits.
        """
        given = self.release.windows
        if given is None or not holds(self.situation(DataType.bfloat16), self.release, given["conditions"]):
            return Sides.none
        return Sides[given.get(of, Sides.none.name)]

    @property
    def _without_own(self) -> dict[str, str]:
        return {name: value for name, value in self.environment.items() if name not in self.release.variables}

    def calls(self, request: Request, sizes_bytes: Sequence[int]) -> list[CarriedCall]:
        """A call for each size, with NCCL's pick if NCCL carries it. BadInput for any collective other than
        AllReduce.
        """
        carriers = self.carriers(self._allreduce(request).dtype)
        carried = [carriers.at(size) for size in sizes_bytes]
        picked = self._picked(request, sizes_bytes, carried)
        measured = self.measured(request.dtype)
        return [
            CarriedCall(
                size,
                way.name,
                way.title,
                "compared" if carriers.compared(size) else BY_SOURCE,
                tuple(TurnedAway(each.name, because) for each, because in carriers.turned_away(size)),
                picked.get(size),
                measured.get(size),
            )
            for size, way in zip(sizes_bytes, carried, strict=True)
        ]

    def measured(self, dtype: DataType) -> dict[int, MeasuredAllReduce]:
        """Published measurements of the engine with these GPUs and ranks, by size; empty if they were made in another
        situation than this group's.

        These measurements are of calls in CUDA graphs on one node whose GPUs are all on NVSwitches, with the engine's
        default settings.
        """
        situation, names = self.situation(dtype), set(self.scenario.gpu_names)
        alike = self.graph and situation.nodes == 1 and on_switches(self.scenario.resolve().own.topology)
        if not alike or len(names) != 1 or self.environment or self.arguments:
            return {}
        return measured(self.release.engine, names.pop(), situation.ranks, dtype.name)

    def _picked(
        self, request: Request, sizes_bytes: Sequence[int], carried: Sequence[Implementation]
    ) -> dict[int, PickAnswer]:
        found: dict[int, PickAnswer] = {}
        for windows in (False, True):
            sizes = [
                size for size, way in zip(sizes_bytes, carried, strict=True) if way.nccl and way.windows is windows
            ]
            if sizes:
                asked = replace(request, buffers=Buffers.window) if windows else request
                answers = picks.from_emulator(self.nccls_scenario, asked, sizes)
                found |= dict(zip(sizes, answers, strict=True))
        return found

    def carriers_of(self, sizes_bytes: ArrayLike, dtype: DataType | str = DataType.float32) -> CarriedBy:
        """Which implementation carries AllReduces of sizes in bytes, one element per size.

        BadInput for an unknown type, for sizes out of range, and for settings with which the engine exits.
        """
        sizes = whole_numbers(sizes_bytes)
        return self._carried(sizes.view(np.uint64) if sizes.dtype == np.int64 else sizes.astype(np.uint64), dtype)

    def _carried(self, sizes: SizeArray, dtype: DataType | str) -> CarriedBy:
        if dtype not in self._numbers:
            self._numbers[dtype] = self.carriers(by_name(DataType, dtype, "type")).numbers
        return CarriedBy(sizes, self._numbers[dtype].among(sizes), self._names)

    def pick(
        self, sizes_bytes: ArrayLike, dtype: DataType | str = DataType.float32, op: Op | str = Op.sum
    ) -> ServedPicks:
        """Which implementation carries AllReduces of sizes in bytes, and NCCL's picks with the environment that the
        engine sets.

        Errors as :meth:`carriers_of` raises them. NoAlgorithm if NCCL finds nothing to run.
        """
        request = Request(Collective.AllReduce, by_name(DataType, dtype, "type"), by_name(Op, op, "operation"))
        picked = self._selection.pick(request, sizes_bytes)
        picks = CallPicks(picked.stored, request, self._selection, self.nccls_scenario)
        return ServedPicks(self._carried(picks.bytes, dtype), picks)

    @cached_property
    def _names(self) -> tuple[str, ...]:
        return tuple(each.name for each in self.release.implementations)

    @cached_property
    def _selection(self) -> CompiledSelection:
        return CompiledSelection(self.nccls_scenario.communicator())

    def _allreduce(self, request: Request) -> Request:
        """The request. BadInput if it is not an AllReduce: NCCL carries the others, and the message says what the
        engine sets for NCCL.
        """
        if request.collective is Collective.AllReduce:
            return request
        made, before = self.nccls_scenario.environment or {}, self.scenario.environment or {}
        given = [f"{option('env')} {name}={value}" for name, value in made.items() if before.get(name) != value]
        also = f", and add {' '.join(given)}, which {self.release.name} sets" if given else ""
        raise BadInput(
            f"an engine only carries AllReduce by itself, and leaves {request.collective.name} to NCCL: leave out "
            f"{option('engine')}{also}"
        )

    def ranges(self, request: Request, low_bytes: int, high_bytes: int) -> list[CarriedSizes]:
        """Ranges of sizes by implementation, exact to the byte, for sizes of whole rows."""
        carriers = self.carriers(self._allreduce(request).dtype)
        step = request.dtype.size_bytes * (self.hidden_size or 1)
        return carriers.ranges(low_bytes, high_bytes, step)


def group_of(scenario: Scenario, ranks: int) -> Scenario:
    """A group of ``ranks`` ranks on nodes like the scenario's first: on a part of one node, or on several whole nodes.

    BadInput if the number neither divides the number of a node's GPUs nor is a multiple of it.
    """
    gpus = scenario.gpus()
    if gpus % ranks == 0:
        return replace(scenario, nodes=1).with_gpus(ranks)
    if ranks % gpus == 0:
        return scenario.with_nodes(ranks // gpus)
    raise BadInput(f"{ranks} ranks neither divide the {gpus} GPUs of a node evenly nor fill whole nodes")


@dataclass(frozen=True, slots=True)
class EngineMismatch:
    """A size for which the engine's own functions name another implementation than the tables do."""

    dtype: str
    graph: bool
    bytes: int
    ours: str
    engines: str


@dataclass(frozen=True, slots=True)
class EngineComparison:
    """Comparison of answers for one group with the engine's own functions: how many were compared, and which differ.

    ``by_source`` counts answers that could not be compared, because their implementation is only known from its source.
    """

    engine: str
    compared: int
    mismatches: tuple[EngineMismatch, ...]
    by_source: int = 0


DTYPES_COMPARED = (DataType.bfloat16, DataType.float16, DataType.float32, DataType.int32)
SIZES_COMPARED = 64  # between 1 KiB and 1 GiB, beside those around each border


def compare_with_engine(
    group: ServedGroup, sizes_bytes: Sequence[int] | None = None, progress: Callable[[str], None] = lambda _: None
) -> EngineComparison:
    """Compares the group's answers for four data types, in CUDA graphs and eager, with the functions of the engine's
    package.

    Sizes are ``sizes_bytes``, or 64 between 1 KiB and 1 GiB, and in any case the sizes at, before and after each
    border. OracleUnavailable if the package cannot be fetched or run, OracleFailed if it does not answer, BadInput for
    settings with which the engine exits.
    """
    from tuner.oracle import serving  # what runs a package, which nothing else here needs

    serving.fetch(group.release, progress)
    asked, ours, by_source = [], [], 0
    for dtype in DTYPES_COMPARED:
        for graph in (True, False):
            situation = replace(group.situation(dtype), graph=graph)
            carriers = Carriers(situation, group.release)
            wanted = _sizes_compared(carriers, sizes_bytes)
            sizes = [size for size in wanted if carriers.compared(size)]
            by_source += len(wanted) - len(sizes)
            asked.append(serving.question(situation, group.environment, group.arguments, sizes))
            ours.append((dtype.name, graph, sizes, [carriers.at(size).name for size in sizes]))
    found, compared = [], 0
    for (dtype_name, graph, sizes, names), answer in zip(ours, serving.ask(group.release, asked), strict=True):
        engines = answer if isinstance(answer, list) else [f"ends: {answer}"] * len(sizes)
        compared += len(sizes)
        found += [
            EngineMismatch(dtype_name, graph, size, name, other)
            for size, name, other in zip(sizes, names, engines, strict=True)
            if name != other
        ]
    return EngineComparison(group.release.name, compared, tuple(found), by_source)


def _sizes_compared(carriers: Carriers, sizes_bytes: Sequence[int] | None) -> list[int]:
    """Sizes of whole rows to compare: the asked ones, or sizes spread evenly over powers of two, and the sizes around
    each border.
    """
    step = carriers.situation.dtype.size_bytes * (carriers.situation.hidden_size or 1)
    drawn = sizes_bytes or [int(2 ** (10 + 20 * part / SIZES_COMPARED)) for part in range(SIZES_COMPARED)]
    rows = {max(each // step, 1) for each in drawn}
    for each in carriers.ranges(1 << 10, 1 << 30, step):
        at = each.from_bytes // step
        rows |= {row for row in (at - 1, at, at + 1) if row > 0}
    return [row * step for row in sorted(rows)]


def nvlink_everywhere(topology: Topology) -> bool:
    """Whether NVLink connects every two GPUs of a node, through switches or directly."""
    if on_switches(topology):
        return True
    linked = {each.busid: {link.target for link in each.nvlinks} for each in topology.gpus}
    return all(
        other.busid in linked[each.busid] for each in topology.gpus for other in topology.gpus if other is not each
    )


def on_switches(topology: Topology) -> bool:
    """Whether every GPU has NVLinks to NVSwitches."""
    return all(each.count_nvlinks(Target.SWITCH) for each in topology.gpus)


def multicast(topology: Topology) -> bool:
    """Whether the GPUs can multicast: all are Hopper or later, and on NVSwitches."""
    return on_switches(topology) and all(each.sm >= FIRST_CAPABILITY_WITH_MULTICAST for each in topology.gpus)


def peer_access(topology: Topology) -> bool:
    """Whether the GPUs can map each other's memory: all models can, except for those for which CUDA denies it."""
    return not any(
        gpus.load(name).peer_to_peer is gpus.PeerToPeer.none
        for each in topology.gpus
        for name in gpus.of_device(each.device)
    )


def differences(one: Iterable[CarriedSizes], other: Iterable[CarriedSizes]) -> list[tuple[CarriedSizes, CarriedSizes]]:
    """The ranges of sizes that different implementations carry in ``one`` and in ``other``, two answers of
    :meth:`ServedGroup.ranges`. Each range is a pair: as in ``one``, and as in ``other``.
    """
    found = []
    for here in one:
        for there in other:
            low, high = max(here.from_bytes, there.from_bytes), min(here.to_bytes, there.to_bytes)
            if low <= high and here.title != there.title:
                cut_here, cut_there = (replace(each, from_bytes=low, to_bytes=high) for each in (here, there))
                found.append((cut_here, cut_there))
    return found
