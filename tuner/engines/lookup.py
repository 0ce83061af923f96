"""Looks up the number that a table assigns to a size, which depends on the size's range and on the powers of two that
divide it.

The look-up runs in C (csrc/picks/lookup.c), or in NumPy if C is not built.

The implementation that carries a tensor changes at certain sizes, to the byte, and differs between multiples of 16
bytes and the sizes between them. So the sizes fall into kinds, by the largest of the table's powers of two that divides
them, and each kind has ranges without gaps.
"""

import ctypes
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.base.errors import BadInput
from tuner.base.extras import NotBuilt, shared_object
from tuner.base.numerics import SizeArray
from tuner.base.sizes import LARGEST_BYTES

BITS = 64
BEYOND = (1 << BITS) - 1
LOWEST_BYTE = 256
DOUBLE_BITS, DOUBLE_BIAS = 53, 1023
SEARCH = (-1, -1)
OCTAVE = np.dtype([("border", np.uint64), ("numbers", np.int8, 8)])  # struct number_octave of csrc/picks/lookup.h
Ranges = Sequence[tuple[int, int]]  # the first size of each range, and the number of its sizes


class _Table(ctypes.Structure):
    """``struct number_table``."""

    _fields_ = (
        ("octaves_of", ctypes.c_void_p),
        ("octaves", ctypes.c_void_p),
        ("from_bytes", ctypes.c_void_p),
        ("numbers", ctypes.c_void_p),
        ("count", ctypes.c_uint64),
    )


class NumberTable:
    """A table of the values of the function ``number`` for every size from 1 to 2**62 bytes.

    The number only changes at ``borders`` (first sizes of ranges, in bytes) and with the ``multiples`` that divide a
    size (powers of two in bytes, up to 256). Numbers are 0 to 127.
    """

    def __init__(self, number: Callable[[int], int], borders: Collection[int], multiples: Collection[int]) -> None:
        self.multiples = sorted({1, *multiples})
        assert all(LOWEST_BYTE % each == 0 for each in self.multiples), self.multiples
        ends = sorted({1, *borders, LARGEST_BYTES + 1})
        kinds = [[*_ranges(number, ends, *each)] for each in pairwise([*self.multiples, 0])]
        count = max(map(len, kinds))
        padded = [[*kind, *[(BEYOND, 0)] * (count - len(kind))] for kind in kinds]
        self.from_bytes = np.array([[first for first, _ in kind] for kind in padded], np.uint64)
        self.numbers = np.array([[each for _, each in kind] for kind in padded], np.int8)
        self._library = _library()
        if self._library is not None:
            self._octaves = np.stack([*map(_octaves, kinds)])
            dividing = [sum(byte % each == 0 for each in self.multiples) for byte in range(LOWEST_BYTE)]
            self._octaves_of = np.array([(each - 1) * BITS * OCTAVE.itemsize for each in dividing], np.uint16)
            arrays = self._octaves_of, self._octaves, self.from_bytes, self.numbers
            self._table = _Table(*(array.ctypes.data for array in arrays), count)

    def among(self, sizes: SizeArray) -> NDArray[np.int8]:
        """The number of each size, [size]. BadInput for sizes that are not 1 to 2**62."""
        if self._library is None:
            return self.by_numpy(sizes)
        sizes, found = np.ascontiguousarray(sizes, np.uint64), np.empty(len(sizes), np.int8)
        addresses = sizes.ctypes.data, len(sizes), found.ctypes.data
        if not self._library.nccl_tuner_numbers(ctypes.byref(self._table), *addresses):
            raise _no_sizes(sizes)
        return found

    def by_numpy(self, sizes: SizeArray) -> NDArray[np.int8]:
        """Like :meth:`among`, which calls this if C is not built."""
        if not ((sizes >= 1) & (sizes <= LARGEST_BYTES)).all():
            raise _no_sizes(sizes)
        found = np.empty(len(sizes), np.int8)
        for multiple, from_bytes, numbers in zip(self.multiples, self.from_bytes, self.numbers, strict=True):
            here = sizes % np.uint64(multiple) == 0  # sizes that a larger multiple divides are overwritten later
            found[here] = numbers[np.searchsorted(from_bytes, sizes[here], side="right") - 1]
        return found


def _no_sizes(sizes: SizeArray) -> BadInput:
    signed = sizes.astype(np.int64)
    return BadInput(f"sizes from {signed.min()} to {signed.max()} bytes: valid are 1 to 2**62")


def _ranges(
    number: Callable[[int], int], ends: Sequence[int], multiple: int, following: int
) -> Iterator[tuple[int, int]]:
    """The ranges of a kind of sizes in which the number stays the same: the first size of each, and its number.

    A kind consists of the multiples of ``multiple``, without the multiples of ``following`` unless that is 0.
    """
    before = None
    for border, end in pairwise(ends):
        size = -(-border // multiple) * multiple
        if following and size % following == 0:
            size += multiple
        if size < end and number(size) != before:  # otherwise no size of the kind is in between
            yield (1 if before is None else border), number(size)
            before = number(size)


def _octaves(kind: Ranges) -> NDArray[Any]:
    """For each power of two: its own number, the size at which the number changes before the next power, and the number
    from there on.

    -1 if it changes more than once, and for sizes that a double cannot represent exactly: C then searches the ranges.
    Rows are in the order of the last six bits of a double's exponent.
    """
    made = np.zeros(BITS, OCTAVE)
    for high, octave in enumerate(made):
        before = [number for first, number in kind if first <= 1 << high][-1]
        inside = [each for each in kind if 1 << high < each[0] < 2 << high]
        border, after = inside[0] if inside else (BEYOND, before)
        octave["border"] = border
        octave["numbers"][:2] = (before, after) if len(inside) < 2 and high < DOUBLE_BITS else SEARCH
    return np.roll(made, DOUBLE_BIAS % BITS)


@cache
def _library() -> Any:
    """The library csrc/picks; None if it was not built, or was built from older sources."""
    address, count = ctypes.c_void_p, ctypes.c_size_t
    try:
        library: Any = ctypes.CDLL(str(shared_object("nccl_tuner_picks")))
        library.nccl_tuner_numbers.restype = ctypes.c_int
    except (NotBuilt, OSError, AttributeError):
        return None
    library.nccl_tuner_numbers.argtypes = (address, address, count, address)
    return library
