"""An NCCL release: the constants and the names of the rules that make up its model, read from ``tables/nccl``."""

from tuner.release.convert import ALGORITHM_KEYS, ALGORITHM_NAMES, PROTOCOL_KEYS, PROTOCOL_NAMES
from tuner.release.reader import (
    Difference,
    changed,
    differences,
    first_with,
    is_known,
    is_spelled,
    load,
    named,
    names,
    names_by_source,
    read,
)
from tuner.release.schema import BUILDS, HARDWARE, Generation, Release

__all__ = [
    "ALGORITHM_KEYS",
    "ALGORITHM_NAMES",
    "BUILDS",
    "HARDWARE",
    "PROTOCOL_KEYS",
    "PROTOCOL_NAMES",
    "Difference",
    "Generation",
    "Release",
    "changed",
    "differences",
    "first_with",
    "is_known",
    "is_spelled",
    "load",
    "named",
    "names",
    "names_by_source",
    "of_code",
    "read",
]


def of_code(code: int) -> str:
    """The release for a number from ncclGetVersion: ``22809`` is 2.28.9 (for 2.9 and later)."""
    return f"{code // 10000}.{code % 10000 // 100}.{code % 100}"
