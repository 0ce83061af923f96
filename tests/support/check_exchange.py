"""A group of sends and receives: the emulator's kernels and works compared with what libnccl launches."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

from tuner.base.names import SYMMETRIC as SYMMETRIC_WINDOWS
from tuner.base.names import Buffers, Collective, Protocol, Windows
from tuner.emulator.group import Operation
from tuner.emulator.p2p.mixed import MixedKernel, plan
from tuner.emulator.p2p.plan import ExchangeCall
from tuner.emulator.p2p.records import ExchangeKernel, P2pContext, P2pWork, Transfer, WorkElement
from tuner.emulator.request import COPY_ENGINES
from tuner.emulator.selection import Selection
from tuner.oracle.api import Oracle
from tuner.oracle.launches import IssuedCall, RecordedKernel
from tuner.oracle.messages import SYMMETRIC, Batch

P2P, BROADCASTS = "P2p", "Bcast"  # works of sends and receives, and of broadcasts from several roots
SENDS = 1  # ncclWorkP2pTypeSend


def compare(
    p2p_context: P2pContext,
    oracle: Oracle,
    calls: Sequence[ExchangeCall],
    buffers: Buffers = Buffers.plain,
    windows: Windows = SYMMETRIC_WINDOWS,
) -> dict[str, tuple[object, object]]:
    """What differs between the emulator and libnccl: values of both by where they are; empty where all is equal."""
    return compare_mixed(None, p2p_context, oracle, ((), calls), (buffers, windows))


def compare_mixed(
    selection: Selection | None,
    p2p_context: P2pContext,
    oracle: Oracle,
    group: tuple[Sequence[Operation], Sequence[ExchangeCall]],
    on: tuple[Buffers, Windows] = (Buffers.plain, SYMMETRIC_WINDOWS),
) -> dict[str, tuple[object, object]]:
    """The same of collectives, which need a ``selection``, and of sends and receives, which libnccl gets in turn."""
    (operations, calls), (buffers, windows) = group, on
    planned, _ = plan(selection or Selection(p2p_context.communicator), p2p_context, operations, calls, buffers)
    own = [kernel for kernel in planned if kernel.path is not COPY_ENGINES]
    issued = [IssuedCall(call.function, call.dtype, call.count, call.root) for call in calls]
    collectives = [_issued(operation, p2p_context.communicator.ranks) for operation in operations]
    together = [*chain.from_iterable(zip(collectives, issued, strict=False))]
    together += collectives[len(issued) :] + issued[len(collectives) :]
    launched = oracle.launch_in_full(together, p2p_context.order.rank, buffers, windows).kernels
    values: dict[str, tuple[object, object]] = {"kernels": (len(own), len(launched))}
    bases = _bases(launched)
    for number, (mine, theirs) in enumerate(zip(own, launched, strict=False)):
        both = dict(_of_emulator(mine)), dict(_of_libnccl(theirs, bases))
        for key in both[0].keys() | both[1].keys():
            values[f"kernel {number} {key}"] = both[0].get(key), both[1].get(key)
    return {where: both for where, both in values.items() if both[0] != both[1]}


def _issued(operation: Operation, ranks: int) -> IssuedCall:
    request = operation.request
    count = operation.bytes // request.unit_bytes(ranks)
    return IssuedCall(request.collective, request.dtype, count, operation.root, request.op, request.in_place)


def _of_emulator(kernel: MixedKernel) -> Iterator[tuple[str, object]]:
    yield "function", kernel.name if kernel.path is None else kernel.path.kernel
    yield "grid", len(kernel.channels)
    yield "block", kernel.threads
    yield "collectives on", sorted(channel for task in kernel.tasks for channel in task.channels)
    for channel, parts in ({} if kernel.broadcasts is None else kernel.broadcasts.parts).items():
        yield f"broadcasts {channel}", [(each.ring_depth, each.bytes, each.chunk_bytes) for each in parts]
    if kernel.exchange is not None:
        for channel, batches in kernel.exchange.batches.items():
            yield f"channel {channel}", [[_own(kernel.exchange, item) for item in batch] for batch in batches]


def _own(kernel: ExchangeKernel, item: int | WorkElement) -> object:
    if isinstance(item, WorkElement):
        transfer = item.transfer
        place = item.place, item.warps, item.first_warp, item.groups
        return (*place, transfer.message.peer, transfer.message.sends, *_chunk(transfer))
    work: P2pWork = kernel.works[item]
    ends = tuple(None if each is None else (len(each.channels), *_chunk(each)) for each in (work.send, work.receive))
    return work.first_channel, work.send_rank, work.receive_rank, ends


def _chunk(transfer: Transfer) -> tuple[int, int, bool, int]:
    return transfer.bytes, transfer.offset_bytes, transfer.protocol is Protocol.LL, transfer.chunk_bytes


def _of_libnccl(kernel: RecordedKernel, bases: Mapping[bool, int]) -> Iterator[tuple[str, object]]:
    yield "function", _function(kernel.name)
    yield "grid", kernel.channels
    yield "block", kernel.threads
    channels = kernel.works.channels.items()
    of_collectives = [(channel, batch) for channel, batches in channels for batch in batches if batch.type != P2P]
    collectives = [(channel, batch.works) for channel, batch in of_collectives if batch.type != BROADCASTS]
    yield "collectives on", sorted(channel for channel, works in collectives for _ in works)
    for channel, batches in channels:
        if several := [work for batch in batches if batch.type == BROADCASTS for work in batch.works]:
            yield f"broadcasts {channel}", [(each["ringDepth"], each["bytes"], each["chunkSize"]) for each in several]
        if own := [batch for batch in batches if batch.type == P2P]:
            yield f"channel {channel}", [[_read(work, bases) for work in batch] for batch in _joined(own)]


def _function(name: str) -> str:
    """The name of a kernel, of a symmetric one its own: AllReduce_LL of ncclSymkDevKernel_AllReduce_LL_sum_f32."""
    symmetric = next((name.removeprefix(prefix) for prefix in SYMMETRIC if name.startswith(prefix)), None)
    if symmetric is None:
        return name.partition("(")[0]
    own = symmetric.removesuffix("_profile")
    return own if own.startswith(Collective.AllGather.name) else own.rsplit("_", 2)[0]


def _joined(batches: Sequence[Batch]) -> list[list[dict[str, int]]]:
    """Works that are done together: NCCL extends a batch that reaches too far."""
    joined: list[list[dict[str, int]]] = []
    extended = False
    for batch in batches:
        joined = [*joined[:-1], joined[-1] + list(batch.works)] if extended else [*joined, list(batch.works)]
        extended = batch.extends
    return joined


def _read(work: Mapping[str, int], bases: Mapping[bool, int]) -> object:
    if "p2pType" in work:
        sends = work["p2pType"] == SENDS
        size, address = (work[f"{of}Hi32"] << 32 | work[f"{of}Lo32"] for of in ("count", "buff"))
        place = work["place"], work["nWarps"], work["warpStart"], work["ngroups"]
        low_latency = work["proto"] & 3 == Protocol.LL
        return *place, work["peer"], sends, size, address - bases[sends], low_latency, work["chunkSize"]
    ends = []
    for sends, of in ((True, "send"), (False, "recv")):
        channels = work[f"n{of.capitalize()}Channels"]
        chunk = _from_eight_bits(work[f"{of}ChunkSize_u32fp8"])
        end = channels, work[f"{of}Bytes"], work[f"{of}Addr"] - bases[sends], bool(work[f"{of}ProtoLL"]), chunk
        ends.append(end if channels else None)
    return work["channelBase"], work["sendRank"], work["recvRank"], tuple(ends)


def _from_eight_bits(value: int) -> int:
    exponent, digits = value >> 3, value & 7
    return (digits | 8) << (exponent - 1) if exponent else digits


def _bases(kernels: Sequence[RecordedKernel]) -> Mapping[bool, int]:
    """Where the buffers begin: at the lowest address of any message."""
    addresses: dict[bool, list[int]] = {True: [], False: []}
    for kernel in kernels:
        for batches in kernel.works.channels.values():
            for work in (work for batch in batches for work in batch.works):
                if "p2pType" in work:
                    addresses[work["p2pType"] == SENDS].append(work["buffHi32"] << 32 | work["buffLo32"])
                for sends, of in ((True, "send"), (False, "recv")):
                    if work.get(f"n{of.capitalize()}Channels"):
                        addresses[sends].append(work[f"{of}Addr"])
    return {sends: min(each, default=0) for sends, each in addresses.items()}
