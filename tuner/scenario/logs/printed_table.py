"""Whether the tables that NCCL printed are whole."""

from collections.abc import Sequence
from typing import TypeVar

from tuner.base.names import Algorithm, Collective, Protocol
from tuner.release import Release
from tuner.scenario.logs import choice
from tuner.scenario.logs.reader import Block
from tuner.scenario.logs.reading import Reading

T = TypeVar("T")


def check_table(reading: Reading, table: Sequence[Block], nccl: Release | None) -> None:
    """Notes as missing what a table of the release ``nccl`` has and the printed one lacks."""
    if not table:
        reading.missing.append("the tuning table (NCCL_DEBUG_SUBSYS=TUNING, printed by rank 0)")
        return
    for index, block in enumerate(table):
        columns = ", ".join(block.names(index))
        if block.algorithms is None:
            reading.missing.append(f"the table's line 'Algorithm' of {columns}")
        if not block.threads and any(other.threads for other in table):
            reading.missing.append(f"the table's line 'Max NThreads' of {columns}")
        for collective in Collective:
            have, whole = len(block.rows.get(collective, ())), len(Protocol) * len(block.names(index))
            if have < whole:
                what = f"{whole - have} cells of {collective.name}" if have else collective.name
                reading.missing.append(f"in the table {what} of {columns}")
    shown = {choice.algorithm(name) for index, block in enumerate(table) for name in block.names(index)}
    there = list(Algorithm)[: nccl.limits.algorithms if nccl else 0]
    if absent := [algorithm.name for algorithm in there if algorithm not in shown]:
        reading.missing.append(f"the table's part with {', '.join(absent)}")


def first_printed(reading: Reading, what: str, values: Sequence[T | None]) -> T | None:
    """The first of ``values`` that a rank printed; where none did, ``what`` is noted as missing."""
    printed = next((value for value in values if value is not None), None)
    if printed is None and reading.logs:
        reading.missing.append(what)
    return printed
