"""Reads lists and histograms of collectives: CSV, and JSON lists with the same records."""

import csv
import io
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from tuner.base.errors import BadInput, one_of
from tuner.base.names import Collective, DataType, Op, PeerCall, by_name, peer_call
from tuner.base.sizes import size_bytes
from tuner.base.spelling import option
from tuner.emulator.selection import MAX_BYTES
from tuner.jobs.traces.calls import MOST_CALLS, CallList, TracedCall, exchanged_bytes, is_untuned, nbytes

COLUMNS = (
    "collective",
    "bytes",
    "bytes_per_rank",
    "count",
    "calls",
    "weight",
    "dtype",
    "op",
    "ranks",
    "nodes",
    "communicator",
)
_PLAIN = ("collective", "bytes", "calls")  # of a file that does not name its columns
_SIZES = {
    "bytes": "column bytes as NCCL's nBytes",
    "bytes_per_rank": "column bytes_per_rank as count x type, times the ranks for AllGather and ReduceScatter",
    "count": "count x type, times the ranks for AllGather and ReduceScatter",
}


def from_csv(file: str, text: str, ranks: int) -> CallList:
    """Reads the calls of a CSV list; ``ranks`` is used for rows that do not say the number of ranks. BadInput names the
    line."""
    rows = _rows(file, text)
    number, first = next(rows, (1, []))
    names = [cell.strip().lower() for cell in first]
    if "collective" not in names:
        if not 2 <= len(first) <= len(_PLAIN):
            if "nccl-tests" in text or "out-of-place" in text:
                raise BadInput(
                    f"{file}: results of nccl-tests are times, not a list of calls: give them with "
                    f"{option('measured')}, beside a list"
                )
            raise BadInput(f"{file}:{number}: a line with the names of the columns is missing; {one_of(COLUMNS)}")
        names = list(_PLAIN[: len(first)])
        rows = _rows(file, text)
    _check_columns(f"{file}:{number}", names)
    counted: Counter[tuple[str, ...]] = Counter()
    first_at: dict[tuple[str, ...], int] = {}
    for number, row in rows:
        if len(row) != len(names):
            raise BadInput(f"{file}:{number}: {len(row)} cells in {len(names)} columns ({', '.join(names)})")
        counted[cells := tuple(row)] += 1
        first_at.setdefault(cells, number)
    records = (
        (f"{file}:{first_at[cells]}", dict(zip(names, map(str.strip, cells), strict=True)), times)
        for cells, times in counted.items()
    )
    return _call_list(file, "CSV", records, ranks)


def from_json(file: str, values: list[Any], ranks: int) -> CallList:
    """Reads the calls of a list of objects. BadInput names the object by its place, counted from 1."""
    counted: Counter[tuple[tuple[str, str], ...]] = Counter()
    first_at: dict[tuple[tuple[str, str], ...], str] = {}
    for number, value in enumerate(values, start=1):
        place = f"{file}: record {number}"
        if not isinstance(value, dict):
            raise BadInput(f"{place}: an object with {', '.join(COLUMNS[:2])} is expected")
        record = tuple((str(key).lower(), str(cell)) for key, cell in value.items() if cell is not None)
        if record not in first_at:
            _check_columns(place, list(dict(record)))
        counted[record] += 1
        first_at.setdefault(record, place)
    records = ((first_at[record], dict(record), times) for record, times in counted.items())
    return _call_list(file, "JSON", records, ranks)


def _rows(file: str, text: str) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(io.StringIO(text))
    try:
        for row in reader:
            if any(cell.strip() for cell in row) and not row[0].lstrip().startswith("#"):
                yield reader.line_num, row
    except csv.Error as error:
        raise BadInput(f"{file}:{reader.line_num}: {error}") from None


def _check_columns(place: str, names: list[str]) -> None:
    if unknown := [name for name in names if name not in COLUMNS]:
        raise BadInput(f"{place}: unknown column {unknown[0]!r}; {one_of(COLUMNS)}")
    if twice := [name for name in names if names.count(name) > 1]:
        raise BadInput(f"{place}: column {twice[0]!r} occurs twice")
    if not set(_SIZES).intersection(names):
        raise BadInput(f"{place}: the size is missing; {one_of(_SIZES)}, and count also needs dtype")


def _call_list(file: str, kind: str, records: Iterable[tuple[str, dict[str, str], int]], ranks: int) -> CallList:
    """Reads calls from distinct records; each comes with its first place, for messages, and how often it occurs."""
    calls: list[TracedCall] = []
    meant: dict[str, None] = {}
    for place, record, times in records:
        try:
            size, call = _call(record, ranks)
        except (BadInput, ValueError) as error:
            raise BadInput(f"{place}: {error}") from None
        calls.append(replace(call, calls=call.calls * times))
        meant[_SIZES[size]] = None
    if not calls:
        raise BadInput(f"{file} has no records: write a line or an object for each kind of call")
    return CallList(file, kind, "; ".join(meant), tuple(calls))


def _call(record: Mapping[str, str], default_ranks: int) -> tuple[str, TracedCall]:
    """Reads a call; returns the column that gives its size, and the call."""
    given = {name: cell for name, cell in record.items() if cell}
    if not given.get("collective"):
        raise BadInput("the collective is missing")
    if {"bytes", "bytes_per_rank"} <= given.keys() or not given.keys() & _SIZES.keys():
        raise BadInput(f"give exactly one column with the size; {one_of(_SIZES)}")
    size = next(name for name in _SIZES if name in given)  # beside bytes, a count is of calls
    frequency = [name for name in ("calls", "weight", "count") if name in given and name != size]
    if len(frequency) > 1:
        raise BadInput(f"{' and '.join(frequency)} both say how often a call is made: give one of them")
    dtype = by_name(DataType, given["dtype"], "type") if "dtype" in given else None
    ranks = _whole(given, "ranks")
    name = given["collective"]
    collective, function = None if is_untuned(name) else by_name(Collective, name, "collective"), peer_call(name)
    total: int | None = None
    if collective is not None:
        total = _nbytes(given, size, collective, dtype, ranks or default_ranks)
    elif function is not None:
        total = _sent_bytes(given, size, dtype, function, ranks or default_ranks)
    if total is not None and total > MAX_BYTES:
        raise BadInput(f"{name} of {total} bytes is larger than 2**62 bytes")
    return size, TracedCall(
        name,
        collective,
        total,
        dtype,
        by_name(Op, given["op"], "operation") if "op" in given else None,
        ranks,
        _whole(given, "nodes"),
        given.get("communicator"),
        _calls(given[frequency[0]]) if frequency else 1.0,
    )


def _nbytes(given: Mapping[str, str], size: str, collective: Collective, dtype: DataType | None, ranks: int) -> int:
    if size == "bytes":
        return size_bytes(given[size])
    if size == "bytes_per_rank":
        return nbytes(collective, size_bytes(given[size]), DataType.int8, ranks)
    if dtype is None:
        raise BadInput("a count of elements needs a dtype")
    count = _whole(given, size)
    assert count is not None
    return nbytes(collective, count, dtype, ranks)


def _sent_bytes(
    given: Mapping[str, str], size: str, dtype: DataType | None, function: PeerCall, ranks: int
) -> int | None:
    """The bytes of a message, or the total of a rank or the root; a count is for a single message.

    ``bytes_per_rank`` is one rank's part for Gather and Scatter, and the total that each rank sends for an AllToAll.
    """
    if size == "bytes" or (size == "bytes_per_rank" and function is PeerCall.AllToAll):
        return size_bytes(given[size])
    if size == "bytes_per_rank":
        return exchanged_bytes(function, size_bytes(given[size]), ranks)
    count = _whole(given, size)
    return None if dtype is None or count is None else exchanged_bytes(function, count * dtype.size_bytes, ranks)


def _whole(given: Mapping[str, str], name: str) -> int | None:
    if name not in given:
        return None
    if not given[name].isdecimal() or len(given[name]) > 19 or int(given[name]) < 1:
        raise BadInput(f"{name} {given[name]!r}: give a whole number from 1")
    return int(given[name])


def _calls(text: str) -> float:
    try:
        calls = float(text)
    except ValueError:
        calls = -1.0
    if not 0 <= calls <= MOST_CALLS:
        raise BadInput(f"{text[:40]!r} calls: give a number from 0 to {MOST_CALLS:g}")
    return calls
