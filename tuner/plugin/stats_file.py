"""Files of the plugin's statistics (``NCCL_TUNER_STATS``): a line of JSON for each rank of each communicator."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from tuner.base.errors import BadInput

FORMAT = 1


@dataclass(frozen=True, slots=True)
class RowCount:
    """Calls that a row decided, and those of which it was the first to match and NCCL could run nothing."""

    line: int
    decided: int
    could_not_run: int


@dataclass(frozen=True, slots=True)
class CostCount:
    """Calls to which a row of costs gave a time."""

    line: int
    calls: int


@dataclass(frozen=True, slots=True)
class Undecided:
    """Calls that no row decided, of sizes from a power of two up to the next; ``reason`` as the plugin says it."""

    collective: str
    reason: str
    least_bytes: int
    most_bytes: int
    calls: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Counts:
    """What was counted of a table that could be used; ``never_matched`` are lines, first and last."""

    calls: int
    decided: int
    could_not_run: int
    costed: int
    rows: tuple[RowCount, ...]
    costs: tuple[CostCount, ...]
    never_matched: tuple[tuple[int, int], ...]
    undecided: tuple[Undecided, ...]


@dataclass(frozen=True, slots=True)
class CommunicatorStats:
    """One rank's line: who it is, which table it had, by its hash, and what was counted, None of one of no use.

    ``communicator`` is NCCL's commId, None where NCCL does not say it.
    """

    host: str
    communicator: str | None
    ranks: int
    nodes: int
    table: str
    sha256: str | None
    counts: Counts | None


def lines(file: Path) -> Iterator[CommunicatorStats]:
    """BadInput for a line that is none of the plugin's, with its place."""
    try:
        texts = file.read_text(errors="surrogateescape").splitlines()
    except OSError as error:
        raise BadInput(f"{file}: {error.strerror}") from error
    for number, text in enumerate(texts, 1):
        try:
            record = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise BadInput(f"{file}:{number}: not a line of the plugin's statistics: {error}") from error
        if not isinstance(record, dict) or record.get("nccl_tuner_stats") != FORMAT:
            raise BadInput(f"{file}:{number}: not a line of the plugin's statistics, version {FORMAT}")
        try:
            yield _communicator(record)
        except (KeyError, TypeError, ValueError) as error:
            raise BadInput(f"{file}:{number}: not a line of the plugin's statistics: {error}") from error


def _of_record(kind: Any, record: Mapping[str, Any]) -> Any:
    """A dataclass of whole numbers and texts. TypeError where a value is of another kind than its field."""
    made = kind(**record)
    for field in fields(kind):
        if field.type is int:
            _whole(getattr(made, field.name))
        elif not isinstance(getattr(made, field.name), str):
            raise TypeError(f"{field.name} {getattr(made, field.name)!r}")
    return made


def _whole(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 64:
        raise TypeError(f"{value!r}; valid: a whole number")
    return value


def _communicator(record: Mapping[str, Any]) -> CommunicatorStats:
    return CommunicatorStats(
        str(record["host"]),
        None if record["commId"] is None else str(record["commId"]),
        _whole(record["ranks"]),
        _whole(record["nodes"]),
        str(record["table"]),
        None if record["sha256"] is None else str(record["sha256"]),
        _counts(record) if "rows" in record else None,
    )


def _counts(record: Mapping[str, Any]) -> Counts:
    return Counts(
        _whole(record["calls"]),
        _whole(record["decided"]),
        _whole(record["could_not_run"]),
        _whole(record["costed"]),
        tuple(_of_record(RowCount, row) for row in record["rows"]),
        tuple(_of_record(CostCount, cost) for cost in record["costs"]),
        tuple((_whole(first), _whole(last)) for first, last in record["never_matched"]),
        tuple(_of_record(Undecided, one) for one in record["undecided"]),
    )
