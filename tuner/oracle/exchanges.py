"""Groups with sends and receives: the kernels that NCCL launches, and the works it hands them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from tuner.base.names import Buffers, Collective, DataType, Op, PeerCall
from tuner.oracle import messages
from tuner.oracle.answers import Reader
from tuner.oracle.messages import KernelWorks

OWN_FUNCTION: dict[Collective | PeerCall, str] = {
    PeerCall.AllToAll: "ncclAlltoAll",
    PeerCall.Scatter: "ncclScatter",
    PeerCall.Gather: "ncclGather",
}


@dataclass(frozen=True, slots=True)
class IssuedCall:
    """One call of a rank: ``count`` elements as NCCL's function takes them, ``root`` the root, or the peer."""

    function: Collective | PeerCall
    dtype: DataType
    count: int
    root: int = 0
    op: Op = Op.sum
    in_place: bool = False


PLAIN = messages.Registration()


@dataclass(frozen=True, slots=True)
class LaunchedKernel:
    """One launch: its name in the library's symbol table, its grid and block, and what it is handed."""

    name: str
    channels: int
    threads: int
    works: KernelWorks


def request(
    calls: Sequence[IssuedCall],
    ranks: int,
    rank: int = 0,
    in_full: bool = False,
    buffers: messages.Registration = PLAIN,
) -> messages.Group:
    """What the child is asked; ``in_full``: for the works of collectives and the operations of the network, too."""
    peers, captured = _peers(calls, ranks) | {rank}, buffers.kind == Buffers.graph
    return messages.Group(tuple(map(_message, calls)), peers, in_full, rank, buffers, captured)


def read(reader: Reader, answer: messages.GroupAnswer) -> tuple[LaunchedKernel, ...]:
    """The kernels of a group."""
    kernels = np.frombuffer(answer.kernels, reader.kernel)
    return tuple(
        LaunchedKernel(reader.kernel_name(kernel), int(kernel["grid_x"]), int(kernel["block_x"]), works)
        for kernel, works in zip(kernels, answer.works, strict=True)
    )


def _message(call: IssuedCall) -> messages.Call:
    return messages.Call(int(call.function), int(call.dtype), int(call.op), call.count, call.root, int(call.in_place))


def _peers(calls: Iterable[IssuedCall], ranks: int) -> frozenset[int]:
    peers: set[int] = set()
    for call in calls:
        if isinstance(call.function, PeerCall):
            peers |= {call.root} if call.function in (PeerCall.Send, PeerCall.Recv) else set(range(ranks))
    return frozenset(peers)
