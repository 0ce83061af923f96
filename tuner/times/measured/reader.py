"""Reads a file of measured times: ours, whose head is in comments, or a bare one in either column layout.

Layouts, by the names of the columns: ``collective,dtype,gpus,bytes,time_us`` (one node, out of place), or
``collective,dtype,nodes,gpus_per_node,bytes,time_us`` and any of ``in_place,algorithm,protocol,channels``, with our own
``run``, or with ``source_id`` and ``notes``, of which runs and, where all agree, the head are made.
"""

import csv
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from tuner.base.errors import BadInput, BadMeasurement, one_of
from tuner.base.files import read_bytes
from tuner.base.names import Algorithm, DataType, Protocol, by_name
from tuner.times.measured import header, notes, words
from tuner.times.measured.records import MeasuredHeader, MeasuredRow, MeasuredTable

Name = TypeVar("Name", bound=Enum)
OWN_COLUMNS = (
    *("collective", "dtype", "nodes", "gpus_per_node", "bytes", "time_us"),
    *("in_place", "algorithm", "protocol", "channels", "run"),
)
_REQUIRED = ("collective", "dtype", "bytes", "time_us")
_COLUMNS = (*OWN_COLUMNS, "gpus", "source_id", "notes")
_PLACES = {"0": False, "1": True, "false": False, "true": True, "": None}


def read(path: Path) -> MeasuredTable:
    """The table of a file. BadMeasurement names the file, and the line of what is wrong in it."""
    content = read_bytes(path, BadMeasurement)
    return parse(path.name.removesuffix(".gz").removesuffix(".csv"), content.decode(errors="replace"), str(path))


def parse(name: str, content: str, where: str) -> MeasuredTable:
    """The table of a text called ``name``; ``where`` stands before messages. BadMeasurement as of ``read``."""
    lines = content.removeprefix("\ufeff").splitlines()
    comments = 0
    while comments < len(lines) and (not lines[comments].strip() or lines[comments].startswith("#")):
        comments += 1
    head = header.parse(where, (line for line in lines[:comments] if line.strip()))
    table = _numbered(where, comments, lines[comments:])
    columns = tuple(column.strip() for column in next(table, (0, []))[1])
    _check_columns(f"{where}:{comments + 1}", columns)
    rows, cells = [], []
    left_out: Counter[str] = Counter()
    for line, values in table:
        if not any(value.strip() for value in values) or values[0].startswith("#"):
            continue
        try:
            cell = _cells(columns, values)
            row = _row(line, cell)
            if (why := not_whole(row)) is not None:
                left_out[why] += 1
                continue
            rows.append(row)
        except BadInput as error:
            raise BadMeasurement(f"{where}:{line}: {error}") from None
        cells.append(cell)
    if not rows:
        raise BadMeasurement(f"{where}: no rows")
    head = replace(head, left_out={**head.left_out, **left_out})
    return _checked(where, _with_runs(MeasuredTable(name, head, tuple(rows)), columns, cells))


def _numbered(where: str, comments: int, lines: list[str]) -> Iterator[tuple[int, list[str]]]:
    """The values of each line, with its number."""
    table = csv.reader(lines, skipinitialspace=True)
    try:
        for values in table:
            yield comments + table.line_num, values
    except csv.Error as error:
        raise BadMeasurement(f"{where}:{comments + table.line_num}: {error}") from None


def _cells(columns: tuple[str, ...], values: list[str]) -> dict[str, str]:
    if len(values) != len(columns):
        raise BadInput(f"{len(values)} cells; expected {len(columns)}")
    return dict(zip(columns, map(str.strip, values), strict=True))


def _check_columns(where: str, columns: tuple[str, ...]) -> None:
    if unknown := [column for column in columns if column not in _COLUMNS]:
        raise BadMeasurement(f"{where}: unknown column {unknown[0]!r}; {one_of(_COLUMNS)}")
    if double := [column for column in columns if columns.count(column) > 1]:
        raise BadMeasurement(f"{where}: column {double[0]!r} twice")
    size = ("gpus",) if "gpus" in columns else ("nodes", "gpus_per_node")
    if missing := [column for column in (*_REQUIRED, *size) if column not in columns]:
        raise BadMeasurement(f"{where}: no column {missing[0]!r}; needed: {', '.join((*_REQUIRED, *size))}")
    if "gpus" in columns and ("nodes" in columns or "gpus_per_node" in columns):
        raise BadMeasurement(f"{where}: gpus, and nodes or gpus_per_node; valid: one of both")


def _row(line: int, cell: Mapping[str, str]) -> MeasuredRow:
    algorithm, protocol = _name(Algorithm, cell, "algorithm"), _name(Protocol, cell, "protocol")
    row = MeasuredRow(
        line=line,
        collective=_collective(cell["collective"]),
        dtype=_dtype(cell["dtype"]),
        nodes=_whole(cell, "nodes") if "nodes" in cell else 1,
        gpus_per_node=_whole(cell, "gpus_per_node" if "gpus_per_node" in cell else "gpus"),
        bytes=_whole(cell, "bytes"),
        time_us=_time_us(cell["time_us"]),
        in_place=_in_place(cell),
        algorithm=algorithm,
        protocol=protocol,
        channels=_whole(cell, "channels") if cell.get("channels") else None,
        run=cell.get("run", ""),
    )
    _check_values(row)
    return row


def check_row(row: MeasuredRow) -> None:
    """BadInput for a time, or a number of ranks or bytes, that the collective cannot have."""
    _check_values(row)
    if (why := not_whole(row)) is not None:
        raise BadInput(f"{row.bytes} bytes: {row.collective} of {row.dtype.name}: {why}")


def _check_values(row: MeasuredRow) -> None:
    if not 0 < row.time_us < math.inf:
        raise BadInput(f"time_us {row.time_us!r}; expected microseconds above 0")
    if row.ranks < 2:
        raise BadInput(f"{row.ranks} GPU in all; a collective needs 2")
    if row.bytes % row.dtype.size_bytes:
        raise BadInput(f"{row.bytes} bytes: {row.collective} of {row.dtype.name} takes whole elements")


def not_whole(row: MeasuredRow) -> str | None:
    """Why a size was rounded, so that no such call can be placed; None where each rank has whole elements of it."""
    parts = row.ranks if row.collective in words.SPLIT_OVER_RANKS else 1
    if row.bytes % (parts * row.dtype.size_bytes) == 0:
        return None
    return f"no whole elements for each of {row.ranks} ranks"


def _checked(where: str, table: MeasuredTable) -> MeasuredTable:
    for row in table.rows:
        if row.run and row.run not in table.header.runs:
            raise BadMeasurement(f"{where}:{row.line}: run {row.run!r} is not in the head; {one_of(table.header.runs)}")
    return table


def _with_runs(table: MeasuredTable, columns: Iterable[str], cells: Iterable[Mapping[str, str]]) -> MeasuredTable:
    """With the runs that ``source_id`` and ``notes`` tell of, and the release and GPU where all notes agree."""
    if "run" in columns or not {"source_id", "notes"} & set(columns):
        return table
    noted = notes.runs([(cell.get("source_id", ""), cell.get("notes", "")) for cell in cells])
    rows = tuple(replace(row, run=run) for row, run in zip(table.rows, noted.of_rows, strict=True))
    head: MeasuredHeader = replace(table.header, runs=noted.runs, nccl=noted.nccl, gpu=noted.gpu)
    return replace(table, header=head, rows=rows)


@lru_cache
def _collective(word: str) -> str:
    return words.collective(word)


@lru_cache
def _dtype(word: str) -> DataType:
    return by_name(DataType, word, "type")


def _name(members: type[Name], cell: Mapping[str, str], column: str) -> Name | None:
    return by_name(members, cell[column], column) if cell.get(column) else None


def _in_place(cell: Mapping[str, str]) -> bool | None:
    if "in_place" not in cell:
        return False
    if cell["in_place"].lower() not in _PLACES:
        raise BadInput(f"in_place {cell['in_place']!r}; valid: 0, 1, or empty where it is not known")
    return _PLACES[cell["in_place"].lower()]


def _whole(cell: Mapping[str, str], column: str) -> int:
    try:
        value = int(cell[column])
    except ValueError:
        value = 0
    if value < 1:
        raise BadInput(f"{column} {cell[column]!r}; expected a whole number from 1")
    return value


def _time_us(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise BadInput(f"time_us {text!r}; expected microseconds above 0") from None
