"""Compares all of an emulated launch with libnccl's: kernels, work structures, network operations."""

from collections.abc import Container, Iterator, Mapping

from tuner.base.names import Algorithm, DataType, Op
from tuner.emulator.launches import (
    ChannelShare,
    Launch,
    LaunchedKernel,
    ProxyOperation,
    Sharing,
    SymmetricLaunch,
    Work,
)
from tuner.emulator.rules.registered import grain_bytes
from tuner.oracle.launches import LaunchInFull, RecordedKernel
from tuner.oracle.messages import Batch, SymmetricWorks

Both = tuple[object, object]  # the value of the emulator and that of libnccl
Values = dict[str, int | None]
NETWORK_OP = {
    Op.sum: 0,
    Op.prod: 1,
    Op.max: 2,
    Op.min: 3,
    Op.avg: 0,
}  # ncclRedOp_t; for the network, an average is a sum
# nPeers, a hint for the network. Source: calcCollChunking, src/enqueue.cc, v2.28.9-1.
PEERS = {Algorithm.Ring: 1, Algorithm.PAT: 1, Algorithm.Tree: 4, Algorithm.NVLSTree: 4}
GRAIN_BITS = 21  # of chunkGrainsLo: src/include/device.h, v2.28.9-1
NVLS = (Algorithm.NVLS, Algorithm.NVLSTree)
OF_OPERATION = {  # the members of struct ncclProxyOp, by the names that this project uses
    "nsteps": "steps",
    "chunkSteps": "chunk_steps",
    "sliceSteps": "slice_steps",
    "chunkSize": "chunk_bytes",
    "nbytes": "step_bytes",
    "sliceSize": "slice_bytes",
    "loopSize": "loop_bytes",
    "loopOffset": "loop_offset_bytes",
    "channelSize": "channel_bytes",
    "reg": "registered",
}


def compare(ours: Launch, theirs: LaunchInFull) -> dict[str, Both]:
    """Compares everything in a launch: pairs of the emulator's and libnccl's value, by name."""
    values: dict[str, Both] = {"kernels": (len(ours.kernels), len(theirs.kernels))}
    for number, (our, their) in enumerate(zip(ours.kernels, theirs.kernels, strict=False)):
        at = f"kernel {number}"
        values[f"{at}: symbol"] = our.name, their.name.removesuffix("_profile")
        values[f"{at}: blocks"] = len(our.channels), their.channels
        values[f"{at}: threads"] = our.threads, their.threads
        if our.symmetric is not None or their.works.symmetric is not None:
            values.update(_symmetric(at, our.symmetric, their.works.symmetric))
            continue
        values[f"{at}: channels"] = our.channels, tuple(sorted(their.works.channels))
        values.update(_works(at, our, their))
    values.update(_operations(ours, theirs))
    return values


def _symmetric(at: str, our: SymmetricLaunch | None, their: SymmetricWorks | None) -> Iterator[tuple[str, Both]]:
    """Compares the works of a symmetric kernel, and where each block's part of them ends."""
    yield f"{at}: symmetric", (our is not None, their is not None)
    if our is None or their is None:
        return
    yield f"{at}: works", (len(our.works), len(their.works))
    for number, (work, struct) in enumerate(zip(our.works, their.works, strict=False)):
        expected = {
            "nElts": work.count,
            "rootRank": work.root,
            "sChannelId": work.first_block,
            "nChannels": work.blocks,
        }
        if work.op is Op.avg and work.op_argument:
            expected["redOpArg"] = work.op_argument
        expected = {name: value for name, value in expected.items() if value is not None}
        yield f"{at} work {number}", (expected, {name: struct[name] for name in expected})
    ends = [{"workHi": block.last_work, "fracHi": block.end_fraction} for block in our.blocks]
    yield f"{at}: ends", (ends, list(their.ends[: len(ends)]))


def _works(at: str, our: LaunchedKernel, their: RecordedKernel) -> Iterator[tuple[str, Both]]:
    for channel, batches in their.works.channels.items():
        mine = [(work, share) for work in our.works for share in work.shares if share.channel == channel]
        observed = [(batch, struct) for batch in batches for struct in batch.works]
        yield f"{at} channel {channel}: works", (len(mine), len(observed))
        for number, ((work, share), (batch, struct)) in enumerate(zip(mine, observed, strict=False)):
            where = f"{at} channel {channel} work {number}"
            yield f"{where}: function", (work.function, batch.function)
            yield f"{where}: type", ("Reg" if "switch" in work.registered_for else "", batch.type.replace("Coll", ""))
            struct = {name.removeprefix("coll.").removeprefix("elem."): value for name, value in struct.items()}
            expected = _fields(work, share, batch, struct)
            yield where, (expected, {name: struct[name] for name in expected})


def _fields(work: Work, share: ChannelShare, batch: Batch, struct: Mapping[str, int]) -> Values:
    """Expected values of the members that the release's work structure has."""
    common: Values = {"nWarps": work.warps, "root": work.root, "direct": work.direct, "redOpArgIsPtr": 0}
    common["regUsed"] = work.registered_flag
    if "netRegUsed" in struct:
        common["netRegUsed"] = int("network" in work.registered_for)
    if work.op_argument:  # for other operations, the value is whatever was there before
        common["redOpArg"] = work.op_argument
    if "oneNode" in struct:
        common["oneNode"] = int(work.one_node)
    if "isOneRPN" in struct and work.algorithm not in NVLS:  # sic: these are made elsewhere, without it
        common["isOneRPN"] = int(work.one_rank_per_node)
    if "channelLo" in struct:
        return common | {"channelLo": work.channels[0], "channelHi": work.channels[-1]} | _of_ranges(work)
    common["count"] = work.count
    if "lastChunkSize" in struct:
        return common | {"lastChunkSize": share.last_chunk, "bid": share.turn, "nChannels": len(work.shares)}
    common["chunkCount"] = share.chunk
    if work.sharing is Sharing.turns:
        return common | {"bid": share.turn, "nChannels": len(work.shares)}
    return common | {"workCount": share.count, "workOffset": share.offset, "lastChunkCount": share.last_chunk}


def _of_ranges(work: Work) -> Values:
    """Expected values of the structure that all channels of a work share, in releases from 2.22 on."""
    first, last = work.shares[0], work.shares[-1]
    if work.sharing is Sharing.turns:
        return {"collnet.count": work.count, "collnet.chunkCount": first.chunk}
    middle = work.shares[1] if len(work.shares) > 2 else None
    alone = len(work.shares) == 1

    def grains(share: ChannelShare) -> int:
        return share.chunk * work.dtype.size_bytes // grain_bytes(work.protocol, 32) % (1 << GRAIN_BITS)

    return {
        "cbd.countLo": first.count,
        "cbd.countMid": middle.count if middle else 0,
        "cbd.countHi": 0 if alone else last.count,
        "cbd.chunkGrainsLo": grains(first),
        "cbd.chunkGrainsMid": grains(middle) if middle else 0,
        "cbd.chunkGrainsHi": 0 if alone else grains(last),
    }


def _operations(ours: Launch, theirs: LaunchInFull) -> Iterator[tuple[str, Both]]:
    """Compares operations in NCCL's order: kernel by kernel, work by work, and channel by channel."""
    expected = [
        (f"kernel {number} call {work.place} channel {share.channel}", work, share)
        for number, kernel in enumerate(ours.kernels)
        for work in kernel.works
        for share in sorted(work.shares, key=lambda share: share.turn)
        if share.proxy.steps
    ]
    known = frozenset(theirs.operations.dtype.names or ())
    yield "operations", (len(expected), len(theirs.operations))
    for (where, work, share), operation in zip(expected, theirs.operations, strict=False):
        values: dict[str, object] = {
            "channelId": share.channel,
            "pattern": f"ncclPattern{share.proxy.pattern}",
            "protocol": int(work.protocol),
            "dtype": int(work.dtype),
            "root": work.root,
            **_constants(work, known),
            **dict(_numbers(share.proxy, known)),
        }
        read: dict[str, object] = {name: int(operation[name]) for name in values}
        read["pattern"] = theirs.patterns.get(int(operation["pattern"]), int(operation["pattern"]))
        if work.op in NETWORK_OP and work.dtype is not DataType.int8:
            values["redOp"], read["redOp"] = NETWORK_OP[work.op], int(operation["redOp"])
        yield f"{where}: operation", (values, read)


def _constants(work: Work, known: Container[str]) -> dict[str, object]:
    """Expected values of members that only depend on the call and its algorithm."""
    values: dict[str, object] = {
        "coll": int(work.collective),
        "collAPI": int(work.collective),
        "algorithm": int(work.algorithm),
        "nPeers": PEERS.get(work.algorithm, 0),
    }
    return {name: value for name, value in values.items() if name in known}


def _numbers(proxy: ProxyOperation, known: Container[str]) -> Iterator[tuple[str, int]]:
    for name, own in OF_OPERATION.items():
        value = getattr(proxy, own)
        if name in known and value is not None:
            yield name, value % 2**64 if name == "loopOffset" else int(value)
