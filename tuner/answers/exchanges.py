"""Sends and receives, and calls that NCCL makes from sends and receives: channels, protocols, chunks, kernels.

NCCL has no time model for such calls: only measured times say how long an AllToAll takes.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field, replace

import numpy as np
from numpy.typing import NDArray

from tuner.answers import calibrated
from tuner.answers.calibrated import CalibrationUsed, NoCalibration, TimesWanted
from tuner.base import breakpoints
from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput
from tuner.base.names import SYMMETRIC, Buffers, DataType, PeerCall, Protocol, Sides, Windows
from tuner.base.nouns import TimeInterval
from tuner.base.numerics import SizeArray
from tuner.base.records import json_form
from tuner.base.spelling import option
from tuner.emulator.p2p.plan import POINT_TO_POINT, ExchangeCall, plan, written
from tuner.emulator.p2p.records import ExchangeKernel, P2pContext, Transfer
from tuner.emulator.rules import symmetric
from tuner.emulator.selection import Selection
from tuner.scenario import Scenario
from tuner.scenario.p2p import p2p_context
from tuner.scenario.resolved import ResolvedScenario


@dataclass(frozen=True, slots=True)
class TransferAnswer:
    """One message of a kernel or, up to 2.21, one chunk of a message.

    A message is divided into parts of ``part_bytes``; only the last part may be smaller. ``channels`` has the channel
    of each part, in the order of the parts. ``chunk_bytes`` is how many bytes go through a buffer at once. ``network``:
    the message goes over the network, not over peer-to-peer or shared memory. ``round`` numbers the rounds in which a
    rank exchanges with its peers; None up to 2.21.
    """

    sends: bool
    peer: int
    bytes: int
    protocol: Protocol
    network: bool
    channels: tuple[int, ...]
    part_bytes: int
    chunk_bytes: int
    round: int | None


@dataclass(frozen=True, slots=True)
class ExchangeKernelAnswer:
    """One launch: its function, blocks of its grid, threads of a block, and its messages in NCCL's order."""

    function: str
    channels: int
    threads: int
    transfers: tuple[TransferAnswer, ...]


@dataclass(frozen=True, slots=True)
class ExchangeLaunch:
    """Launch of a rank; ``p2p_channels`` and ``p2p_channels_per_peer`` are numbers that NCCL's log also shows.

    ``copy_engines``: copy engines move all data, and no kernel runs.
    """

    rank: int
    p2p_channels: int
    p2p_channels_per_peer: int
    kernels: tuple[ExchangeKernelAnswer, ...]
    copy_engines: bool | None = field(default=None, metadata=json_form(optional=True))


@dataclass(frozen=True, slots=True)
class ExchangeAnswer:
    """One size of a call that NCCL makes from sends and receives.

    ``bytes`` is the size of a message; for AllToAll, what each rank sends in all, including its own part, as nccl-tests
    counts; for Gather and Scatter, what the root receives or sends in all. ``calibrated`` is None if nothing was
    measured: NCCL itself has no time model. ``busbw_gbs`` is the bus bandwidth at ``calibrated.time_us``, GB/s, without
    a rank's own part. ``measured``: whether such calls were measured on one node, if there is one node here, or between
    nodes, if there are several.
    """

    collective: str
    bytes: int
    calibrated: TimeInterval | None = field(default=None, metadata=json_form(optional=True))
    measured: bool | None = field(default=None, metadata=json_form(optional=True))
    busbw_gbs: float | None = field(default=None, metadata=json_form(optional=True))
    calibration: CalibrationUsed | None = field(default=None, metadata=json_form(optional=True))
    no_time: str | None = field(default=None, metadata=json_form(optional=True))  # why there is none
    launch: ExchangeLaunch | None = field(default=None, metadata=json_form(optional=True))


@dataclass(frozen=True, slots=True)
class ExchangeQuery:
    """A call that one rank makes, at each of ``sizes`` in bytes; ``root`` is the call's root, or the peer of a send or
    receive.

    Channels, protocols and chunks do not depend on ``buffers``. But in a CUDA graph a kernel holds more calls, and copy
    engines may execute calls whose buffers are in windows.
    """

    function: PeerCall
    sizes: Sequence[int]
    dtype: DataType
    rank: int
    root: int
    buffers: Buffers = Buffers.plain
    windows: Windows = SYMMETRIC  # of buffers in windows


def of_rank(
    function: PeerCall, sizes: Sequence[int], dtype: DataType, rank: int | None = None, peer: int | None = None
) -> ExchangeQuery:
    """The call ``function`` that ``rank`` makes; the default is rank 0. ``peer`` is the other rank of a send or receive
    (default: rank 0, for rank 0 itself rank 1), and the root of any other call (default: rank 0).
    """
    own = rank or 0
    if peer is None:
        peer = (1 if own == 0 else 0) if function in POINT_TO_POINT else 0
    return ExchangeQuery(function, sizes, dtype, own, peer)


def uneven(parts: Sequence[int], ranks: int, dtype: DataType, rank: int) -> list[ExchangeCall]:
    """The sends and receives of a rank in an AllToAll with unequal parts, as users write it: in one group.

    ``parts``: the bytes that every rank sends to each rank, [ranks], or that each rank sends to each rank, [ranks *
    ranks], first all of the first rank. Empty parts make no call. BadInput for another number of parts, for a part that
    is not a whole number of elements, and if there is no such rank.
    """
    if len(parts) not in (ranks, ranks * ranks):
        raise BadInput(
            f"{len(parts)} parts do not fit {ranks} ranks: give {ranks} parts, or {ranks * ranks} row by row"
        )
    if odd := [part for part in parts if part < 0 or part % dtype.size_bytes]:
        raise BadInput(
            f"a part of {odd[0]} bytes is not a whole number of {dtype.name} elements, which have {dtype.size_bytes} "
            "bytes"
        )
    if not 0 <= rank < ranks:
        raise BadInput(f"rank {rank} is not in the communicator: valid are 0 to {ranks - 1}")
    whole = len(parts) == ranks * ranks
    sent = parts[rank * ranks : (rank + 1) * ranks] if whole else parts
    received = parts[rank::ranks] if whole else [parts[rank]] * ranks
    return [
        ExchangeCall(function, dtype, size // dtype.size_bytes, peer)
        for peer in range(ranks)
        for function, size in zip(POINT_TO_POINT, (sent[peer], received[peer]), strict=True)
        if size
    ]


def answers(
    scenario: Scenario, asked: ExchangeQuery, calibration: str | None = None, must_time: bool = False
) -> list[ExchangeAnswer]:
    """The launches of each size, with times for AllToAll if these were measured.

    If the scenario's graphs are from a dump, answers for AllToAll have no launch, because a dump does not contain the
    links. BadInput for what is not emulated. With ``must_time``, BadInput also if no calibration answers.
    BadCalibration if a calibration is invalid.
    """
    timed = _timed(scenario, asked, calibration, must_time)
    if asked.function not in POINT_TO_POINT:
        timed = [_if_any(each, asked.dtype.size_bytes * scenario.ranks, asked.dtype) for each in timed]
    if scenario.graphs is not None and asked.function is PeerCall.AllToAll:
        return timed
    where = p2p_context(ResolvedScenario(scenario), asked.rank)
    Selection(where.communicator).check_buffers(asked.buffers, asked.windows)
    return [replace(each, launch=_launch(where, asked, each.bytes)) for each in timed]


def _timed(scenario: Scenario, asked: ExchangeQuery, calibration: str | None, must_time: bool) -> list[ExchangeAnswer]:
    name = asked.function.name
    if asked.buffers is not Buffers.plain:
        why = f"times were measured on plain buffers, not on {asked.buffers.name} ones"
        if calibration is not None or must_time:
            raise BadInput(f"{why}; valid: without {option('time')}, {option('calibration')}")
    elif asked.function is PeerCall.AllToAll:
        try:
            return all_to_all(scenario, asked.sizes, calibration)
        except BadInput as error:
            if calibration is not None or must_time or scenario.graphs is not None:
                raise
            why = str(error)
    else:
        why = f"NCCL has no time model of {name}, and no times of it were measured"
        if calibration is not None or must_time:
            raise BadInput(f"{why}; valid: without {option('time')}, {option('calibration')}")
    return [ExchangeAnswer(name, size, no_time=why) for size in asked.sizes]


def _if_any(answer: ExchangeAnswer, least_bytes: int, dtype: DataType) -> ExchangeAnswer:
    """The answer, but without a time if each rank would send less than one element, because nothing is launched
    then.
    """
    if answer.bytes >= least_bytes:
        return answer
    why = f"nothing is launched for less than one {dtype.name} per rank, which is {least_bytes} bytes"
    return ExchangeAnswer(answer.collective, answer.bytes, no_time=why)


def all_to_all(scenario: Scenario, sizes: Sequence[int], calibration: str | None = None) -> list[ExchangeAnswer]:
    """Times that AllToAll of ``sizes`` bytes takes on the scenario's communicator, estimated from measured times.

    BadInput if no calibration with measured times of AllToAll answers. BadCalibration if a file is not a calibration.
    """
    selection = Selection(scenario.communicator())
    model = calibrated.answering(TimesWanted(beside_nccl=False, calibration=calibration), scenario, selection)
    if isinstance(model, NoCalibration):
        raise BadInput(model.reason)
    said, ranks = model.all_to_all(sizes), selection.communicator.ranks
    used = CalibrationUsed(
        model.calibration.name,
        model.reason,
        model.calibration.launch,
        tuple(kind.value for kind in said.carried_over),
        () if said.measured.all() else (PeerCall.AllToAll.name,),
    )
    timed = []
    for at, size in enumerate(sizes):
        time_us, low_us, high_us = (float(f"{each[at]:.6g}") for each in (said.time_us, said.low_us, said.high_us))
        busbw_gbs = size * (ranks - 1) / ranks / time_us / 1e3
        time = TimeInterval(time_us, low_us, high_us, said.why(at))
        timed.append(ExchangeAnswer(PeerCall.AllToAll.name, size, time, bool(said.measured[at]), busbw_gbs, used))
    return timed


def calls_of(asked: ExchangeQuery, size: int, where: P2pContext) -> list[ExchangeCall]:
    """The calls that the rank makes: the call to NCCL's function or, in releases that lack the function, the sends and
    receives that users write instead.
    """
    parts = asked.dtype.size_bytes * (1 if asked.function in POINT_TO_POINT else where.communicator.ranks)
    return written(where, ExchangeCall(asked.function, asked.dtype, size // parts, asked.root))


def _launch(where: P2pContext, asked: ExchangeQuery, size: int) -> ExchangeLaunch:
    calls = calls_of(asked, size, where)
    if _are_copied(where, asked, calls):
        return replace(launched(where, ()), copy_engines=True)
    return launched(where, plan(where, calls, asked.buffers is Buffers.graph))


def check_not_copied(where: P2pContext, asked: ExchangeQuery, calls: Sequence[ExchangeCall]) -> None:
    """Raises BadInput if copy engines would execute a call of a group. ``calls`` are the group's calls, from
    :func:`calls_of`.
    """
    if _are_copied(where, asked, calls):
        raise BadInput(
            f"copy engines execute {asked.function.name}, which cannot be answered in a group: use 'nccl-tuner pick' "
            "with only that call"
        )


def _are_copied(where: P2pContext, asked: ExchangeQuery, calls: Sequence[ExchangeCall]) -> bool:
    """Whether copy engines execute the calls instead of kernels."""
    moves = asked.function not in POINT_TO_POINT and any(call.count for call in calls)
    sides = asked.windows.symmetric if asked.buffers is Buffers.window else Sides.none
    return moves and symmetric.sends_are_copied(where.communicator, asked.function, sides)


def launched(where: P2pContext, kernels: Sequence[ExchangeKernel]) -> ExchangeLaunch:
    """The answer for a rank's launch, made from the emulator's ``kernels``."""
    name, channels = where.communicator.rules.device_functions.EXCHANGES, where.channels
    answers = (_kernel(name, each) for each in kernels)
    return ExchangeLaunch(where.order.rank, channels.channels, channels.per_peer, tuple(answers))


def _kernel(name: str, kernel: ExchangeKernel) -> ExchangeKernelAnswer:
    return ExchangeKernelAnswer(name, len(kernel.channels), kernel.threads, tuple(transfers_of(kernel)))


def transfers_of(kernel: ExchangeKernel) -> list[TransferAnswer]:
    """The messages of a kernel, receives and sends by round, or the chunks channel by channel."""
    return [_transfer(transfer, number) for transfer, number in kernel.transfers]


def _transfer(transfer: Transfer, number: int | None) -> TransferAnswer:
    return TransferAnswer(
        transfer.sends,
        transfer.peer,
        transfer.bytes,
        transfer.protocol,
        transfer.network,
        transfer.channels,
        transfer.part_bytes,
        transfer.chunk_bytes,
        number,
    )


@dataclass(frozen=True, slots=True)
class Way:
    """How a message reaches a peer: within the node, or over the network."""

    network: bool
    channels: int
    protocol: Protocol
    chunk_bytes: int


@dataclass(frozen=True, slots=True)
class CallFootprint:
    """What one call uses on rank 0: number of kernels, channels of the largest kernel, and how its messages reach other
    ranks.

    For a send or receive, two calls are considered, each launched by itself: one message to the nearest rank, and one
    to another node. The numbers are the larger ones of the two calls.
    """

    kernels: int
    channels: int
    ways: tuple[Way, ...]


@dataclass(frozen=True, slots=True)
class WaysAtSize:
    """One size before and after a change; ``bytes`` is the size of a send's or receive's message; for AllToAll, what
    each rank sends in all; for Gather and Scatter, what the root receives or sends in all.
    """

    call: PeerCall
    bytes: int
    before: CallFootprint
    after: CallFootprint


@dataclass(frozen=True, slots=True)
class WaysChange:
    """A range of sizes in which messages travel in another way after a change. NCCL has no time for either way."""

    call: PeerCall
    from_bytes: int
    to_bytes: int
    before: CallFootprint
    after: CallFootprint


class ExchangeSides:
    """A communicator before and after a change. BadInput for what is not emulated."""

    def __init__(self, before: Scenario, after: Scenario) -> None:
        self._sides = tuple(p2p_context(ResolvedScenario(each)) for each in (before, after))

    def at(self, call: PeerCall, size: int) -> WaysAtSize:
        """Compares both sides at one size."""
        before, after = (taken(side, call, size) for side in self._sides)
        return WaysAtSize(call, size, before, after)

    def changes(self, call: PeerCall, low: int, high: int) -> list[WaysChange]:
        """The ranges of sizes, between ``low`` and ``high`` bytes, in which what the ``call`` uses differs between the
        two sides.
        """
        known: dict[tuple[CallFootprint, CallFootprint], int] = {}

        def labels(sizes: SizeArray) -> NDArray[np.generic]:
            both = (self.at(call, int(size)) for size in sizes)
            return np.array([known.setdefault((each.before, each.after), len(known)) for each in both])

        starts = [int(each) for each in breakpoints.find(labels, low, high, steps=0)]
        ends = [*(start - 1 for start in starts[1:]), high]
        both = [self.at(call, start) for start in starts]
        ranges = [WaysChange(call, one.bytes, end, one.before, one.after) for one, end in zip(both, ends, strict=True)]
        return [each for each in ranges if each.before != each.after]


def taken(where: P2pContext, function: PeerCall, size: int) -> CallFootprint:
    """What one call of ``size`` bytes uses."""
    groups = [plan(where, each) for each in _groups(where, function, size)]
    transfers = [each for kernels in groups for kernel in kernels for each, _ in kernel.transfers]
    return CallFootprint(
        max((len(kernels) for kernels in groups), default=0),
        max((len(kernel.channels) for kernels in groups for kernel in kernels), default=0),
        tuple(ways(each for each in transfers if each.peer != where.order.rank)),
    )


def _groups(where: P2pContext, function: PeerCall, size: int) -> Iterator[list[ExchangeCall]]:
    """Yields the groups of calls of rank 0, which is the root. For sends and receives these are one message to the
    nearest rank and one to another node.
    """
    rank = where.order.rank
    if function not in POINT_TO_POINT:
        yield written(where, ExchangeCall(function, DataType.int8, size // where.communicator.ranks, rank))
        return
    ranks_of = where.order.ranks_of
    own = next(node for node in ranks_of if rank in node)
    near = [each for each in own if each != rank][:1]
    far = [node[0] for node in ranks_of if node is not own][:1]
    for peer in near + far:
        yield [ExchangeCall(function, DataType.int8, size, peer)]


def ways(transfers: Iterable[Transfer | TransferAnswer]) -> list[Way]:
    """The distinct ways in which the messages reach their peers. Up to 2.21 ``transfers`` has one element for each
    channel of a message; later releases have one element for all channels of a message.
    """
    seen: dict[tuple[int, bool], list[Transfer | TransferAnswer]] = defaultdict(list)
    for each in transfers:
        seen[each.peer, each.sends].append(each)
    found = (
        Way(
            parts[0].network,
            len({channel for each in parts for channel in each.channels}),
            parts[0].protocol,
            parts[0].chunk_bytes,
        )
        for parts in seen.values()
    )
    return sorted(dict.fromkeys(found), key=lambda way: (way.network, way.channels, way.chunk_bytes))
