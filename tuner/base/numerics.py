"""The arithmetic of the model: C's steps in float, double, int and size_t, written once.

NCCL mixes ``float`` variables with ``double`` literals; a bit-exact copy has to round at the same places. Rules say
``f32(x)`` where C stores into a float and ``f64(literal)`` where C promotes to double; NumPy scalars do the rest
(``f32 * f32`` is float, ``f32 * f64`` is double).
"""

from typing import Any, TypeAlias, TypeGuard

import numpy as np
from numpy.typing import NDArray

f32 = np.float32
f64 = np.float64

# The time that NCCL gives a combination that it never picks by itself but runs on request. PAT with several ranks per
# node has FLT_MAX / 2 (ncclTuningPatModelSim, src/tuning/pat.cc, v2.31.2-1), which is above this limit; no real time
# is.
NEVER_US = 1e38

Float: TypeAlias = np.float32
FloatArray: TypeAlias = NDArray[np.float32]
SizeArray: TypeAlias = NDArray[np.uint64]
IntArray: TypeAlias = NDArray[np.int64]


def is_time(time_us: float | None) -> TypeGuard[float]:
    """Whether the value is a real time: neither None nor the huge value that marks what NCCL never picks by itself."""
    return time_us is not None and time_us < NEVER_US


def log2i(value: int) -> int:
    """Floor of log2, and -1 for 0: NCCL's bit scan."""
    return value.bit_length() - 1


def log2i_array(values: SizeArray) -> IntArray:
    """:func:`log2i` of each number of an array.

    It is read from the exponent of the number as a double. That is exact for at most 53 bits, so for numbers from 2**32
    on the upper 32 bits are used.
    """
    if values.shape == (1,):  # for one value, this takes a sixth of the time
        return np.array([int(values[0]).bit_length() - 1])
    high = values >> np.uint64(32)
    wide = high > 0
    exponent = (np.where(wide, high, values).astype(f64).view(np.int64) >> 52) - 1023
    return np.where(values == 0, -1, exponent + 32 * wide)


def distinct(numbers: NDArray[np.integer[Any]]) -> list[int]:
    """The different numbers of an array [number], in ascending order. np.unique imports masked arrays to do it."""
    return sorted(set(numbers.tolist()))


def powf(base: Float, exponent: int) -> Float:
    """C's ``powf``; like glibc, it computes in double and rounds once."""
    return f32(f64(base) ** f64(exponent))


def int32(value: int) -> int:
    """``value`` as a C int stores it: an overflow wraps around."""
    return (value + 2**31) % 2**32 - 2**31


def as_size_t(value: int) -> int:
    """The size_t that a C int becomes: negative numbers become huge."""
    return value % 2**64


def ceil_div(value: Any, divisor: Any) -> Any:
    """Integer division of ints or arrays, rounded up."""
    return (value + divisor - 1) // divisor


def parse_long(text: str) -> int:
    """C's ``strtoll(text, NULL, 0)``: optional sign, 0x and 0 prefixes, stops at the first other character, else 0."""
    text = text.lstrip(" \t\n\v\f\r")
    sign = -1 if text.startswith("-") else 1
    text = text[1:] if text[:1] in ("+", "-") else text
    if text[:2].lower() == "0x" and text[2:3] and text[2] in "0123456789abcdefABCDEF":
        digits, base, text = "0123456789abcdef", 16, text[2:]
    elif text.startswith("0"):
        digits, base = "01234567", 8
    else:
        digits, base = "0123456789", 10
    length = next((i for i, char in enumerate(text) if char.lower() not in digits), len(text))
    significant = text[:length].lstrip("0")
    if len(significant) > 64:  # beyond 64 bits, and perhaps with more digits than Python reads
        return sign * 2**64
    return sign * int(significant, base) if significant else 0


def shortest(value: Float) -> float:
    """The shortest decimal that reads back to the same float32, as a Python float."""
    return float(np.format_float_positional(value, unique=True))


def mirrored(value: int, power_of_two: int) -> int:
    """The lowest log2(``power_of_two``) bits of a number, in reverse order.

    NCCL has two functions that do this: mirrorBits for adapters, reverseBits for channels.
    """
    bits = power_of_two.bit_length() - 1
    return sum(1 << (bits - 1 - bit) for bit in range(bits) if value >> bit & 1)
