"""What is in device memory, as formulas of an element's number: data of any size move without being there.

Formulas are compared by looking at all elements where these are few, else at a sample (:func:`looked_at`).

Shapes: all arrays are [element]; they are numbers of elements (of no unit) and elements' bits.
"""

import bisect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tuner.base.names import DataType, Op

MOST_LOOKED_AT = 4096  # of one buffer's elements
MOST_DEEP = 6  # results of results of ...: calls in place, again and again; nobody looks at those
_TYPES: dict[DataType, Any] = {
    DataType.int8: np.int8,
    DataType.uint8: np.uint8,
    DataType.int32: np.int32,
    DataType.uint32: np.uint32,
    DataType.int64: np.int64,
    DataType.uint64: np.uint64,
    DataType.float16: np.float16,
    DataType.float32: np.float32,
    DataType.float64: np.float64,
}
_OPS: dict[Op, Any] = {Op.sum: np.add, Op.prod: np.multiply, Op.max: np.maximum, Op.min: np.minimum}

Indices = NDArray[np.uint64]
Bits = NDArray[Any]  # elements as bits: unsigned integers of the element's size


class Formula(Protocol):
    """Elements of one size, by their numbers."""

    def at(self, numbers: Indices) -> Bits:
        """The bits, [element], of these numbers [element]."""


@lru_cache(maxsize=64)
def looked_at(count: int) -> Indices:
    """Numbers of elements, [element]: all, or of many both ends and others from all over."""
    if count <= MOST_LOOKED_AT:
        return np.arange(count, dtype=np.uint64)
    end, between = MOST_LOOKED_AT // 4, MOST_LOOKED_AT // 2
    spread = np.linspace(end, count - end - 1, between).astype(np.uint64)
    return np.unique(np.concatenate([np.arange(end), spread, np.arange(count - end, count)]).astype(np.uint64))


@dataclass(frozen=True, slots=True)
class Unset:
    """What nobody has written: no data that a measurement makes."""

    element_bytes: int

    def at(self, numbers: Indices) -> Bits:
        """All bits set, [element]."""
        return np.full(len(numbers), -1, f"i{self.element_bytes}").view(f"u{self.element_bytes}")


@dataclass(frozen=True, slots=True)
class Part:
    """Of a formula, from its element ``first`` on."""

    of: Formula
    first: int

    def at(self, numbers: Indices) -> Bits:
        """Those of the whole, [element]."""
        return self.of.at(numbers + np.uint64(self.first))


@dataclass(frozen=True, slots=True)
class Joined:
    """One after the other; ``starts`` are the first elements of each, the first of them 0."""

    parts: tuple[Formula, ...]
    starts: tuple[int, ...]

    def at(self, numbers: Indices) -> Bits:
        """Each of its part, [element]."""
        which = np.searchsorted(np.array(self.starts, np.uint64), numbers, side="right") - 1
        found: Bits | None = None
        for number in np.unique(which):
            here = which == number
            bits = self.parts[number].at(numbers[here] - np.uint64(self.starts[number]))
            found = np.zeros(len(numbers), bits.dtype) if found is None else found
            found[here] = bits
        assert found is not None
        return found


@dataclass(frozen=True, slots=True)
class Altered:
    """The same but for one element."""

    of: Formula
    number: int

    def at(self, numbers: Indices) -> Bits:
        """The lowest bit of one is the other one, [element]."""
        bits = self.of.at(numbers).copy()
        bits[numbers == self.number] ^= 1
        return bits


@dataclass(frozen=True)
class Reduced:
    """All parts reduced by NCCL's operation, in NCCL's type."""

    parts: tuple[Formula, ...]
    dtype: DataType
    op: Op
    _known: list[tuple[bytes, Bits]] = field(default_factory=list, compare=False, repr=False)

    def at(self, numbers: Indices) -> Bits:
        """The bits, [element]. The last answer is kept: every rank has the same result."""
        key = numbers.tobytes()
        if not self._known or self._known[0][0] != key:
            with np.errstate(over="ignore", invalid="ignore"):
                total = _decoded(self.parts[0].at(numbers), self.dtype)
                for part in self.parts[1:]:
                    total = _OPS[self.op](total, _decoded(part.at(numbers), self.dtype))
            self._known[:] = [(key, _encoded(total, self.dtype))]
        return self._known[0][1]


def _decoded(bits: Bits, dtype: DataType) -> NDArray[Any]:
    if dtype is DataType.bfloat16:
        return (bits.astype(np.uint32) << 16).view(np.float32)
    return bits.view(_TYPES[dtype])


def _encoded(values: NDArray[Any], dtype: DataType) -> Bits:
    if dtype is DataType.bfloat16:
        return (values.view(np.uint32) >> 16).astype(np.uint16)
    return values.view(f"u{values.dtype.itemsize}")


@dataclass(order=True)
class _Interval:
    start: int
    end: int
    formula: Formula = field(compare=False)
    element_bytes: int = field(compare=False)


class Contents:
    """Formulas by address."""

    def __init__(self) -> None:
        self._intervals: list[_Interval] = []

    def write(self, start: int, count: int, element_bytes: int, formula: Formula) -> None:
        """``count`` elements from an address on."""
        end = start + count * element_bytes
        self.forget(start, end)
        if end > start:
            bisect.insort(self._intervals, _Interval(start, end, formula, element_bytes))

    def forget(self, start: int, end: int) -> None:
        """What is between two addresses is not known any more."""
        kept: list[_Interval] = []
        for each in self._intervals:
            if each.end <= start or each.start >= end:
                kept.append(each)
                continue
            if each.start < start:
                kept.append(_Interval(each.start, start, each.formula, each.element_bytes))
            if each.end > end:
                rest = Part(each.formula, (end - each.start) // each.element_bytes)
                kept.append(_Interval(end, each.end, rest, each.element_bytes))
        self._intervals = kept

    def read(self, start: int, count: int, element_bytes: int) -> Formula:
        """What ``count`` elements are now, whatever is written later."""
        end, at = start + count * element_bytes, start
        parts: list[Formula] = []
        starts: list[int] = []

        def add(formula: Formula, until: int) -> None:
            nonlocal at
            parts.append(formula)
            starts.append((at - start) // element_bytes)
            at = until

        for each in self._intervals:
            if each.end <= at or each.start >= end:
                continue
            if each.start > at:
                add(Unset(element_bytes), each.start)
            whole = each.element_bytes == element_bytes and (at - each.start) % element_bytes == 0
            first = (at - each.start) // element_bytes
            known: Formula = each.formula if first == 0 else Part(each.formula, first)
            add(known if whole else Unset(element_bytes), min(each.end, end))
        if at < end or not parts:
            add(Unset(element_bytes), end)
        return parts[0] if len(parts) == 1 else Joined(tuple(parts), tuple(starts))


def shallow(formula: Formula, element_bytes: int) -> Formula:
    """The formula, or that nothing is known where it is made of too many others."""
    return formula if _depth(formula) <= MOST_DEEP else Unset(element_bytes)


def _depth(formula: Formula) -> int:
    match formula:
        case Part(of=of) | Altered(of=of):
            return 1 + _depth(of)
        case Joined(parts=parts) | Reduced(parts=parts):
            return 1 + max(map(_depth, parts))
        case _:
            return 0


def gathered(parts: Sequence[Formula], count: int) -> Formula:
    """``count`` elements of each, one after the other."""
    return Joined(tuple(parts), tuple(number * count for number in range(len(parts))))


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
        defined: Mapping[str, str] = dict(re.fullmatch(r"-D(\w+)=(.*)", option).groups() for option in options)  # type: ignore[union-attr]
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
