"""Compares measured times with the machine's links: refuses rows that are faster than such hardware can be.

The bounds follow from the links alone, with the data sheets' bandwidths: they include neither latencies nor NCCL's
algorithms, and allow for reductions in switches, so that a shorter time is wrong whatever NCCL did.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import cache
from statistics import median

import numpy as np

from tuner.base import tables
from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, BadMeasurement
from tuner.base.sizes import plural
from tuner.base.spelling import option
from tuner.machine.topology.records import Gpu, Target, Topology
from tuner.scenario import Scenario
from tuner.times.costmodels.operations import positive
from tuner.times.measured import Kind, Problem, problems
from tuner.times.measured.checks import SHORTEST_US, named
from tuner.times.measured.samples import Measurements, SampleBlock
from tuner.times.timemodel.features import Array


@dataclass(frozen=True, slots=True)
class Links:
    """Bandwidths in one direction: ``intra_gbs`` of a GPU inside its node, ``inter_gbs`` of all adapters of a node.

    None if there are no such links: ``intra_gbs`` with one GPU per node, ``inter_gbs`` on one node.
    """

    intra_gbs: float | None
    inter_gbs: float | None


def of_case(scenario: Scenario, intra_gbs: float | None = None, inter_gbs: float | None = None) -> Links:
    """The bandwidths that are given, else those of data sheets.

    BadInput if a value is neither given nor in a data sheet.
    """
    if scenario.others:
        raise BadInput(f"no single limit holds for nodes that differ: give {option('machine')} with {option('nodes')}")
    for name, given_gbs in (("intra_gbs", intra_gbs), ("inter_gbs", inter_gbs)):
        if given_gbs is not None:
            positive(name, given_gbs)
    scenario.check_gpu_for_each_rank("what links carry")
    gpus = scenario.gpus()
    if gpus > 1 and intra_gbs is None:
        intra_gbs = _nvlink_gbs(scenario, gpus)
    if scenario.nodes > 1 and inter_gbs is None:
        inter_gbs = _net_gbs(scenario, gpus)
    return Links(intra_gbs if gpus > 1 else None, inter_gbs if scenario.nodes > 1 else None)


def links_of_gpu_gbs(topology: Topology, count: int) -> float:
    """The most GB/s that one of the first ``count`` GPUs can send to others, by NVLink or PCIe; 0 if neither is known.

    BadInput if there are fewer GPUs.
    """
    sms = topology.compute_capabilities(count)
    pcie_gbs = max(_table("pcie_gbs").get(str(sm), 0.0) for sm in sms)
    return max(nvlink_gbs(topology, count, most=True), pcie_gbs)


def reduces_in_switch(topology: Topology, count: int) -> bool:
    """Whether NVSwitches that can reduce and multicast (Hopper or later) connect the first ``count`` GPUs."""
    return topology.has_nvswitch(count) and min(topology.compute_capabilities(count)) >= 90


def _nvlink_gbs(scenario: Scenario, count: int) -> float:
    """Bandwidth of the GPU with the fewest links to switches and to the GPUs in use."""
    gbs = nvlink_gbs(scenario.resolve().own.topology, count)
    if not gbs:
        raise BadInput(
            f"the NVLink bandwidth between the GPUs of {scenario.name} is not known: add {option('intra_gbs')} GBS"
        )
    return gbs


def nvlink_gbs(topology: Topology, count: int, most: bool = False) -> float:
    """GB/s in one direction of the NVLinks of one of the first ``count`` GPUs: the lowest or, with ``most``, the
    highest.

    0 without NVLinks, or if their rate is not known.
    """
    gpus = topology.first_gpus(count)
    used = {gpu.busid for gpu in gpus}
    links = (max if most else min)(_links(gpu, used) for gpu in gpus)
    return float(links * _table("nvlink_gbs").get(str(gpus[0].sm), 0.0))


@cache
def _table(name: str) -> dict[str, float]:
    table: dict[str, float] = tables.toml(tables.folder() / "links.toml")[name]
    return table


def _links(gpu: Gpu, used: set[str]) -> int:
    return sum(link.count for link in gpu.nvlinks if link.kind is Target.SWITCH or link.target in used)


def _net_gbs(scenario: Scenario, gpus: int) -> float:
    """Bandwidth of all adapters of the node, scaled to the share of its GPUs in use."""
    topology = scenario.resolve().own.topology
    total_gbs = sum(net.speed_mbps for net in topology.nets) / 8000
    if not total_gbs:
        raise BadInput(f"the adapters of {scenario.name} are not known: add {option('inter_gbs')} GBS")
    return total_gbs * gpus / len(topology.gpus)


SMALL_BYTES = 2**20  # the time of a smaller call is mostly the time in which the host starts it
_FEWEST = 6  # least number of sizes, of which some are small and some large
_UNLIKELY = 1.4  # no start time and no link is off by this factor at all sizes
_ALIKE = 0.15  # natural logarithm; nearly all sizes are within this of the factor
_NEARLY_ALL = 0.9
_FACTORS = {8.0: "bits for bytes", 1e3: "milliseconds, microseconds and nanoseconds", 1e6: "seconds for microseconds"}


def common_factor(ratios: Array, nbytes: Array) -> float | None:
    """The factor by which all times are off; None if there are too few times, or if no single factor explains them.

    ``ratios``: measured over expected time per size. ``nbytes``: the sizes in bytes. There is no factor either unless
    some sizes are below 1 MiB and some are not.
    """
    off = np.log(ratios)
    if np.isnan(off).any():
        return None
    factor = float(np.exp(median(off.tolist())))
    small = nbytes < SMALL_BYTES
    if len(off) < _FEWEST or not small.any() or small.all() or max(factor, 1 / factor) < _UNLIKELY:
        return None
    return factor if np.mean(np.abs(off - np.log(factor)) < _ALIKE) >= _NEARLY_ALL else None


def likely(factor: float, bus_factor: float | None = None) -> str:
    """The likely mistake behind the factor, as a question. ``bus_factor``: the factor from algorithm to bus bandwidth,
    if any.
    """
    known = _FACTORS if bus_factor is None else {**_FACTORS, bus_factor: "the factor of the bus bandwidth"}
    for slip, words in known.items():
        if min(abs(np.log(factor / slip)), abs(np.log(factor * slip))) < _ALIKE:
            return f"{words}?"
    return "clocks, a wrong unit or factor, or another machine?"


_ABOVE = 1.02  # clocks of GPUs and hosts differ, and published bandwidths are rounded
_SLIPS = ((1000.0, "milliseconds for microseconds?"), (8.0, "bits for bytes, or bytes for bits?"))
_SLIP_WITHIN = 1.25
_PEAK = 0.6  # the best bandwidth that real machines reach is at least this share of the bound


def judge(table: Measurements, topology: Topology | None, trays: int | None = None) -> tuple[Problem, ...]:
    """The problems of all rows. ``topology`` is the topology of one node, None if not known.

    ``trays``: the number of such nodes in an NVLink domain; within a domain, adapters carry nothing. None without a
    domain.
    """
    return (*problems(table), *(() if topology is None else _beyond(table.blocks, topology, trays)))


def usable(table: Measurements, found: Sequence[Problem], despite: Collection[Kind] = ()) -> Measurements:
    """The table without the rows that the problems refuse; problems of a kind in ``despite`` refuse no row."""
    out = {line for each in found if each.refused and each.kind not in despite for line in each.lines}
    if any(each.kind in (Kind.mixed_machines, Kind.mixed_releases) for each in found):
        out = {row.line for row in table.blocks}
    return replace(table, blocks=tuple(row for row in table.blocks if row.line not in out))


def refuse(table: Measurements, topology: Topology | None, where: str, trays: int | None = None) -> tuple[Problem, ...]:
    """The problems of a table's rows. BadMeasurement, with the file ``where`` and the lines, for the first reason to
    refuse rows."""
    judged = judge(table, topology, trays)
    for problem in judged:
        if problem.refused:
            raise BadMeasurement(f"{where}:{problem.lines[0]}: {problem.kind}: {problem.text} ({problem.where})")
    return judged


def least_us_on(topology: Topology, trays: int | None = None) -> Callable[[SampleBlock], float]:
    """The function that gives the time in us that the links alone need for a row: NVLink or PCIe inside a node,
    adapters between nodes. The links of the machine are looked up once for each number of GPUs.

    With ``trays``, a row needs NVLink inside a domain and the adapters of all its trays. The time is 0 if no link's
    speed is known. The function raises BadInput if the machine has fewer GPUs.
    """
    net_gbs = sum(net.speed_mbps for net in topology.nets) / 8000

    @cache
    def inside_gbs(gpus: int) -> tuple[float, bool]:
        return links_of_gpu_gbs(topology, gpus), reduces_in_switch(topology, gpus)

    def least(row: SampleBlock) -> float:
        own_gbs, gpus = net_gbs, row.gpus_per_node
        if trays is not None:
            gpus = min(gpus, len(topology.gpus))
            row = _of_domains(row, trays)
            own_gbs *= row.gpus_per_node / gpus
        gpu_gbs, in_switch = inside_gbs(gpus)
        inside = _inside_bytes(row, in_switch) / gpu_gbs if gpu_gbs else 0.0
        between = _between_bytes(row) / own_gbs if own_gbs and row.nodes > 1 else 0.0
        return max(inside, between) / 1000

    return least


def fastest_us_on(topology: Topology, trays: int | None = None) -> Callable[[SampleBlock], float]:
    """The function that gives the time in us below which a row is refused: what the links need, less a margin for
    clocks and rounding.
    """
    least = least_us_on(topology, trays)
    return lambda row: max(least(row) / _ABOVE, SHORTEST_US)


def _of_domains(row: SampleBlock, trays: int) -> SampleBlock:
    """The row with NVLink domains as its nodes, whether its file counts hosts or domains."""
    domains = max(row.nodes // trays, 1)
    return replace(row, shape=(domains, row.ranks // domains))


def _inside_bytes(row: SampleBlock, in_switch: bool) -> float:
    """Bytes that one GPU has to send or receive."""
    others = (row.ranks - 1) / row.ranks
    if row.point.name == "allreduce":
        return row.point.bytes * (1 if in_switch or row.nodes > 1 else 2 * others)
    if row.point.name in ("allgather", "reducescatter", "alltoall", "gather", "scatter"):
        return row.point.bytes * others
    return float(row.point.bytes)


def _between_bytes(row: SampleBlock) -> float:
    """Bytes that all adapters of one node together have to send or to receive."""
    if row.point.name in ("allgather", "reducescatter", "gather", "scatter"):
        return row.point.bytes * (row.nodes - 1) / row.nodes
    if row.point.name == "alltoall":
        return row.point.bytes * row.gpus_per_node * (row.nodes - 1) / row.nodes
    return float(row.point.bytes)


def _beyond(rows: Sequence[SampleBlock], topology: Topology, trays: int | None) -> list[Problem]:
    beyond = []
    there = len(topology.gpus) * (trays or 1)
    fitting = [row for row in rows if row.gpus_per_node <= there]
    if many := tuple(row.line for row in rows if row.gpus_per_node > there):
        most = max(row.gpus_per_node for row in rows)
        text = f"{plural(len(many), 'row')} with up to {most} GPUs a node, and the machine has {there}"
        beyond.append(Problem(Kind.too_many_gpus, many, text))
    least = least_us_on(topology, trays)
    over = [(least(row) / row.median_us, row) for row in fitting]
    above = [(factor, row) for factor, row in over if factor > _ABOVE]
    if above:
        factor, row = max(above, key=lambda each: each[0])
        text = (
            f"{plural(len(above), 'row')} faster than the machine's links "
            f"({named(row)}, line {row.line}: {row.median_us:g} us, "
            f"the links alone take {factor * row.median_us:.4g} us)"
        )
        beyond.append(Problem(Kind.above_links, tuple(row.line for _, row in above), f"{text}{_slip(over)}"))
    return beyond


def _slip(over: Sequence[tuple[float, SampleBlock]]) -> str:
    """The likely mistake in units, judged by the factor by which the largest sizes exceed the bound."""
    largest = max(row.point.bytes for _, row in over)
    factor = median(factor for factor, row in over if row.point.bytes == largest)
    for slip, text in _SLIPS:
        if _PEAK * slip / _SLIP_WITHIN < factor <= _SLIP_WITHIN * slip:
            return f"; {text}"
    return "; wrong factor of the bus bandwidth, or another machine?"
