"""Lists of whole numbers as ranges with strides: ``0-7:2,12`` is 0, 2, 4, 6 and 12."""

import re
from collections.abc import Sequence
from itertools import pairwise

from tuner.base.errors import BadInput

_MOST = 1 << 20


def from_ranges(text: str, name: str) -> tuple[int, ...]:
    """The numbers, the least first. ``name`` is whose they are, for messages.

    BadInput for what is no list of ranges, and for a number that stands there twice.
    """
    numbers = list[int]()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?\s*", part)
        first, last, step = (None if each is None else int(each) for each in match.groups()) if match else (None,) * 3
        if first is None or step == 0 or (last or first) - first > _MOST:
            raise BadInput(f"{name} {text!r}: expected whole numbers and ranges, such as 0,3 or 0-7 or 0-7:2")
        if last is not None and last < first:
            raise BadInput(f"{name} {text!r}: {last} is below {first}; valid: FIRST-LAST or FIRST-LAST:STEP")
        numbers += range(first, (first if last is None else last) + 1, step or 1)
    ordered = sorted(numbers)
    for number, following in pairwise(ordered):
        if number == following:
            raise BadInput(f"{name} {text!r}: {number} stands there twice")
    return tuple(ordered)


def as_ranges(numbers: Sequence[int]) -> str:
    """Numbers in the fewest words that a reader sees through: runs of one step, of three numbers or more."""
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
