"""Decision tables, NVIDIA's configurations and NCCLX's: read, recognised by content, and written as another."""

import re
from dataclasses import dataclass, replace
from pathlib import Path

from tuner.base.errors import BadTable, one_of
from tuner.base.files import read_bytes
from tuner.plugin.formats import ncclx, nvidia, shared
from tuner.plugin.table import fall_through, parse, text
from tuner.plugin.table.records import HEADER, Table
from tuner.release import ALGORITHM_KEYS, PROTOCOL_KEYS

READERS = {"nvidia": nvidia.read, "ncclx-csv": ncclx.read_csv, "ncclx-json": ncclx.read_json}
WRITERS = {"nvidia": nvidia.to_text, "ncclx-csv": ncclx.csv_text, "ncclx-json": ncclx.json_text}
FORMATS = ("table", *READERS)
OF_THE_PLUGIN = ("table", "nvidia")  # that NCCL_TUNER_TABLE may name


@dataclass(frozen=True, slots=True)
class File:
    """A file as it is: where its format is not "table", rows fall through where their choice cannot run
    (``tuner.plugin.table.fall_through``).

    The lines of JSON's rows are the numbers of its rules.
    """

    name: str
    format: str
    table: Table

    def place(self, line: int) -> str:
        """Where a row is, for messages."""
        return f"{self.name}: rule {line}" if self.format == "ncclx-json" else f"{self.name}:{line}"

    @property
    def falls_through(self) -> bool:
        """Whether a row that cannot run leaves the call to the next row, and not to NCCL."""
        return self.format != "table"


def read(path: Path) -> File:
    """BadTable where the file is not there, is of no known format, or has a mistake."""
    return from_content(read_bytes(path, BadTable), str(path))


def from_content(content: bytes, name: str) -> File:
    """A decision table of any of the formats. BadTable for what is none; ``name`` names it in errors."""
    letters = shared.text_of(content, name)
    kind = _format(letters, name)
    if kind == "table":
        return File(name, kind, parse.from_text(content, name))
    table = READERS[kind](letters, name)
    return File(name, kind, replace(table, provenance={"converted-from": kind, **table.provenance}))


def to_text(file: File, target: str) -> str:
    """The file in another format, or in its own; BadTable names a row that the format has no words for."""
    if target not in FORMATS:
        raise BadTable(f"unknown format '{target}' ({one_of(FORMATS)})")
    table = file.table
    if target == "table":
        decisions = fall_through.ranked(table.decisions, file.place) if file.falls_through else table.decisions
        return text.to_text(replace(table, decisions=decisions))
    if others := [row.line for row in table.costs] + [row.line for row in table.constants]:
        place = file.place(min(others))
        raise BadTable(f"{place}: the format {target} has no costs and constants; valid there: decisions")
    rows = table.decisions if file.falls_through else fall_through.single(table.decisions, file.place)
    return WRITERS[target](rows, file.place, table.provenance)


def _format(content: str, name: str) -> str:
    """Which format this is: by its header, its first brace, or where its first row has algorithm and protocol."""
    lines = list(shared.data_lines(content))
    if not lines:
        raise BadTable(f"{name}: empty, so its format is unknown ({one_of(FORMATS)})")
    number, first = lines[0]
    if re.match(rf"{HEADER.split()[0]}\b", first):
        return "table"
    if first.startswith("{"):
        return "ncclx-json"
    fields = ncclx.split(first)
    for kind, at in (("ncclx-csv", 2), ("nvidia", 3)):
        algorithm, protocol = [*fields, *[""] * 5][at : at + 2]
        if algorithm in ALGORITHM_KEYS or protocol in PROTOCOL_KEYS:
            return kind
    raise BadTable(f"{name}:{number}: '{shared.shown(first)}' begins no format that is known ({one_of(FORMATS)})")
