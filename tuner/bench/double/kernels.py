"""The kernels of :mod:`tuner.bench.gpu.kernels` in NumPy; tests hold their arithmetic to the source.

Shapes: all arrays are [element]; they are numbers of elements (of no unit), their values and their bits.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.base.names import Op
from tuner.bench.double.contents import Bits, Formula, Indices, looked_at

_U64 = np.uint64
_BYTES = {
    "signed char": 1,
    "unsigned char": 1,
    "unsigned short": 2,
    "int": 4,
    "unsigned int": 4,
    "float": 4,
    "long long": 8,
    "unsigned long long": 8,
    "double": 8,
}
_FLOATS = {"float": np.float32, "double": np.float64}
_BFLOAT16_BIAS = 127


@dataclass(frozen=True, slots=True)
class Compiled:
    """What a source is compiled with (``-DK_...``)."""

    type: str
    op: Op
    span: int
    signed: bool
    factor: int
    half: bool
    bias: int

    @classmethod
    def of(cls, options: Sequence[str]) -> "Compiled":
        """KeyError where a definition is missing."""
        defined: Mapping[str, str] = dict(re.fullmatch(r"-D(\w+)=(.*)", option).groups() for option in options)  # type: ignore[union-attr,misc]
        numbers = {name: int(defined[name]) for name in defined if name != "K_TYPE"}
        return cls(
            defined["K_TYPE"],
            Op(numbers["K_OP"]),
            numbers["K_SPAN"],
            bool(numbers["K_SIGNED"]),
            numbers["K_FACTOR"],
            bool(numbers["K_HALF"]),
            numbers["K_BIAS"],
        )

    @property
    def element_bytes(self) -> int:
        """Of K_TYPE."""
        return _BYTES[self.type]

    def value(self, numbers: Indices, rank: Indices | int, seed: int) -> NDArray[np.int64]:
        """What a rank sends, [element]; ``rank`` may be one of each element, too."""
        start = _mixed(np.asarray(seed, _U64) * _U64(0x9E3779B97F4A7C15) + np.asarray(rank, _U64))
        random = _mixed(start + numbers)
        if self.op is Op.prod:
            return np.where(random & _U64(1), self.factor, 1).astype(np.int64)
        drawn: NDArray[np.int64] = (random % _U64(2 * self.span + 1)).astype(np.int64)
        return drawn - (self.span if self.signed else 0)

    def encoded(self, values: NDArray[np.int64]) -> Bits:
        """As bits of K_TYPE, [element]."""
        if self.half and self.bias == _BFLOAT16_BIAS:
            return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        if self.half:
            return values.astype(np.float16).view(np.uint16)
        if self.type in _FLOATS:
            return values.astype(_FLOATS[self.type]).view(f"u{self.element_bytes}")
        return values.astype(f"u{self.element_bytes}")


@dataclass(frozen=True, slots=True)
class Sent:
    """A buffer that the kernel ``fill`` has filled."""

    compiled: Compiled
    rank: int
    seed: int

    def at(self, numbers: Indices) -> Bits:
        """What the rank sends, [element]."""
        with np.errstate(over="ignore"):
            return self.compiled.encoded(self.compiled.value(numbers, self.rank, self.seed))


@dataclass(frozen=True, slots=True)
class Expected:
    """What the kernel ``check`` is told to find."""

    count: int
    first: int
    ranks: int
    per_rank: int
    seed: int


@lru_cache(maxsize=32)
def expected(compiled: Compiled, what: Expected) -> Bits:
    """The elements that are looked at, as ``check`` computes them, [element]."""
    numbers = looked_at(what.count) + _U64(what.first)
    with np.errstate(over="ignore"):
        if what.per_rank:
            size = _U64(what.per_rank)
            return compiled.encoded(compiled.value(numbers % size, numbers // size, what.seed))
        total: Any = compiled.value(numbers, 0, what.seed)
        together: Any = {Op.sum: np.add, Op.prod: np.multiply, Op.max: np.maximum, Op.min: np.minimum}[compiled.op]
        for rank in range(1, what.ranks):
            total = together(total, compiled.value(numbers, rank, what.seed))
        return compiled.encoded(total)


def wrong(compiled: Compiled, what: Expected, found: Formula) -> int:
    """How many of the elements that are looked at are not as expected."""
    return int(np.count_nonzero(found.at(looked_at(what.count)) != expected(compiled, what)))


def _mixed(x: Any) -> Any:
    x = x ^ (x >> _U64(30))
    x = x * _U64(0xBF58476D1CE4E5B9)
    x = x ^ (x >> _U64(27))
    x = x * _U64(0x94D049BB133111EB)
    return x ^ (x >> _U64(31))
