"""Reads what the launch of one of NCCL's kernels shows about its call: channels, threads, and whether it is a tree.

A kernel's name may differ from what it runs: kernels are built for Tree or Ring with LL, but also run all other
combinations of the same collective (best_kernel, src/device/generate.py, v2.19.4-1 to v2.30.7-1). Each block is one
channel.
"""

from functools import lru_cache

from tuner.base.errors import BadInput
from tuner.base.expressions import expression
from tuner.base.names import Collective, DataType, by_name
from tuner.jobs.traces.calls import ExecutedCall
from tuner.scenario.logs import choice

_KERNEL = expression(r"nccl(?:Dev)?Kernel_([A-Za-z]+)")
_NAMED = expression(r"ncclDevKernel_[A-Za-z]+_\w*?(TREE|RING)_LL")
_SYMMETRIC = expression(r"nccl\w*?Sym\w*")
SYMMETRIC = "a symmetric kernel ran, for buffers that are registered as windows"
# Sends and receives are launched with whatever else is in a group.
_POINT_TO_POINT = "SendRecv"


def is_of_nccl(name: str) -> bool:
    """Whether a kernel belongs to NCCL."""
    return _KERNEL.search(name) is not None or _SYMMETRIC.match(name) is not None


def executed(name: str, collective: Collective | None, channels: int, threads: int) -> ExecutedCall:
    """What the launch of a kernel shows about its call, if it was launched for a single call."""
    if _KERNEL.search(name) is None and _SYMMETRIC.match(name):
        return ExecutedCall(not_alone=SYMMETRIC)
    named = _NAMED.search(name)
    # AllGather and Broadcast have one kernel for everything; of the others AllReduce alone has trees.
    is_tree = named[1] == "TREE" if named and collective is Collective.AllReduce else None
    return ExecutedCall(channels=channels, threads=threads, is_tree=is_tree)


# ProcessGroupNCCL.cpp; the other names are NCCL's except for case and underscores.
COALESCED = {
    "allreduce_coalesced": Collective.AllReduce,
    "allgather_into_tensor_coalesced": Collective.AllGather,
    "all_gather_into_tensor_coalesced": Collective.AllGather,
    "reduce_scatter_tensor_coalesced": Collective.ReduceScatter,
}
_NAMES = {
    "_broadcast_oop": Collective.Broadcast,
    "_reduce_oop": Collective.Reduce,
    "_allgather_base": Collective.AllGather,
    "_all_gather_base": Collective.AllGather,
    "all_gather_into_tensor": Collective.AllGather,
    "_reduce_scatter_base": Collective.ReduceScatter,
    "reduce_scatter_tensor": Collective.ReduceScatter,
    "all_reduce_barrier": Collective.AllReduce,
    **COALESCED,
}


def collective(name: str) -> Collective | None:
    """The collective of a kernel; None if NCCL has no tuning for it."""
    return _NAMES[name] if name in _NAMES else choice.collective(name)


@lru_cache(maxsize=64)  # dumps name the same few a million times
def dtype(name: str) -> DataType | None:
    """The data type with a name of PyTorch (getNcclDataType, c10::toString) or of NCCL; None for an unknown name."""
    try:
        return by_name(DataType, name, "type")
    except BadInput:
        return None
