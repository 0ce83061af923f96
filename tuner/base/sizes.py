"""Converts sizes to text, and text to sizes."""

import re
from collections.abc import Sequence
from itertools import pairwise
from numbers import Integral

from tuner.base.errors import BadInput

_BINARY = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_DECIMAL = {"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_NAMED_DECIMAL = (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("KB", 10**3))
_NAMED_BINARY = (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))
UNITS = ("EiB", "PiB", "TiB", "GiB", "MiB", "KiB")
LARGEST_BYTES = 2**62
MOST_DIGITS = 1000  # the most digits of a size, fewer than Python refuses to convert
MOST_SIZES = 100_000  # the most sizes of one range


def size_bytes(text: str) -> int:
    """Bytes of a size such as ``8``, ``64M`` or ``64MiB`` (2**20), ``64MB`` (10**6). BadInput for anything else."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", text)
    unit = match[2].lower() if match else None
    scale = None if unit is None else _DECIMAL.get(unit) or _BINARY.get(unit.removesuffix("ib") if unit != "b" else "")
    if match is None or scale is None:
        raise BadInput(f"size {text!r}: give bytes such as 8, 64K, 64KiB (1024) or 64KB (1000), with units up to T")
    whole, _, part = match[1].partition(".")
    if len(match[1]) > MOST_DIGITS:
        raise BadInput(f"a size with {len(match[1])} digits is too large: valid are 1 to 2**62 bytes")
    nbytes: int = int(whole) * scale + int(part or 0) * scale // 10 ** len(part)
    if not 1 <= nbytes <= LARGEST_BYTES:
        raise BadInput(f"size {text!r} is {nbytes} bytes: valid are 1 to 2**62")
    return nbytes


def size_list(text: str) -> list[int]:
    """Reads sizes separated by commas. Each entry is a size, or a range as in nccl-tests with both ends included.

    ``8..1G*2`` multiplies as ``-b 8 -e 1G -f 2`` does, and means the same without ``*2``; ``1M..4M+1M`` adds as ``-i``
    does. BadInput for anything else.
    """
    return [size for part in text.split(",") for size in (_range(part) if ".." in part else [size_bytes(part)])]


def _range(text: str) -> list[int]:
    match = re.fullmatch(r"(.*?)\.\.(.*?)(?:([*+])(.*))?", text)
    assert match is not None  # the text contains "..", so the expression matches
    first, last = size_bytes(match[1]), size_bytes(match[2])
    sign, by = match[3] or "*", (size_bytes(match[4]) if match[3] == "+" else _factor(match[4] or "2", text))
    if first > last:
        raise BadInput(f"sizes {text!r}: {match[1]} is above {match[2]}: write LEAST..MOST, as in 8..1G*2")
    sizes = [first]
    while (following := sizes[-1] * by if sign == "*" else sizes[-1] + by) <= last:
        sizes.append(following)
        if len(sizes) > MOST_SIZES:
            raise BadInput(f"sizes {text!r} are more than {MOST_SIZES}: use a larger step")
    return sizes


def _factor(text: str, sizes: str) -> int:
    if not text.strip().isdecimal() or int(text) < 2:
        raise BadInput(f"sizes {sizes!r}: factor {text!r} has to be a whole number from 2, as in 8..1G*2")
    return int(text)


def whole(value: object, name: str) -> int:
    """An integer of Python or NumPy; BadInput for anything else, including booleans."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise BadInput(f"{name} {value!r} is not a whole number")
    return int(value)


def about(nbytes: int) -> str:
    """A size in the largest binary unit that fits, with three digits: 11.0 MiB for 11586590."""
    power = min(max(nbytes.bit_length() - 1, 0) // 10, len(UNITS))
    unit = ("B", *reversed(UNITS))[power]
    scaled = nbytes / (1 << 10 * power)
    return f"{scaled:.0f} {unit}" if scaled >= 100 or power == 0 else f"{scaled:.3g} {unit}"


def human_bytes(nbytes: int) -> str:
    """A size as text without rounding: in the largest binary unit that divides it."""
    for power, unit in zip(range(60, 0, -10), UNITS, strict=True):
        if nbytes and nbytes % (1 << power) == 0:
            return f"{nbytes >> power} {unit}"
    return f"{nbytes} B"


_MOST = 1 << 20


def from_ranges(text: str, name: str) -> tuple[int, ...]:
    """The numbers in a text that lists ranges, ascending. ``name`` is what error messages call these numbers.

    BadInput if the text is not a list of ranges, or if a number is given twice.
    """
    numbers = list[int]()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?\s*", part)
        first, last, step = (None if each is None else int(each) for each in match.groups()) if match else (None,) * 3
        if first is None or step == 0 or (last or first) - first > _MOST:
            raise BadInput(f"{name} {text!r}: give whole numbers and ranges, such as 0,3 or 0-7 or 0-7:2")
        if last is not None and last < first:
            raise BadInput(f"{name} {text!r}: {last} is below {first}: write FIRST-LAST or FIRST-LAST:STEP")
        numbers += range(first, (first if last is None else last) + 1, step or 1)
    ordered = sorted(numbers)
    for number, following in pairwise(ordered):
        if number == following:
            raise BadInput(f"{name} {text!r}: {number} is given twice")
    return tuple(ordered)


def as_ranges(numbers: Sequence[int]) -> str:
    """Numbers as text; three or more numbers with equal steps are written as a range."""
    said, at = list[str](), 0
    while at < len(numbers):
        end = at + 1
        step = numbers[end] - numbers[at] if end < len(numbers) else 0
        while end + 1 < len(numbers) and numbers[end + 1] - numbers[end] == step:
            end += 1
        if end < len(numbers) and end - at >= (1 if step == 1 else 2):
            said.append(f"{numbers[at]}-{numbers[end]}" + (f":{step}" if step != 1 else ""))
            at = end + 1
        else:
            said.append(str(numbers[at]))
            at += 1
    return ",".join(said)


def plural(count: int, what: str) -> str:
    """A number and its noun, such as ``1 channel``, ``2 channels``, ``2 switches`` and ``2 entries``."""
    if count == 1:
        return f"{count} {what}"
    if what.endswith("y") and what[-2:-1] not in "aeiou":
        return f"{count} {what[:-1]}ies"
    return f"{count} {what}{'es' if what.endswith(('s', 'x', 'ch', 'sh')) else 's'}"


def ranks_on_nodes(ranks: int, nodes: int) -> str:
    """Text such as ``8 ranks on 1 node``."""
    return f"{plural(ranks, 'rank')} on {plural(nodes, 'node')}"


def named_bytes(nbytes: float) -> str:
    """A number of bytes in decimal and binary units, so that nobody confuses GB with GiB: ``100 MB (95.37 MiB)``."""
    decimal, binary = _in(nbytes, _NAMED_DECIMAL), _in(nbytes, _NAMED_BINARY)
    return decimal if decimal == binary else f"{decimal} ({binary})"


def _in(nbytes: float, units: Sequence[tuple[str, int]]) -> str:
    for unit, scale in units:
        if nbytes >= scale:
            return f"{nbytes / scale:.4g} {unit}" if nbytes / scale < 1000 else f"{nbytes / scale:.0f} {unit}"
    return f"{nbytes:.0f} B"
