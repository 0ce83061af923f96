"""A launch in full, as records: what NCCL writes for its kernels and proxies before it launches.

Counts and offsets of elements are in ``Work.dtype``, the type that the device sees: AllGather and Broadcast move bytes.
Offsets are relative to the start of the count, which is one rank's for AllGather and ReduceScatter.
"""

from dataclasses import field
from enum import Enum

from tuner.base.dataclass import dataclass
from tuner.base.names import Algorithm, Collective, DataType, Op, Protocol
from tuner.base.records import json_form

OPTIONAL = json_form(optional=True)


class Sharing(Enum):
    """Division of a work's count between its channels."""

    ranges = "ranges"  # each channel has one range of the count
    turns = "turns"  # all channels go over the whole count together, a chunk each in turn


@dataclass(frozen=True, slots=True)
class ProxyOperation:
    """What the proxy gets for a channel's network connections (``struct ncclProxyOp``).

    A step is one slot of a connection's buffer; a chunk is ``chunk_steps`` of them and moves in slices of
    ``slice_steps``.
    """

    pattern: str  # ncclPattern_t without its prefix: "RingTwice"
    steps: int  # nsteps, of the whole call on this channel
    chunk_steps: int
    slice_steps: int
    chunk_bytes: int
    step_bytes: int  # nbytes: the most that one slice takes of the connection's buffer
    slice_bytes: int | None = field(default=None, metadata=OPTIONAL)  # None in releases whose proxies are not told
    loop_bytes: int | None = field(default=None, metadata=OPTIONAL)  # of all channels that share a loop
    loop_offset_bytes: int | None = field(default=None, metadata=OPTIONAL)
    channel_bytes: int | None = field(default=None, metadata=OPTIONAL)  # of this channel's range
    registered: bool = False  # reg: it reads and writes the user's own buffers


@dataclass(frozen=True, slots=True)
class ChannelShare:
    """One channel's part of a work.

    If channels have ranges, it is ``count`` elements from ``offset`` on. If they take turns, both describe the whole
    work, and the channel has number ``turn``: it takes the chunks turn, turn + channels, turn + 2 * channels ...
    """

    channel: int
    turn: int  # its number among the work's channels, from 0
    offset: int  # elements
    count: int  # elements
    chunk: int  # elements that a block moves at once, at most; the device shortens those of the last loop
    last_chunk: int | None = field(metadata=OPTIONAL)  # elements; 0 where the device finds it; None from 2.22 on
    proxy: ProxyOperation


@dataclass(frozen=True, slots=True)
class Work:
    """One collective as the blocks of its kernel read it."""

    place: int  # of the call in its group, 0 for a call alone
    collective: Collective
    dtype: DataType  # as the device sees it
    op: Op
    algorithm: Algorithm
    protocol: Protocol
    function: int | None  # its number in the device's table of functions, None if the symbols do not tell
    count: int  # elements of all channels
    warps: int  # of a block that work on it
    root: int
    one_node: bool
    direct: int  # flags of direct access to peers' buffers (CollNetDirect)
    sharing: Sharing
    shares: tuple[ChannelShare, ...]  # by channel
    function_name: str = ""  # the device function's symbol, without what C++ adds to it
    one_rank_per_node: bool = False
    # whom the user's own buffers are registered for: "peers" (GPUs of the node), "switch" (NVLS), "network" (adapters)
    registered_for: tuple[str, ...] = ()
    registered_flag: int = field(default=0, metadata=json_form(omitted=True))  # regUsed, what the device is told of it
    op_argument: int = 0  # redOpArg: what the operation is done with, as the bits that the device reads
    # what the device rounds the last chunks of NVLS on one node up to, where it is not told them
    nvls_alignment_bytes: int = field(default=16384, metadata=json_form(omitted=True))

    @property
    def channels(self) -> tuple[int, ...]:
        """The channels that have a share, ascending."""
        return tuple(share.channel for share in self.shares)


@dataclass(frozen=True, slots=True)
class SymmetricWork:
    """One collective as a symmetric kernel's blocks read it.

    The ``blocks`` from ``first_block`` on do it together, except for blocks that have their own part of it. Both are
    None in 2.27, where all blocks do the only call.
    """

    place: int  # of the call in its group
    collective: Collective
    dtype: DataType  # as the device sees it
    op: Op
    count: int  # elements, of one rank for AllGather and ReduceScatter
    root: int
    first_block: int | None = field(default=None, metadata=OPTIONAL)  # sChannelId
    blocks: int | None = field(default=None, metadata=OPTIONAL)  # nChannels
    op_argument: int = 0  # redOpArg of averages


@dataclass(frozen=True, slots=True)
class BlockPart:
    """One block's part of a call: ``count`` elements from ``offset`` on; ``work`` is an index into the works."""

    work: int
    offset: int
    count: int


@dataclass(frozen=True, slots=True)
class SymmetricBlock:
    """Where a block's part of the calls ends: in which work, and at (``end_fraction`` + 1) / 65536 of it."""

    last_work: int  # workHi
    end_fraction: int  # fracHi
    parts: tuple[BlockPart, ...]


@dataclass(frozen=True, slots=True)
class SymmetricLaunch:
    """Arguments of a symmetric kernel. In 2.27 they do not say which block does what."""

    kernel: str  # NCCL's name, "AllReduce_RSxLD_AGxST"
    works: tuple[SymmetricWork, ...]  # in the order of the kernel
    blocks: tuple[SymmetricBlock, ...] = ()


@dataclass(frozen=True, slots=True)
class LaunchedKernel:
    """One kernel: its symbol without parameters ("ncclDevKernel_AllReduce_Sum_f32_RING_LL"), grid, block and works."""

    name: str
    channels: tuple[int, ...]  # one block each, ascending
    threads: int
    works: tuple[Work, ...]  # in the order of the kernel; none of a symmetric one
    symmetric: SymmetricLaunch | None = field(default=None, metadata=OPTIONAL)


@dataclass(frozen=True, slots=True)
class Launch:
    """Kernels of one call, or of one group of calls."""

    kernels: tuple[LaunchedKernel, ...]
    buffer_bytes: tuple[int, int, int]  # of a connection, by protocol: LL, LL128, Simple
    steps: int  # slots of a connection's buffer, NCCL_STEPS
