"""One kind of call: what the rules of the selection look at besides the cell."""

from functools import cached_property

import numpy as np

from tuner.base.dataclass import dataclass
from tuner.base.names import Buffers, Collective, DataType, Op
from tuner.base.numerics import FloatArray, IntArray, SizeArray, log2i_array
from tuner.base.windows import SYMMETRIC, Sides, Windows

# Sums that scale: ncclDevPreMulSum for floats, ncclDevSumPostDiv for integers.
SCALING_OPS = (Op.avg,)
FP8 = (DataType.float8e4m3, DataType.float8e5m2)


@dataclass(frozen=True, slots=True)
class Request:
    """A collective on a type with an operation; ``pipelined`` is NCCL's numPipeOps.

    ``preset_channels`` is what old releases fix for operations together before they pick; 0 is nothing. ``in_place``:
    what is received replaces what is sent, as nccl-tests' in-place columns have it.
    """

    collective: Collective
    dtype: DataType
    op: Op
    pipelined: int = 1
    buffers: Buffers = Buffers.plain
    preset_channels: int = 0
    in_place: bool = False
    windows: Windows = SYMMETRIC  # of buffers in windows

    @property
    def title(self) -> str:
        """In words, for headings: ``AllReduce, float32 sum``."""
        op = "" if self.moves_only else f" {self.op.name}"
        buffers = "" if self.buffers is Buffers.plain else f", {self.buffers.name} buffers{self.windows.words}"
        return f"{self.collective.name}, {self.dtype.name}{op}{buffers}{', in place' if self.in_place else ''}"

    @property
    def symmetric(self) -> Sides:
        """Buffers in symmetric windows, if the communicator makes them."""
        return self.windows.symmetric if self.buffers is Buffers.window else Sides.none

    @property
    def moves_only(self) -> bool:
        """AllGather and Broadcast reduce nothing; NCCL runs them on bytes."""
        return self.collective in (Collective.AllGather, Collective.Broadcast)

    @property
    def device_dtype(self) -> DataType:
        """The type that the device sees: bytes where the collective only moves them."""
        return DataType.int8 if self.moves_only else self.dtype

    @property
    def scales(self) -> bool:
        """Whether the operation multiplies by a factor, as the average does."""
        return not self.moves_only and self.op in SCALING_OPS

    def traffic_per_byte(self, ranks: int) -> int:
        """Bytes a rank moves per byte of its count. Source: ncclFuncTrafficPerByte, src/enqueue.cc, v2.28.9-1."""
        if self.collective is Collective.AllReduce:
            return 2
        return ranks if self.spreads else 1

    @property
    def spreads(self) -> bool:
        """Whether nBytes is the count of all ranks together (AllGather, ReduceScatter)."""
        return self.collective in (Collective.AllGather, Collective.ReduceScatter)

    def parts(self, ranks: int) -> int:
        """Number of counts that nBytes holds: one of each rank where it is of all ranks together."""
        return ranks if self.spreads else 1

    def unit_bytes(self, ranks: int) -> int:
        """What the nBytes of such calls are multiples of, one element in each part."""
        return self.dtype.size_bytes * self.parts(ranks)


def ring_steps(collective: Collective, ranks: int) -> int:
    """Steps of a ring for a collective (nsteps)."""
    if collective is Collective.AllReduce:
        return 2 * (ranks - 1)
    return ranks - 1 if collective in (Collective.AllGather, Collective.ReduceScatter) else ranks


class MessageSizes:
    """An array of nBytes with what several rules derive from it, computed once."""

    def __init__(self, nbytes: SizeArray) -> None:
        self.nbytes = nbytes

    @cached_property
    def as_float(self) -> FloatArray:
        """``nbytes`` as float32, [size]."""
        return self.nbytes.astype(np.float32)

    @cached_property
    def log_of_64_bytes(self) -> IntArray:
        """log2(nBytes / 64), [size], -1 below 64 bytes."""
        return log2i_array(self.nbytes >> np.uint64(6))
