"""What nccl-tests calls programs, types and operations."""

import re

from tuner.base.names import Collective, DataType, Op

NAME = "nccl-tests"

PROGRAMS = {
    "all_reduce_perf": Collective.AllReduce,
    "all_gather_perf": Collective.AllGather,
    "reduce_scatter_perf": Collective.ReduceScatter,
    "broadcast_perf": Collective.Broadcast,
    "reduce_perf": Collective.Reduce,
}
TYPES = {
    "int8": DataType.int8,
    "char": DataType.int8,
    "uint8": DataType.uint8,
    "int32": DataType.int32,
    "int": DataType.int32,
    "uint32": DataType.uint32,
    "int64": DataType.int64,
    "uint64": DataType.uint64,
    "half": DataType.float16,
    "float": DataType.float32,
    "double": DataType.float64,
    "bfloat16": DataType.bfloat16,
    "f8e4m3": DataType.float8e4m3,
    "fp8_e4m3": DataType.float8e4m3,
    "f8e5m2": DataType.float8e5m2,
    "fp8_e5m2": DataType.float8e5m2,
}
OPS = {op.name: op for op in Op} | {"none": Op.sum}  # of collectives that do not reduce
WITHOUT_OP = ("mulsum",)  # a scaling that NCCL has no fixed operation for
_PROGRAM = re.compile(r"\b([a-z_]+_perf)\b")


def program(text: str) -> str | None:
    """The name of a program of nccl-tests in a text, None where there is none."""
    match = _PROGRAM.search(text)
    return match[1] if match else None
