"""What a call's time depends on, from the emulator: an element a call, so that many communicators go into one fit."""

from collections.abc import Iterable, Iterator
from dataclasses import fields
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tuner.base.dataclass import dataclass
from tuner.base.names import ALGO_PROTOS, AlgoProto, Collective, Protocol
from tuner.base.numerics import SizeArray
from tuner.emulator.request import Request
from tuner.emulator.selection import Picks, Selection

Array = NDArray[np.float64]
Ints = NDArray[np.int64]
Which: TypeAlias = NDArray[np.bool_] | NDArray[np.intp]


@dataclass(frozen=True, eq=False)  # without slots, for what a fit asks thousands of times
class Features:
    """Arrays of one length, an element a call.

    ``intra_gbs`` and ``inter_gbs`` are the bandwidth of the algorithm's graph inside and between nodes, all channels
    together; ``heads`` the GPUs of a node that NVLS begins at; ``nccl_latency_us`` and ``nccl_gbs`` NCCL's own numbers,
    for what has no form here, and ``nccl_us`` the time that it predicts, NaN for what it would not run.
    ``byte_reduced``: 1 where elements of one byte are reduced, else 0.
    """

    collective: Ints
    algorithm: Ints
    protocol: Ints
    bytes: Array
    ranks: Array
    nodes: Array
    channels: Array
    threads: Array
    intra_gbs: Array
    inter_gbs: Array
    heads: Array
    nccl_latency_us: Array
    nccl_gbs: Array
    nccl_us: Array
    byte_reduced: Array

    def __len__(self) -> int:
        return len(self.bytes)

    def __getitem__(self, which: Which) -> "Features":
        """The elements that a mask or indices choose."""
        return Features(*(getattr(self, field.name)[which] for field in fields(self)))

    @property
    def algo_proto(self) -> Ints:
        """Algorithm and protocol as one number, an index into ``ALGO_PROTOS``."""
        return self.algorithm * len(Protocol) + self.protocol

    @property
    def by_algo_proto(self) -> "tuple[Part, ...]":
        """The elements of each algorithm and protocol, with the mask that chooses them, one boolean a call."""
        if self._parts is not None:
            return self._parts
        return ((ALGO_PROTOS[int(self.algo_proto[0])], np.ones(len(self), np.bool_), self),)

    @cached_property
    def _parts(self) -> "tuple[Part, ...] | None":
        """None where all are of one algorithm and protocol: nothing is copied then."""
        combinations = self.algo_proto
        numbers = np.unique(combinations).tolist()
        if len(numbers) == 1:
            return None
        masks = [combinations == number for number in numbers]
        return tuple((ALGO_PROTOS[number], which, self[which]) for number, which in zip(numbers, masks, strict=True))

    @cached_property
    def steps(self) -> Array:
        """The steps of a ring: a chain through all ranks, and once more to spread what was reduced."""
        return (self.ranks - 1) * np.where(self.collective == Collective.AllReduce, 2, 1)

    @cached_property
    def passes(self) -> Array:
        """How often a rank sends a rank's part: a broadcast or a reduction sends all parts once."""
        rooted = (self.collective == Collective.Broadcast) | (self.collective == Collective.Reduce)
        return np.where(rooted, self.ranks, self.steps)

    @cached_property
    def step_bytes(self) -> Array:
        """The bytes of a ring's step."""
        return self.bytes / self.ranks


Part: TypeAlias = tuple[AlgoProto, NDArray[np.bool_], Features]


def concatenated(parts: Iterable[Features]) -> Features:
    """The elements of several, in their order."""
    several = list(parts)
    return Features(*(np.concatenate([getattr(each, field.name) for each in several]) for field in fields(Features)))


@dataclass(frozen=True, slots=True, eq=False)
class _Launches:
    """Sizes in NCCL's nBytes, and what each is launched with."""

    bytes: SizeArray
    channels: Ints
    threads: Ints
    nccl_us: Array


def of_algo_proto(selection: Selection, request: Request, sizes: SizeArray, algo_proto: AlgoProto) -> Features:
    """Of calls that an algorithm and protocol are forced on. ``sizes`` are NCCL's nBytes."""
    nccl_us = selection.combination_us(request, sizes, algo_proto).astype(np.float64)
    launches = _Launches(sizes, *selection.launched(request, sizes, algo_proto), nccl_us)
    return _features(selection, request, algo_proto, launches)


def of_picks(selection: Selection, request: Request, picks: Picks) -> Features:
    """Of the calls that NCCL picked for, in their order."""
    places, parts = zip(*by_combination(selection, request, picks), strict=True)
    return concatenated(parts)[np.argsort(np.concatenate(places))]


def by_combination(selection: Selection, request: Request, picks: Picks) -> Iterator[tuple[NDArray[np.intp], Features]]:
    """The same for each algorithm and protocol alone, with the numbers of its calls' places among the picks, [call]."""
    combinations = picks.combinations
    for number in np.flatnonzero(np.bincount(combinations)).tolist():
        where = np.flatnonzero(combinations == number)
        nccl_us = picks.time_us[where]
        if selection.communicator.nodes > 1:  # a pick that someone else made may have no time, or another size's
            nccl_us = selection.combination_us(request, picks.bytes[where], ALGO_PROTOS[number])
        launches = _Launches(
            picks.bytes[where], picks.channels[where], picks.threads[where], nccl_us.astype(np.float64)
        )
        yield where, _features(selection, request, ALGO_PROTOS[number], launches)


def _features(selection: Selection, request: Request, algo_proto: AlgoProto, launches: _Launches) -> Features:
    communicator, tables = selection.communicator, selection.tables
    graph, point = communicator.graphs[algo_proto[0]], (request.collective, *algo_proto)
    byte_reduced = not request.moves_only and request.dtype.size_bytes == 1
    length = len(launches.bytes)

    def integers(number: int) -> Ints:
        return np.full(length, number, np.int64)

    def numbers(number: float) -> Array:
        return np.full(length, float(number))

    return Features(
        collective=integers(request.collective),
        algorithm=integers(algo_proto[0]),
        protocol=integers(algo_proto[1]),
        bytes=launches.bytes.astype(np.float64),
        ranks=numbers(communicator.ranks),
        nodes=numbers(communicator.nodes),
        # A call of less than an element a rank is launched on no channel: timed as the smallest call.
        channels=np.maximum(launches.channels, 1).astype(np.float64),
        threads=launches.threads.astype(np.float64),
        intra_gbs=numbers(graph.bw_intra_gbs * graph.channels),
        inter_gbs=numbers(graph.bw_inter_gbs * graph.channels),
        heads=numbers(communicator.nvls_heads),
        nccl_latency_us=numbers(tables.latency_us[point]),
        nccl_gbs=numbers(tables.bandwidth_gbs[point]),
        nccl_us=launches.nccl_us,
        byte_reduced=numbers(byte_reduced),
    )
