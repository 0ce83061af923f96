"""Sizes in words, and back."""

import re
from numbers import Integral

from tuner.base.errors import BadInput

_BINARY = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_DECIMAL = {"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
UNITS = ("EiB", "PiB", "TiB", "GiB", "MiB", "KiB")
LARGEST_BYTES = 2**62


def size_bytes(text: str) -> int:
    """``8``, ``64M`` or ``64MiB`` (2**20), ``64MB`` (10**6) as bytes; BadInput for anything else."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", text)
    unit = match[2].lower() if match else None
    scale = None if unit is None else _DECIMAL.get(unit) or _BINARY.get(unit.removesuffix("ib") if unit != "b" else "")
    if match is None or scale is None:
        raise BadInput(f"size {text!r}: expected bytes such as 8, 64K, 64KiB (1024) or 64KB (1000); units to T")
    whole, _, part = match[1].partition(".")
    nbytes: int = int(whole) * scale + int(part or 0) * scale // 10 ** len(part)
    if not 1 <= nbytes <= LARGEST_BYTES:
        raise BadInput(f"size {text!r} is {nbytes} bytes; valid: 1 to 2**62")
    return nbytes


def whole(value: object, name: str) -> int:
    """An integer of Python's or NumPy's; BadInput for anything else, truth values among it."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise BadInput(f"{name} {value!r}: expected a whole number")
    return int(value)


def human_bytes(nbytes: int) -> str:
    """Exact: the largest binary unit that divides the size."""
    for power, unit in zip(range(60, 0, -10), UNITS, strict=True):
        if nbytes % (1 << power) == 0:
            return f"{nbytes >> power} {unit}"
    return f"{nbytes} B"
