"""Features of calls, on which their times depend. The emulator computes them; one fit may use calls of many
communicators."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tuner.base.dataclass import dataclass
from tuner.base.names import ALGO_PROTOS, AlgoProto, Algorithm, Collective, Protocol
from tuner.base.numerics import SizeArray, distinct
from tuner.emulator.communicator import Comm
from tuner.emulator.request import Request
from tuner.emulator.selection import Picks, Selection

Array = NDArray[np.float64]
Ints = NDArray[np.int64]
Numbers: TypeAlias = Any  # an array or one number; with a union, mypy would check every sum of two for impossible cases
PROTOCOLS = len(Protocol)  # counting the members of an enumeration is slow
Which: TypeAlias = NDArray[np.bool_] | NDArray[np.intp]
# Networks between nodes whose software sends messages in ways of its own, as ``Comm.network`` names them. The first is
# NCCL's own over InfiniBand and RoCE, and stands for others, too.
NETWORKS = ("IB", "libfabric", "gpudirect-tcpx")


@dataclass(frozen=True, eq=False)  # no slots, so that a fit can ask for computed values thousands of times
class Features:
    """Calls as arrays of one length, one element per call, or single numbers where all calls are equal.

    ``intra_gbs`` and ``inter_gbs`` are the bandwidth of the algorithm's graph inside and between nodes, all channels
    together; ``heads`` is the number of GPUs of a node at which NVLS begins. ``nccl_latency_us`` and ``nccl_gbs`` are
    NCCL's own numbers, for algorithms without a form, and ``nccl_us`` is NCCL's predicted time, NaN for what NCCL would
    not run. ``adapter_us`` is the part of ``nccl_us`` that the latency of the topology's adapters adds, and
    ``adapter_share`` is the share of ``adapter_us`` that calls really take. ``byte_reduced``: 1 if elements of one byte
    are reduced, else 0. ``network`` is an index into ``NETWORKS``.
    """

    collective: Numbers
    algorithm: Numbers
    protocol: Numbers
    bytes: Numbers
    ranks: Numbers
    nodes: Numbers
    channels: Numbers
    threads: Numbers
    intra_gbs: Numbers
    inter_gbs: Numbers
    heads: Numbers
    nccl_latency_us: Numbers
    nccl_gbs: Numbers
    nccl_us: Numbers
    byte_reduced: Numbers
    adapter_us: Numbers = 0.0
    adapter_share: Numbers = 1.0
    network: Numbers = 0

    def __len__(self) -> int:
        return len(self.bytes)

    def __getitem__(self, which: Which) -> "Features":
        """The calls that a mask or indices choose."""
        values = (getattr(self, field.name) for field in fields(self))
        return Features(*(value[which] if isinstance(value, np.ndarray) else value for value in values))

    def of_each(self, name: str) -> Any:
        """A field as an array, [call]."""
        value = getattr(self, name)
        return value if isinstance(value, np.ndarray) else np.full(len(self), value)

    @property
    def algo_proto(self) -> Numbers:
        """Algorithm and protocol as one number, an index into ``ALGO_PROTOS``."""
        return self.algorithm * PROTOCOLS + self.protocol

    @cached_property
    def by_algo_proto(self) -> "tuple[Part, ...]":
        """The calls of each algorithm and protocol, with a mask that selects them; empty if all calls have the same."""
        combinations = self.algo_proto
        numbers = distinct(combinations) if isinstance(combinations, np.ndarray) else []
        if len(numbers) < 2:
            return ()
        masks = [combinations == number for number in numbers]
        return tuple((number, which, self[which]) for number, which in zip(numbers, masks, strict=True))

    @cached_property
    def networks(self) -> Numbers:
        """``network`` as one number where all calls have the same."""
        numbers = np.unique(self.network).tolist()
        return numbers[0] if len(numbers) == 1 else self.network

    @cached_property
    def steps(self) -> Numbers:
        """The steps of a ring: a chain through all ranks, and once more to spread what was reduced."""
        return (self.ranks - 1) * where(self.collective == Collective.AllReduce, 2, 1)

    @cached_property
    def passes(self) -> Numbers:
        """The number of times that a rank sends one rank's part of the data; a broadcast or a reduction sends all parts
        once."""
        rooted = (self.collective == Collective.Broadcast) | (self.collective == Collective.Reduce)
        return where(rooted, self.ranks, self.steps)

    @cached_property
    def step_bytes(self) -> Numbers:
        """The bytes of a ring's step."""
        return self.bytes / self.ranks


Part: TypeAlias = tuple[int, NDArray[np.bool_], Features]  # the first element is an index into ``ALGO_PROTOS``


def _of_either(
    of_array: Callable[[Any], Any], of_number: Callable[[float], float], says: str
) -> Callable[[Numbers], Numbers]:
    """A function of arrays, or of single numbers at a tenth of the cost; both agree except for the last bit."""

    def chosen(numbers: Numbers) -> Numbers:
        return of_array(numbers) if isinstance(numbers, np.ndarray) else of_number(numbers)

    chosen.__doc__ = f"{says} of numbers: for each element of an array, or for one number."
    return chosen


exp = _of_either(np.exp, math.exp, "Exponential")
log = _of_either(np.log, math.log, "Natural logarithm")
log2 = _of_either(np.log2, math.log2, "Logarithm to base 2")
sqrt = _of_either(np.sqrt, math.sqrt, "Square root")
ceil = _of_either(np.ceil, math.ceil, "Least integer not below")


def where(condition: Numbers, one: Numbers, other: Numbers) -> Numbers:
    """``one`` where the condition holds, else ``other``: for arrays, or for numbers at a fiftieth of the cost."""
    if isinstance(condition, np.ndarray):
        return np.where(condition, one, other)
    return one if condition else other


def least(one: Numbers, other: Numbers) -> Numbers:
    """The lesser of two arrays or numbers."""
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return np.minimum(one, other)
    return one if one < other else other


def most(one: Numbers, other: Numbers) -> Numbers:
    """The greater of two arrays or numbers."""
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return np.maximum(one, other)
    return one if one > other else other


def concatenated(parts: Iterable[Features]) -> Features:
    """The calls of several features, in their order."""
    several = list(parts)
    return Features(*(np.concatenate([each.of_each(field.name) for each in several]) for field in fields(Features)))


def of_algo_proto(selection: Selection, request: Request, sizes: SizeArray, algo_proto: AlgoProto) -> Features:
    """Features of calls with a forced algorithm and protocol. ``sizes`` are NCCL's nBytes."""
    nccl_us = selection.combination_us(request, sizes, algo_proto).astype(np.float64)
    channels, threads = selection.launched(request, sizes, algo_proto)
    return FixedFeatures(selection, request, algo_proto).calls(sizes.astype(np.float64), channels, threads, nccl_us)


def of_picks(selection: Selection, request: Request, picks: Picks) -> Features:
    """Features of the calls of ``picks``, in their order."""
    places, parts = zip(*by_combination(selection, request, picks), strict=True)
    return concatenated(parts)[np.argsort(np.concatenate(places))]


def by_combination(selection: Selection, request: Request, picks: Picks) -> Iterator[tuple[NDArray[np.intp], Features]]:
    """Yields, for each algorithm and protocol, the places of its calls among the picks, numbers [call], and their
    features.
    """
    combinations = picks.combinations
    for number in distinct(combinations):
        which = np.flatnonzero(combinations == number)
        nccl_us = picks.time_us[which]
        # A pick that something else made may have no time, or that of another size
        if selection.communicator.nodes > 1:
            nccl_us = selection.combination_us(request, picks.bytes[which], ALGO_PROTOS[number])
        kind = FixedFeatures(selection, request, ALGO_PROTOS[number])
        numbers = picks.bytes[which], picks.channels[which], picks.threads[which], nccl_us
        yield which, kind.calls(*(each.astype(np.float64) for each in numbers))


class FixedFeatures:
    """Features that all calls of one algorithm and protocol on a communicator have in common."""

    def __init__(self, selection: Selection, request: Request, algo_proto: AlgoProto) -> None:
        communicator, tables = selection.communicator, selection.tables
        graph, point = communicator.graphs[algo_proto[0]], (request.collective, *algo_proto)
        self.algo_proto = algo_proto
        self._called = int(request.collective), int(algo_proto[0]), int(algo_proto[1])
        self._ranks = float(communicator.ranks), float(communicator.nodes)
        self._numbers = (
            float(graph.bw_intra_gbs * graph.channels),
            float(graph.bw_inter_gbs * graph.channels),
            float(communicator.nvls_heads),
            float(tables.latency_us[point]),
            float(tables.bandwidth_gbs[point]),
        )
        self._byte_reduced = float(not request.moves_only and request.dtype.size_bytes == 1)
        self._adapter = _adapter_us(communicator, request.collective, algo_proto), _adapter_share(communicator)
        self._network = NETWORKS.index(communicator.network) if communicator.network in NETWORKS else 0
        one = self._made(1.0, 1.0, 1.0, 1.0)
        self._derived = {"by_algo_proto": (), "steps": one.steps, "passes": one.passes}

    def calls(self, nbytes: Numbers, channels: Numbers, threads: Numbers, nccl_us: Numbers) -> Features:
        """Calls with these sizes and launches; ``nccl_us`` is NCCL's prediction."""
        # A call with less than one element per rank is launched on no channel; it is timed like the smallest call.
        made = self._made(nbytes, most(channels, 1.0), threads, nccl_us)
        vars(made).update(self._derived, step_bytes=nbytes / self._ranks[0])
        return made

    def _made(self, nbytes: Numbers, channels: Numbers, threads: Numbers, nccl_us: Numbers) -> Features:
        launch = channels, threads
        numbers = *self._numbers, nccl_us, self._byte_reduced, *self._adapter, self._network
        return Features(*self._called, nbytes, *self._ranks, *launch, *numbers)


# What EFA's adapters really add, of the 75 or 35 us per step in AWS's topologies. Adapters of the first generation,
# beside Ampere GPUs, add all of it (p4d: NCCL predicts 175 us for a small AllReduce on two nodes, 180 us were
# measured); later ones add a small part (p5: 175 us predicted, 67 to 73 us measured).
ADAPTER_SHARES = {"ampere": 1.0}
LATER_ADAPTER_SHARE = 0.2


def _adapter_us(communicator: Comm, collective: Collective, algo_proto: AlgoProto) -> float:
    """NCCL's latency for adapters in a call's steps between nodes, twice for Simple, which flushes."""
    algorithm, protocol = algo_proto
    nodes, each_us = communicator.nodes, communicator.graphs[algorithm].latency_inter_us
    if nodes < 2 or not each_us:
        return 0.0
    steps = (nodes - 1) * (2 if collective is Collective.AllReduce else 1)
    if algorithm in (Algorithm.Tree, Algorithm.NVLSTree):
        steps = 2 * int(math.log2(nodes))
    return float(each_us * steps * (2 if protocol is Protocol.Simple else 1))


def _adapter_share(communicator: Comm) -> float:
    return ADAPTER_SHARES.get(communicator.generation, LATER_ADAPTER_SHARE)
