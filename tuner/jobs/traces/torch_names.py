"""What PyTorch calls collectives and types, in its profiler's traces and its Flight Recorder's dumps."""

from functools import lru_cache

from tuner.base.errors import BadInput
from tuner.base.names import Collective, DataType, by_name
from tuner.scenario.logs import choice

# ProcessGroupNCCL.cpp; the other names are NCCL's but for case and underscores.
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
    """None for what NCCL has no tuning for."""
    return _NAMES[name] if name in _NAMES else choice.collective(name)


@lru_cache(maxsize=64)  # dumps name the same few a million times
def dtype(name: str) -> DataType | None:
    """The type by PyTorch's name (getNcclDataType, c10::toString), or NCCL's own as other writers have it."""
    try:
        return by_name(DataType, name, "type")
    except BadInput:
        return None
