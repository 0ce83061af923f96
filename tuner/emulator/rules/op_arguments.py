"""What an operation is done with on the device (redOpArg): masks of extremes, factors and divisors of averages."""

import struct
from collections.abc import Callable
from math import frexp, ldexp

from tuner.base.names import DataType, Op
from tuner.base.numerics import f32
from tuner.base.registry import Registry
from tuner.emulator import nccl_source as nccl
from tuner.emulator.request import Request

SIGNED = (DataType.int8, DataType.int32, DataType.int64)
INTEGERS = tuple(DataType)[:6]
SHORT_FLOATS = {  # bits of the exponent and of the mantissa
    DataType.float16: (5, 10),
    DataType.bfloat16: (8, 7),
    DataType.float8e4m3: (4, 3),
    DataType.float8e5m2: (5, 2),
}
RULES: Registry[Callable[[Request, int], int]] = Registry()


@RULES(nccl.HOST_TO_DEV_RED_OP(since="2.18.1"))
def divisors(request: Request, ranks: int) -> int:
    """Averages of integers divide by the ranks, those of floats multiply by a factor; nothing else has an argument."""
    if request.moves_only or request.op is not Op.avg:
        return 0
    return ranks if request.dtype in INTEGERS else factor_bits(request.dtype, ranks)


@RULES(nccl.HOST_TO_DEV_RED_OP(since="2.19.3"))
def divisors_and_masks(request: Request, ranks: int) -> int:
    """Arguments as of :func:`divisors`; extremes have a mask that makes minimum and maximum one operation on
    unsigned numbers.
    """
    if request.moves_only or request.op not in (Op.max, Op.min):
        return divisors(request, ranks)
    every = (1 << 8 * request.dtype.size_bytes) - 1
    sign = every ^ every >> 1 if request.dtype in SIGNED else 0
    return sign ^ (every if request.op is Op.max else 0)


@RULES(nccl.HOST_TO_DEV_RED_OP(since="2.24.3"), nccl.HOST_TO_DEV_RED_OP_MOVED(since="2.31.2"))
def signed_divisors_and_masks(request: Request, ranks: int) -> int:
    """Arguments as of :func:`divisors_and_masks`; the last bit of a divisor says whether integers are signed."""
    if not request.moves_only and request.op is Op.avg and request.dtype in INTEGERS:
        return ranks << 1 | (request.dtype in SIGNED)
    return divisors_and_masks(request, ranks)


def factor_bits(dtype: DataType, ranks: int) -> int:
    """The bits of one over so many ranks as a float of this type, rounded to a float32 first where that is shorter."""
    if dtype is DataType.float64:
        return int.from_bytes(struct.pack("<d", 1.0 / ranks), "little")
    factor = float(f32(1.0 / ranks))
    if dtype is DataType.float32:
        return int.from_bytes(struct.pack("<f", factor), "little")
    return _short_bits(factor, *SHORT_FLOATS[dtype])


def _short_bits(value: float, exponent_bits: int, mantissa_bits: int) -> int:
    """A positive number of at most 1, rounded to the nearest, of two to the even one."""
    bias = (1 << exponent_bits - 1) - 1
    exponent = max(frexp(value)[1] - 1, 1 - bias)
    units = round(ldexp(value, mantissa_bits - exponent))
    # What is rounded up to a power of two carries into the exponent; without a leading bit it is subnormal.
    return (exponent + bias - 1 << mantissa_bits) + units
