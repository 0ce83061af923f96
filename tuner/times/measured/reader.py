"""Reads a CSV file of measured times: a table with its header in comments, or only columns, in either layout.

The names of the columns tell the layout. The first layout is ``collective,dtype,gpus,bytes,time_us`` (one node, out of
place). The second is ``collective,dtype,nodes,gpus_per_node,bytes,time_us`` and any of
``in_place,algorithm,protocol,channels``. The second layout may also have ``run``, or ``source_id`` and ``notes``. The
reader makes the runs from the notes and, if all notes agree on a fact, the header's fact as well.
"""

import csv
import io
import math
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from enum import Enum, StrEnum
from functools import cache, lru_cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, TypeVar

from tuner.base.errors import BadInput, BadMeasurement, did_you_mean, nearest_of, one_of
from tuner.base.expressions import expression
from tuner.base.files import read_bytes, write_text
from tuner.base.names import Algorithm, DataType, Op, Protocol, by_name
from tuner.base.printable import csv_cell
from tuner.times.measured import records
from tuner.times.measured.header import (
    TABLE_KEYS,
    Header,
    MeasuredAdapters,
    MeasuredHealth,
    MeasuredLaunch,
    MeasuredRun,
    MeasuredSource,
    table_record,
)
from tuner.times.measured.samples import (
    DEFAULT,
    Combination,
    Forced,
    Measurements,
    Point,
    SampleBlock,
    forced_by_variables,
)

Record = TypeVar("Record")
_TABLES = ("source", "adapters", "environment", "noise_percent", "left_out", "runs")
_BARE_KEY = expression(r"[A-Za-z0-9_-]+")


def parse_header(name: str, comments: Iterable[str]) -> Header:
    """The header from the comment lines above the columns, each with its ``#``. ``name`` is the file's name, for
    messages.

    BadMeasurement if the comments are not TOML, or hold an unknown key or a value of the wrong type.
    """
    try:
        facts = tomllib.loads("\n".join(line.removeprefix("#").removeprefix(" ") for line in comments))
    except tomllib.TOMLDecodeError as error:
        raise BadMeasurement(f"{name}: the comments above the columns cannot be read as TOML: {error}") from None
    try:
        runs = {key: _run(f"runs.{key}", run) for key, run in _mapping("runs", facts.pop("runs", {})).items()}
        source = MeasuredSource(**_known(MeasuredSource, "source", facts.pop("source", {})))
        adapters = MeasuredAdapters(**_adapters(facts.pop("adapters", {})))
        given = _known(Header, "", {**facts, "runs": runs, "source": source, "adapters": adapters}, TABLE_KEYS)
        given |= _typed(given)
        return Header(variables=given.pop("environment", {}), **given)
    except _WrongValue as error:
        raise BadMeasurement(f"{name}: the comments above the columns are wrong: {error}") from None


def header_lines(header: Header) -> list[str]:
    """The header as comment lines, without empty facts."""
    text: list[str] = []
    record = table_record(header)
    for key, value in record.items():
        if key not in _TABLES and value not in ("", [], False):
            text += [f"{key} = {_value(value)}"]
    for key in ("source", "adapters", "environment", "noise_percent", "left_out"):
        if inside := {name: value for name, value in record[key].items() if value not in ("", None)}:
            text += ["", f"[{key}]", *(f"{_key(name)} = {_value(value)}" for name, value in inside.items())]
    if header.runs:
        text += ["", "[runs]"]
    for key, run in record["runs"].items():
        there = {name: value for name, value in run.items() if value not in ("", None, [], {})}
        text += [f"{_key(key)} = {_value(there)}"]
    return [f"# {line}".rstrip() for line in text]


class _WrongValue(Exception):
    """An unknown key, or a value of the wrong type."""


def _run(where: str, facts: Any) -> MeasuredRun:
    given = _known(MeasuredRun, where, facts)
    if not isinstance(given.setdefault("what", ""), str):
        raise _WrongValue(f"{where}.what: {given['what']!r}; expected a text")
    return MeasuredRun(**{**given, **_typed(given)})


def _adapters(facts: Any) -> dict[str, Any]:
    given = _known(MeasuredAdapters, "adapters", facts)
    count, gbps = given.get("count", 1), given.get("gbps", 1.0)
    if type(count) is not int or count < 1:
        raise _WrongValue(f"adapters.count: {count!r}; expected a whole number from 1")
    if type(gbps) not in (int, float) or not 0 < gbps < math.inf:
        raise _WrongValue(f"adapters.gbps: {gbps!r}; expected 1e9 bits per second, above 0")
    return given


def _known(record: type[Record], where: str, facts: Any, names: Sequence[str] = ()) -> dict[str, Any]:
    """The facts, after checking that every key is in ``names`` (without these, a field of the record) and that texts
    are texts.
    """
    texts = {each.name for each in fields(record) if each.type is str}  # type: ignore[arg-type]
    names = names or [each.name for each in fields(record)]  # type: ignore[arg-type]
    for key, value in _mapping(where, facts).items():
        dotted = f"{where}.{key}".lstrip(".")
        if key not in names:
            raise _WrongValue(f"{dotted}: unknown key; {one_of(names)}")
        if key in texts and not isinstance(value, str):
            raise _WrongValue(f"{dotted}: {value!r}; expected a text")
    return dict(facts)


def _typed(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that are not texts, checked and converted."""
    typed: dict[str, Any] = {}
    words: dict[str, type[StrEnum]] = {"launch": MeasuredLaunch, "health": MeasuredHealth}
    for key, members in words.items():
        if key in facts:
            if facts[key] not in list(members):
                raise _WrongValue(f"{key}: {facts[key]!r}; {one_of(repr(each.value) for each in members)}")
            typed[key] = members(facts[key])
    for key, kind in (("traps", str), ("devices", int)):
        values = facts.get(key, [])
        if not isinstance(values, list) or not all(isinstance(value, kind) for value in values):
            raise _WrongValue(f"{key}: {values!r}; expected a list of {kind.__name__}")
        if key in facts:
            typed[key] = tuple(values)
    inside: dict[str, type] = {"environment": str, "noise_percent": float, "left_out": int}
    for key, of in inside.items():
        for name, value in _mapping(key, facts.get(key, {})).items():
            if not isinstance(value, of):
                raise _WrongValue(f"{key}.{name}: {value!r}; expected {of.__name__}")
    if not isinstance(facts.get("cuda_graph", False), bool):
        raise _WrongValue(f"cuda_graph: {facts['cuda_graph']!r}; expected true or false")
    return typed


def _mapping(where: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _WrongValue(f"{where}: {value!r}; expected a table")
    return value


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else _value(name)


def _value(value: Any) -> str:
    """A value as TOML writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
        return f'"{escaped}"'
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(name)} = {_value(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    return str(value)


Name = TypeVar("Name", bound=Enum)
OWN_COLUMNS = (
    *("collective", "dtype", "nodes", "gpus_per_node", "bytes", "time_us"),
    *("in_place", "algorithm", "protocol", "channels", "run"),
)
_REQUIRED = ("collective", "dtype", "bytes", "time_us")
_COLUMNS = (*OWN_COLUMNS, "gpus", "source_id", "notes")
_PLACES = {"0": False, "1": True, "false": False, "true": True, "": None}


def read(path: Path) -> Measurements:
    """Reads the table of a file. BadMeasurement names the file and the line of an error."""
    content = read_bytes(path, BadMeasurement)
    return parse(path.name.removesuffix(".gz").removesuffix(".csv"), content.decode(errors="replace"), str(path))


def parse(name: str, content: str, where: str) -> Measurements:
    """Reads the table of a text called ``name``; messages begin with ``where``. BadMeasurement as :func:`read` raises
    it.
    """
    lines = content.removeprefix("\ufeff").splitlines()
    comments = 0
    while comments < len(lines) and (not lines[comments].strip() or lines[comments].startswith("#")):
        comments += 1
    head = parse_header(where, (line for line in lines[:comments] if line.strip()))
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
    return _logged(_checked(where, _with_runs(Measurements(head, tuple(rows), name=name), columns, cells)))


def _logged(table: Measurements) -> Measurements:
    """The table in which columns that are not what the run forced count as what NCCL executed by its own choice.

    Columns count like this if the run's variables force something else, or if the run is called default or like the
    file.
    """
    blocks = []
    for block in table.blocks:
        took = block.took
        if isinstance(block.requested, Combination):
            forced = forced_by_variables(table.environment_of(block))
            if took != forced and (forced != Forced() or block.run in (DEFAULT, table.name)):
                block = replace(block, requested=None, executed=block.requested)
        blocks.append(block)
    return replace(table, blocks=tuple(blocks))


def _numbered(where: str, comments: int, lines: list[str]) -> Iterator[tuple[int, list[str]]]:
    """Yields the number and the values of each line."""
    table = csv.reader(lines, skipinitialspace=True)
    try:
        for values in table:
            yield comments + table.line_num, values
    except csv.Error as error:
        raise BadMeasurement(f"{where}:{comments + table.line_num}: {error}") from None


def _cells(columns: tuple[str, ...], values: list[str]) -> dict[str, str]:
    if len(values) != len(columns):
        raise BadInput(f"the row has {len(values)} cells, not {len(columns)}")
    return dict(zip(columns, map(str.strip, values), strict=True))


def _check_columns(where: str, columns: tuple[str, ...]) -> None:
    if unknown := [column for column in columns if column not in _COLUMNS]:
        raise BadMeasurement(f"{where}: unknown column {unknown[0]!r}; {one_of(_COLUMNS)}")
    if double := [column for column in columns if columns.count(column) > 1]:
        raise BadMeasurement(f"{where}: column {double[0]!r} occurs twice")
    size = ("gpus",) if "gpus" in columns else ("nodes", "gpus_per_node")
    if missing := [column for column in (*_REQUIRED, *size) if column not in columns]:
        raise BadMeasurement(
            f"{where}: column {missing[0]!r} is missing: a table needs {', '.join((*_REQUIRED, *size))}"
        )
    if "gpus" in columns and ("nodes" in columns or "gpus_per_node" in columns):
        raise BadMeasurement(
            f"{where}: has the column gpus as well as nodes or gpus_per_node: leave out the one or the others"
        )


@lru_cache(4096)
def _point(collective: str, nbytes: str, dtype: str, in_place: str) -> Point:
    operation = records.operation(collective)
    return Point(operation, _whole(nbytes, "bytes"), by_name(DataType, dtype, "type"), Op.sum, _in_place(in_place))


def _row(line: int, cell: Mapping[str, str]) -> SampleBlock:
    algorithm, protocol = _name(Algorithm, cell, "algorithm"), _name(Protocol, cell, "protocol")
    point = _point(cell["collective"], cell["bytes"], cell["dtype"], cell.get("in_place", "0"))
    channels = _whole(cell["channels"], "channels") if cell.get("channels") else 0
    gpus = "gpus_per_node" if "gpus_per_node" in cell else "gpus"
    shape = _whole(cell["nodes"], "nodes") if "nodes" in cell else 1, _whole(cell[gpus], gpus)
    requested: Combination | Forced | None = None
    if algorithm is not None or protocol is not None or channels:
        names = ["" if each is None else each.name for each in (algorithm, protocol)]
        forced = Forced(names[0], names[1], channels)
        requested = forced.combination or forced
    row = SampleBlock(
        point, requested, None, (_time_us(cell["time_us"]),), line=line, shape=shape, run=cell.get("run", "")
    )
    _check_values(row)
    return row


def check_row(row: SampleBlock) -> None:
    """Raises BadInput for a time, or a number of ranks or bytes, that the collective cannot have."""
    _check_values(row)
    if (why := not_whole(row)) is not None:
        raise BadInput(f"{row.point.name} of {row.point.dtype.name} with {row.point.bytes} bytes: {why}")


def _check_values(row: SampleBlock) -> None:
    if not 0 < row.median_us < math.inf:
        raise BadInput(f"time_us {row.median_us!r}: give microseconds above 0")
    if row.ranks < 2:
        raise BadInput(f"the row has {row.ranks} GPU in all, but a collective needs 2")
    if row.point.bytes % row.point.dtype.size_bytes:
        raise BadInput(
            f"{row.point.name} of {row.point.dtype.name} with {row.point.bytes} bytes is not a whole number of elements"
        )


def not_whole(row: SampleBlock) -> str | None:
    """The reason why no call can have such a size; None if each rank gets whole elements."""
    parts = row.ranks if row.point.name in records.SPLIT_OVER_RANKS else 1
    if row.point.bytes % (parts * row.point.dtype.size_bytes) == 0:
        return None
    return f"no whole elements for each of {row.ranks} ranks"


def _checked(where: str, table: Measurements) -> Measurements:
    for row in table.blocks:
        if row.run and row.run not in table.header.runs:
            raise BadMeasurement(
                f"{where}:{row.line}: the head of the file does not describe run {row.run!r}; "
                f"{one_of(table.header.runs)}"
            )
    return table


def _with_runs(table: Measurements, columns: Iterable[str], cells: Iterable[Mapping[str, str]]) -> Measurements:
    """The table with the runs that ``source_id`` and ``notes`` describe, and with release and GPU if all notes
    agree.
    """
    if "run" in columns or not {"source_id", "notes"} & set(columns):
        return table
    noted = ((cell.get("source_id", ""), cell.get("notes", "")) for cell in cells)
    runs, head = records.runs_of_notes(noted, table.header)
    rows = tuple(replace(row, run=run) for row, run in zip(table.blocks, runs, strict=True))
    return replace(table, header=head, blocks=rows)


def _name(members: type[Name], cell: Mapping[str, str], column: str) -> Name | None:
    return by_name(members, cell[column], column) if cell.get(column) else None


def _in_place(word: str) -> bool | None:
    if word.lower() not in _PLACES:
        raise BadInput(f"in_place {word!r}: give 0, 1, or nothing if it is not known")
    return _PLACES[word.lower()]


@lru_cache(4096)
def _whole(text: str, column: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise BadInput(f"{column} {text!r}: give a whole number from 1")
    return value


def _time_us(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise BadInput(f"time_us {text!r}: give microseconds above 0") from None


def write(path: Path, table: Measurements) -> None:
    """Writes the table to a file. BadInput if the file cannot be written."""
    write_text(path, text(table))


def text(table: Measurements) -> str:
    """The file's text, from which ``read`` makes the same table except for line numbers."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(OWN_COLUMNS)
    writer.writerows(map(_cells_of, table.blocks))
    return "\n".join([*header_lines(table.header), file.getvalue()])


def _cells_of(row: SampleBlock) -> Iterable[object]:
    cells = columns_of(row) | {"time_us": f"{row.median_us:.10g}"}
    in_place = "" if row.point.in_place is None else int(row.point.in_place)
    return ("" if cell is None else csv_cell(cell) for cell in (cells | {"in_place": in_place}).values())


def columns_of(row: SampleBlock) -> dict[str, str | float | None]:
    """Values of a row by column; None for unknown ones."""
    took = row.took
    return {
        "collective": row.point.name,
        "dtype": row.point.dtype.name,
        "nodes": row.nodes,
        "gpus_per_node": row.gpus_per_node,
        "bytes": row.point.bytes,
        "time_us": row.median_us,
        "in_place": row.point.in_place,
        "algorithm": took.algorithm or None,
        "protocol": took.protocol or None,
        "channels": took.channels or None,
        "run": row.run,
    }


_WHERE = "; 'nccl-tuner measured' shows the tables"


def names() -> tuple[str, ...]:
    """The names of all shipped tables."""
    there = (entry.name for entry in _folder().iterdir())
    return tuple(sorted(name.removesuffix(".csv") for name in there if name.endswith(".csv")))


@cache
def load(name: str) -> Measurements:
    """Reads a shipped table. BadInput for another name."""
    if name not in names():
        raise BadInput(f"no measured table {name!r}; {nearest_of(name, names())}{_WHERE}")
    return parse(name, (_folder() / f"{name}.csv").read_text(encoding="utf-8"), f"tables/measured/{name}.csv")


def named_or_read(path: Path) -> Measurements:
    """Reads a shipped table by its name, or the table in a file. BadMeasurement for another kind of file."""
    return load(str(path)) if str(path) in names() else read(file_of(path))


def file_of(path: Path) -> Path:
    """The file of a shipped table, if ``path`` is a table's name; else ``path`` itself.

    BadMeasurement if neither exists.
    """
    if str(path) in names():
        return Path(str(_folder() / f"{path}.csv"))
    if not path.exists():
        raise BadMeasurement(f"{path}: No such file or shipped table{did_you_mean(str(path), names())}{_WHERE}")
    return path


def _folder() -> Traversable:
    return files("tuner.tables") / "measured"
