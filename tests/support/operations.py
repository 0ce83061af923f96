"""What a function takes, counted: calls of Python functions, and bytes of Python's memory. Never seconds."""

import sys
import tracemalloc
from collections.abc import Callable


def calls_of(function: Callable[[], object]) -> int:
    """How many calls of Python functions it takes."""
    count = 0

    def counted(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(counted)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


def most_bytes_of(function: Callable[[], object]) -> int:
    """How many bytes it has allocated at the most."""
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
