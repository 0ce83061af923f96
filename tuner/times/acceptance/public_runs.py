"""Public runs with which a run is compared: by the class of the machine, or by what the machine's links allow.

A class holds what decides a bandwidth: the GPUs' generation and NVLinks, the rate of a node's adapters, the kind of
network, the numbers of nodes and of GPUs per node, and the collective. If a run's own class has fewer than three
healthy runs, the most similar classes show what share of the links' limit is usually reached. The time that the links
allow is NCCL's own time on the machine's graphs or, for operations made of sends and receives, the bytes over the
links' bandwidth.

``tests/scripts/write_public_runs.py`` makes ``tables/public_runs.json`` from ``tables/measured``.
"""

import json
import math
import os
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from enum import StrEnum
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from tuner.base import tables
from tuner.base.dataclass import dataclass
from tuner.base.names import Algorithm
from tuner.base.numerics import SizeArray
from tuner.base.records import from_json
from tuner.emulator.communicator import Comm
from tuner.machine.topology.records import Topology
from tuner.times.acceptance import limits
from tuner.times.acceptance.limits import ClassNearness, TimeLimits
from tuner.times.calibration import plausible
from tuner.times.costmodels.operations import CostOperation, bus_gbs
from tuner.times.timemodel.features import Array

FILE = "public_runs.json"
LEAST_RUNS = 3  # least number of runs of a class that decide about a size
# From this size on the bandwidth is constant, so that a curve can be continued beyond its largest size
SATURATED_BYTES = 256 << 20
EXCHANGES = frozenset({"AllToAll", "SendRecv"})
_ALIKE = 0.15  # natural logarithm; bandwidths within this belong to one class
_MOST_BYTES = 16 << 20  # largest file of a kept run
_NODE = 16  # most GPUs of a single node; more are an NVLink domain of several trays
LARGE_BYTES = 1 << 30  # a curve that begins above is continued down to this size,
_DOWN = 16  # but by at most this factor
_BELOW = 1.01  # tolerance below a curve's first size, which rounding may move


class Network(StrEnum):
    """Kinds of networks that reach different parts of what their links allow."""

    rdma = "InfiniBand or RoCE"
    efa = "EFA"
    slingshot = "Slingshot"
    tcpxo = "TCPXO"
    sockets = "TCP sockets"

    @property
    def family(self) -> str:
        """Family of the network. Kinds of network of the same family reach the same bandwidth with large calls."""
        return "rdma" if self in (Network.rdma, Network.efa) else self.value


class Joined(StrEnum):
    """How the GPUs of a node reach each other."""

    nvls = "NVSwitches that reduce"
    nvlink = "NVLink"
    pcie = "PCIe"
    alone = "one GPU"


@dataclass(frozen=True, slots=True)
class MachineClass:
    """The properties of a machine that decide a bandwidth. ``gpu_gbs``: bandwidth of a GPU's links in one direction.
    ``node_gbs``: bandwidth of the adapters of a node that NCCL's ring uses, 0 on one node. Both bandwidths are in GB/s.
    """

    sm: int
    joined: Joined
    gpu_gbs: float
    node_gbs: float
    network: Network

    @property
    def generation(self) -> int:
        """The major number of the compute capability: 9 for Hopper, 10 for B200 and B300."""
        return self.sm // 10

    def has_links_of(self, other: "MachineClass") -> bool:
        """Whether a GPU's links and a node's adapters are as fast in this class as in the ``other`` class."""
        return _near(self.gpu_gbs, other.gpu_gbs) and _near(self.node_gbs, other.node_gbs)


@dataclass(frozen=True, slots=True)
class PublicCurve:
    """The times of one kind of call in one run, one element per size: ``time_us`` as measured, and ``model_us``, the
    time that the links allow.

    ``nodes`` counts NVLink domains if there are any, ``gpus_per_node`` the GPUs of each. ``forced``: algorithm and
    protocol, as in ``Ring/Simple``, empty if NCCL chose. ``gpu`` names the GPU in texts for the reader. ``adapters``
    (how many a node has) and ``adapter_gbps`` (1e9 bits per second each) are None if not known. ``own``: whether the
    user kept this run.
    """

    table: str
    run: str
    site: str
    health: str
    health_note: str
    gpu: str
    adapters: int | None
    adapter_gbps: float | None
    machine: MachineClass
    nodes: int
    gpus_per_node: int
    collective: str
    forced: str
    in_place: bool
    bytes: tuple[int, ...]
    time_us: tuple[float, ...]
    model_us: tuple[float, ...]
    own: bool = False

    @property
    def is_healthy(self) -> bool:
        """Whether the run counts as healthy: the hardware performed as it should."""
        return self.health == "healthy"

    @property
    def name(self) -> tuple[str, str, int]:
        """Identifies the run; in place and out of place have the same name."""
        return self.table, self.run, self.nodes

    def log_at(self, sizes: SizeArray, values: Sequence[float], *, grows: bool) -> Array:
        """Natural logarithms of ``values`` per size, interpolated between the measured sizes; NaN outside of them.

        Above the largest size, times grow in proportion to the size if the bandwidth is constant by then. Between 1 GiB
        and the first size above it, they always do.
        """
        at, known = np.log(sizes.astype(np.float64)), np.log(np.array(self.bytes, np.float64))
        found = np.interp(at, known, np.log(np.array(values)))
        beyond = at > known[-1]
        found = found + np.where(beyond, at - known[-1], 0.0) if grows else found
        below = at < known[0]
        if grows:
            found = found + np.where(below, at - known[0], 0.0)
        first = min(self.bytes[0], max(self.bytes[0] // _DOWN, LARGE_BYTES)) if self.bytes[0] >= LARGE_BYTES else 0
        outside = at < math.log((first or self.bytes[0]) / _BELOW)
        if self.bytes[-1] < SATURATED_BYTES:
            outside |= at > known[-1] + math.log(_BELOW)
        found[outside] = np.nan
        return np.asarray(found, np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class ComparedCurve:
    """The curve that is judged, in the form of public ones: its class, and the times that its links allow, an array
    [size], us.
    """

    machine: MachineClass
    nodes: int
    gpus_per_node: int
    collective: str
    forced: str
    bytes: SizeArray
    model_us: Array


@dataclass(frozen=True, slots=True, eq=False)
class TypicalTimes:
    """Typical times in us of the public runs that decide, one value per size; NaN if too few runs decide. ``nearness``:
    how similar these runs are, -1 if too few decide.

    The other fields are factors over these times: up to ``sure`` a time is healthy, above ``high`` it is slow, above
    ``row`` it fails with two others near it, above ``far`` by itself. ``runs``: how many runs decide.
    """

    time_us: Array
    nearness: np.ndarray[tuple[int], np.dtype[np.int64]]
    sure: Array
    high: Array
    row: Array
    far: Array
    runs: np.ndarray[tuple[int], np.dtype[np.int64]]


def class_of(communicator: Comm, topology: Topology, gpus: int, network: Network, *, nvls: bool) -> MachineClass:
    """The class of a machine if ``gpus`` GPUs of each node take part; ``nvls``: False if NVLS was switched off."""
    several = communicator.nodes > 1
    here = min(gpus, len(topology.gpus))
    ring = communicator.graphs[Algorithm.Ring]
    nvlink = plausible.nvlink_gbs(topology, here)
    joined = Joined.pcie
    if plausible.reduces_in_switch(topology, here) and nvls:
        joined = Joined.nvls
    elif nvlink:
        joined = Joined.nvlink
    if gpus == 1:
        joined = Joined.alone
    return MachineClass(
        sm=min(topology.compute_capabilities(here)),
        joined=joined,
        gpu_gbs=round(plausible.links_of_gpu_gbs(topology, here), 1) if gpus > 1 else 0.0,
        node_gbs=round(ring.channels * ring.bw_inter_gbs, 1) if several else 0.0,
        network=network,
    )


def nominal_gbs(topology: Topology) -> float:
    """The rate of all adapters of a node together, GB/s."""
    return sum(net.speed_mbps for net in topology.nets) / 8000


def network_of_names(topology: Topology) -> Network:
    """The kind of network, inferred from the names of a node's adapters; InfiniBand or RoCE if no name says
    otherwise.
    """
    names = [net.name for net in topology.nets]
    if any(name.startswith(("rdmap", "efa")) for name in names):
        return Network.efa
    if any(name.startswith("cxi") for name in names):
        return Network.slingshot
    if names and all(name.startswith(("eth", "en", "bond", "ib")) for name in names):
        return Network.sockets
    return Network.rdma


def network_in_words(words: str, otherwise: Network) -> Network:
    """The kind of network that a text from a table or log names; ``otherwise`` if it names no network."""
    word = words.lower()
    if word.startswith("socket"):
        return Network.sockets
    if "tcpx" in word or "fastrak" in word:
        return Network.tcpxo
    if word.startswith("ib") or "infiniband" in word or "roce" in word or "gib" in word:
        return Network.rdma if otherwise is not Network.efa else Network.efa
    if "efa" in word:
        return Network.efa
    return Network.rdma if otherwise is Network.sockets and word else otherwise


def own_folder() -> Path:
    """The folder of the runs that the user keeps, in the user's data folder."""
    home = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(home) / "nccl-tuner" / "runs"


@cache
def own() -> tuple[PublicCurve, ...]:
    """The curves of the runs that the user keeps; a file that cannot be read is ignored."""
    curves: list[PublicCurve] = []
    for file in sorted(own_folder().glob("*.json")):
        with suppress(OSError, ValueError, KeyError, TypeError):
            if file.stat().st_size <= _MOST_BYTES:
                curves += (replace(each, own=True) for each in _curves(json.loads(file.read_text(encoding="utf-8"))))
    return tuple(curves)


@cache
def shipped() -> tuple[PublicCurve, ...]:
    """The curves of the shipped tables."""
    return _curves(json.loads((tables.folder() / FILE).read_text(encoding="utf-8")))


def _curves(kept: Any) -> tuple[PublicCurve, ...]:
    machines = [from_json(MachineClass, each) for each in kept["machines"]]
    keys = kept["keys"]
    curves = []
    for row in kept["curves"]:
        own = dict(zip(keys, row, strict=True))
        own["machine"] = machines[own["machine"]]
        for name in ("bytes", "time_us", "model_us"):
            own[name] = tuple(own[name])
        curves.append(PublicCurve(**own))
    return tuple(curves)


def text_of(curves: Sequence[PublicCurve]) -> str:
    """The text of the file that holds the curves, one line per curve."""
    machines = list(dict.fromkeys(each.machine for each in curves))
    keys = [name for name in PublicCurve.__slots__ if name != "own"]
    lines = []
    for each in curves:
        row: list[object] = []
        for key in keys:
            value = getattr(each, key)
            row.append(machines.index(value) if key == "machine" else value)
        lines.append("  " + json.dumps(row, separators=(",", ":")))
    classes = ",\n".join(
        "  " + json.dumps({name: getattr(each, name) for name in MachineClass.__slots__}) for each in machines
    )
    return (
        f'{{"keys": {json.dumps(keys)},\n "machines": [\n{classes}\n ],\n "curves": [\n' + ",\n".join(lines) + "\n ]}\n"
    )


def matching(curve: ComparedCurve, curves: Iterable[PublicCurve], nearness: ClassNearness) -> list[PublicCurve]:
    """The healthy curves that are at least as similar to the judged one as ``nearness`` says."""
    return _of_classes(curve, _by_class(curves), nearness)


def _of_classes(
    curve: ComparedCurve, groups: Iterable[Sequence[PublicCurve]], nearness: ClassNearness
) -> list[PublicCurve]:
    return [each for group in groups if _matches(curve, group[0], nearness) for each in group]


def _by_class(curves: Iterable[PublicCurve]) -> list[list[PublicCurve]]:
    """The healthy curves, those together of which :func:`_matches` says the same."""
    groups = defaultdict[tuple[object, ...], list[PublicCurve]](list)
    for each in curves:
        if each.is_healthy:
            kind = id(each.machine), each.nodes, each.gpus_per_node, each.collective, each.forced
            groups[kind].append(each)
    return list(groups.values())


def _matches(curve: ComparedCurve, other: PublicCurve, nearness: ClassNearness) -> bool:
    own, there = curve.machine, other.machine
    if curve.collective in EXCHANGES and nearness > ClassNearness.same_machines:
        return False  # how a site sets up its network matters more than its links
    if (curve.nodes > 1) != (other.nodes > 1) or (curve.gpus_per_node > _NODE) != (other.gpus_per_node > _NODE):
        return False
    far = nearness >= ClassNearness.any_machine and curve.nodes > 1 and Joined.pcie not in (own.joined, there.joined)
    if own.joined != there.joined and not far:
        return False
    if curve.nodes > 1 and own.network.family != there.network.family:
        sockets = Network.sockets in (own.network, there.network)
        return nearness is ClassNearness.any_network and not sockets and band(curve.nodes) == band(other.nodes) and far
    if curve.collective != other.collective and {curve.collective, other.collective} & EXCHANGES:
        return False
    if nearness >= ClassNearness.any_machine:
        return band(curve.nodes) == band(other.nodes) and (curve.nodes == 1 or own.network.family == "rdma")
    if own.generation != there.generation or not _near(own.gpu_gbs, there.gpu_gbs):
        return False
    if nearness is ClassNearness.any_nodes and curve.gpus_per_node <= _NODE:
        return True  # between racks, some numbers of nodes share bandwidth that others do not
    if band(curve.nodes) != band(other.nodes):
        return False
    if nearness is ClassNearness.same_generation:
        return True
    if not own.has_links_of(there) or curve.gpus_per_node != other.gpus_per_node:
        return False
    if nearness is ClassNearness.same_machines:
        return curve.forced.partition("/")[0] == other.forced.partition("/")[0]
    same_call = curve.collective == other.collective and curve.forced == other.forced
    return same_call and curve.nodes == other.nodes


def band(nodes: int) -> int:
    """The class of a number of nodes. Within a class, NCCL's choices and the network's noise are similar."""
    return bisect_left((1, 2, 8, 32), nodes)


def typical(curve: ComparedCurve, curves: Sequence[PublicCurve], by: TimeLimits | None = None) -> TypicalTimes:
    """Typical times at the curve's sizes, from the most similar class with three runs; the user's own runs come first.
    ``by``: limits to use instead of the shipped ones.
    """
    count = len(curve.bytes)
    log_us, runs = np.full(count, np.nan), np.zeros(count, np.int64)
    nearness, sites = np.full(count, -1, np.int64), np.zeros(count, np.int64)
    log_model, groups = np.log(curve.model_us), _by_class(curves)
    for near in ClassNearness:
        if not np.isnan(log_us).any():
            break
        those = _of_classes(curve, groups, near)
        if near is ClassNearness.same_class and (own_ones := [each for each in those if each.own]):
            those = own_ones  # the same user's machines are more similar than others'
        open_ = np.flatnonzero(np.isnan(log_us))
        found, number, of_sites = typical_of(curve.bytes[open_], those, times=near is ClassNearness.same_class)
        known = ~np.isnan(found)
        fresh = open_[known]
        log_us[fresh] = found[known] if near is ClassNearness.same_class else found[known] + log_model[fresh]
        nearness[fresh], runs[fresh], sites[fresh] = near, number[known], of_sites[known]
    sure, high, row, far = np.full((4, count), np.nan)
    learnt = by or limits.shipped()
    for at in np.flatnonzero(nearness >= 0):
        limit = limits.EXCHANGE if curve.nodes == 1 else limits.EXCHANGE_BETWEEN
        if curve.collective not in EXCHANGES:
            near = ClassNearness(int(nearness[at]))
            limit = learnt.limit(int(curve.bytes[at]), near, curve.nodes, int(sites[at]), forced=bool(curve.forced))
        sure[at], high[at], row[at], far[at] = limit.sure, limit.high, limit.row, limit.far
    return TypicalTimes(np.exp(log_us), nearness, sure, high, row, far, runs)


def typical_of(sizes: SizeArray, those: Sequence[PublicCurve], *, times: bool) -> tuple[Array, np.ndarray, np.ndarray]:
    """Three arrays with one element per size: the median over sites, the number of runs and the number of sites. The
    medians are taken of the logarithms of the times in us or, without ``times``, of the logarithms of the times divided
    by what the links allow. The median is NaN if fewer than three runs have the size, unless one of these is the user's
    own run. ``sizes``: bytes.
    """
    found, number, sites = np.full(len(sizes), np.nan), np.zeros(len(sizes), np.int64), np.zeros(len(sizes), np.int64)
    if len({each.name for each in those}) < LEAST_RUNS and not any(each.own for each in those):
        return found, number, sites
    values = []
    for each in those:
        if times:
            values.append(each.log_at(sizes, each.time_us, grows=True).tolist())
        else:
            share = [time / allowed for time, allowed in zip(each.time_us, each.model_us, strict=True)]
            values.append(each.log_at(sizes, share, grows=False).tolist())
    by_size = np.array(values)  # [run, size]
    with_runs = defaultdict[bytes, list[int]](list)  # the sizes that the same runs have
    for size, known in enumerate(~np.isnan(by_size.T)):
        with_runs[known.tobytes()].append(size)
    for known_bytes, at in with_runs.items():
        rows = np.flatnonzero(np.frombuffer(known_bytes, np.bool_)).tolist()
        there = [those[row] for row in rows]
        of_sites: dict[str, list[int]] = defaultdict(list)
        for row, each in zip(rows, there, strict=True):
            of_sites[each.site].append(row)
        names = {each.name for each in there}
        number[at], sites[at] = len(names), len(of_sites)
        if len(names) < LEAST_RUNS and not any(each.own for each in there):
            continue
        if len(of_sites) >= LEAST_RUNS:
            rows_of_sites = (by_size[of_site][:, at] for of_site in of_sites.values())
            found[at] = _median(np.array([_median(each) for each in rows_of_sites]))
        else:
            found[at] = _median(by_size[rows][:, at])
    return found, number, sites


def _median(values: Array) -> Array:
    """The median of each column, [column]."""
    ordered, middle = np.sort(values, axis=0), len(values) // 2
    return np.asarray((ordered[middle] + ordered[(len(values) - 1) // 2]) / 2)


@dataclass(frozen=True, slots=True)
class RankedRun:
    """How a run's bandwidth (GB/s) ranks among healthy runs of its class at one size; rank 1 is the fastest.

    ``runs`` counts the other runs, ``names`` are the names of their tables. ``gpus`` and ``adapters`` describe the
    hardware of these runs in words.
    """

    collective: str
    nodes: int
    gpus_per_node: int
    gpus: str
    adapters: str
    bytes: int
    rank: int
    runs: int
    low_gbs: float
    high_gbs: float
    own_gbs: float
    names: tuple[str, ...]


def ranked(curve: ComparedCurve, time_us: Array, curves: Sequence[PublicCurve]) -> RankedRun | None:
    """The rank at the largest size that enough runs of the class have; None if there is no such size.

    ``time_us``: the run's times at the curve's sizes, us.
    """
    those = matching(curve, curves, ClassNearness.same_class)
    values = [each.log_at(curve.bytes, each.time_us, grows=True) for each in those]
    for at in range(len(curve.bytes) - 1, -1, -1):
        of_runs: dict[tuple[str, str, int], list[float]] = defaultdict(list)
        for each, value in zip(those, values, strict=True):
            if not math.isnan(value[at]):
                of_runs[each.name].append(float(value[at]))
        if len(of_runs) < LEAST_RUNS:
            continue
        ranks = curve.nodes * curve.gpus_per_node
        one = CostOperation[curve.collective]
        size = float(curve.bytes[at])
        gbs = [float(bus_gbs(one, size, math.exp(median(each)), ranks)) for each in of_runs.values()]
        own_gbs = float(bus_gbs(one, size, float(time_us[at]), ranks))
        there = {each.name: each for each in those if each.name in of_runs}.values()
        return RankedRun(
            collective=curve.collective,
            nodes=curve.nodes,
            gpus_per_node=curve.gpus_per_node,
            gpus=" or ".join(sorted({each.gpu for each in there if each.gpu})),
            adapters=_adapters(there, curve.machine),
            bytes=int(size),
            rank=1 + sum(each > own_gbs for each in gbs),
            runs=len(gbs),
            low_gbs=min(gbs),
            high_gbs=max(gbs),
            own_gbs=own_gbs,
            names=tuple(sorted({each.table for each in there})),
        )
    return None


def _adapters(those: Iterable[PublicCurve], machine: MachineClass) -> str:
    """A text about the adapters of a node: their number and speed if all runs agree, else the rate of all adapters
    together.
    """
    if not machine.node_gbs:
        return ""
    named = {(each.adapters, each.adapter_gbps) for each in those if each.adapters and each.adapter_gbps}
    if len(named) == 1:
        ((count, gbps),) = named
        return f"{count} x {gbps:.0f}G"
    rates = {count * gbps / 8 for count, gbps in named if count and gbps}
    return f"{rates.pop() if len(rates) == 1 else machine.node_gbs:.0f} GB/s of adapters"


def _near(one: float, other: float) -> bool:
    return one == other or (min(one, other) > 0 and abs(math.log(one / other)) <= _ALIKE)
