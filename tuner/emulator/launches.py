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
    """How a work's elements are divided between its channels."""

    ranges = "ranges"  # each channel has one range of the elements
    turns = "turns"  # all channels go through all elements together, one chunk after the other in turn


@dataclass(frozen=True, slots=True)
class ProxyOperation:
    """What the proxy gets for a channel's network connections (``struct ncclProxyOp``).

    A step is one slot of a connection's buffer. A chunk has ``chunk_steps`` steps and is sent in slices of
    ``slice_steps`` steps.
    """

    pattern: str  # ncclPattern_t without its prefix, such as "RingTwice"
    steps: int  # nsteps, for the whole call on this channel
    chunk_steps: int
    slice_steps: int
    chunk_bytes: int
    step_bytes: int  # nbytes: the most bytes of the connection's buffer that one slice uses
    slice_bytes: int | None = field(default=None, metadata=OPTIONAL)  # None in releases that do not tell the proxies
    loop_bytes: int | None = field(default=None, metadata=OPTIONAL)  # bytes of a loop, for all channels that share it
    loop_offset_bytes: int | None = field(default=None, metadata=OPTIONAL)
    channel_bytes: int | None = field(default=None, metadata=OPTIONAL)  # bytes of this channel's range
    registered: bool = False  # reg: the adapter reads and writes the user's own buffers


@dataclass(frozen=True, slots=True)
class ChannelShare:
    """One channel's part of a work.

    If channels have ranges, the part is ``count`` elements from ``offset`` on. If channels take turns, ``count`` and
    ``offset`` describe the whole work, and the channel with number ``turn`` among ``n`` channels does the chunks turn,
    turn + n, turn + 2n ...
    """

    channel: int
    turn: int  # the channel's number among the work's channels, from 0
    offset: int  # in elements
    count: int  # in elements
    chunk: int  # the most elements that a block moves at once; the device shortens the chunks of the last loop
    last_chunk: int | None = field(metadata=OPTIONAL)  # in elements; 0 if the device computes it; None from 2.22 on
    proxy: ProxyOperation


@dataclass(frozen=True, slots=True)
class Work:
    """One collective as the blocks of its kernel read it."""

    place: int  # index of the call in its group; 0 for a call by itself
    collective: Collective
    dtype: DataType  # the type that the device sees
    op: Op
    algorithm: Algorithm
    protocol: Protocol
    function: int | None  # number in the device's table of functions; None if the symbols do not tell it
    count: int  # elements of all channels together
    warps: int  # number of warps of a block that work on it
    root: int
    one_node: bool
    direct: int  # flags of direct access to the buffers of peers (CollNetDirect)
    sharing: Sharing
    shares: tuple[ChannelShare, ...]  # one for each channel
    function_name: str = ""  # symbol of the device function, without what C++ adds to it
    one_rank_per_node: bool = False
    # For whom the user's own buffers are registered: "peers" (GPUs of the node), "switch" (NVLS), "network" (adapters)
    registered_for: tuple[str, ...] = ()
    # RegUsed, by which the device learns about it
    registered_flag: int = field(default=0, metadata=json_form(omitted=True))
    op_argument: int = 0  # redOpArg, the argument of the operation, as the bits that the device reads
    # Size to a multiple of which the device rounds the last chunks of NVLS on one node, if it is not told them
    nvls_alignment_bytes: int = field(default=16384, metadata=json_form(omitted=True))

    @property
    def channels(self) -> tuple[int, ...]:
        """The channels that have a share, in ascending order."""
        return tuple(share.channel for share in self.shares)


@dataclass(frozen=True, slots=True)
class SymmetricWork:
    """One collective as the blocks of a symmetric kernel read it.

    ``first_block`` and the following blocks, ``blocks`` in all, do it together, except for blocks that have their own
    part of it. Both fields are None in 2.27, where all blocks do the only call.
    """

    place: int  # index of the call in its group
    collective: Collective
    dtype: DataType  # as the device sees it
    op: Op
    count: int  # elements; of one rank for AllGather and ReduceScatter
    root: int
    first_block: int | None = field(default=None, metadata=OPTIONAL)  # sChannelId
    blocks: int | None = field(default=None, metadata=OPTIONAL)  # nChannels
    op_argument: int = 0  # redOpArg for averages


@dataclass(frozen=True, slots=True)
class BlockPart:
    """One block's part of a call: ``count`` elements from ``offset`` on; ``work`` is an index into the works."""

    work: int
    offset: int
    count: int


@dataclass(frozen=True, slots=True)
class SymmetricBlock:
    """The end of a block's part of the calls.

    The part ends in the work ``last_work``, after the fraction (``end_fraction`` + 1) / 65536 of that work.
    """

    last_work: int  # workHi
    end_fraction: int  # fracHi
    parts: tuple[BlockPart, ...]


@dataclass(frozen=True, slots=True)
class SymmetricLaunch:
    """The arguments of a symmetric kernel. In 2.27 they do not say which block does what."""

    kernel: str  # NCCL's name, such as "AllReduce_RSxLD_AGxST"
    works: tuple[SymmetricWork, ...]  # in the order in which the kernel has them
    blocks: tuple[SymmetricBlock, ...] = ()


@dataclass(frozen=True, slots=True)
class LaunchedKernel:
    """One launched kernel: its symbol without parameters ("ncclDevKernel_AllReduce_Sum_f32_RING_LL"), grid, block and
    works."""

    name: str
    channels: tuple[int, ...]  # one block for each, in ascending order
    threads: int
    works: tuple[Work, ...]  # in the order in which the kernel has them; empty for a symmetric kernel
    symmetric: SymmetricLaunch | None = field(default=None, metadata=OPTIONAL)


@dataclass(frozen=True, slots=True)
class Launch:
    """The kernels of one call, or of one group of calls."""

    kernels: tuple[LaunchedKernel, ...]
    buffer_bytes: tuple[int, int, int]  # buffer of a connection, by protocol: LL, LL128, Simple
    steps: int  # slots of a connection's buffer, NCCL_STEPS
