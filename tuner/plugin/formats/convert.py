"""Reads decision tables and the configurations of NVIDIA's and NCCLX's tuners, which are recognised by their content,
and converts them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tuner.base.bounds import ReaderBounds
from tuner.base.dataclass import dataclass
from tuner.base.errors import BadTable, one_of
from tuner.base.files import read_bytes
from tuner.base.nouns import Span
from tuner.plugin.formats import ncclx, shared
from tuner.plugin.formats.shared import Place
from tuner.plugin.table import boxes, parse
from tuner.plugin.table.boxes import Range
from tuner.plugin.table.records import (
    ANY_BYTES,
    ANY_COUNT,
    ANY_PIPELINED,
    HEADER,
    LARGEST,
    LARGEST_COUNT,
    Decision,
    Table,
)
from tuner.plugin.table.values import CUT, GPUS, LARGE, MOST_BYTES, Comments, Mistake, announce, close, lines_of
from tuner.release import ALGORITHM_KEYS, PROTOCOL_KEYS

COLUMNS = "collective,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,regBuff"
REQUIRED = 8
SHORT = 6  # number of columns if nNodes and nRanks are missing, which NVIDIA's plugin requires but people leave out


def read_nvidia(text: str, name: str) -> Table:
    """Reads rows as strictly as the plugin does. Each row has one choice and falls through to the next one if that
    cannot run (``tuner.plugin.formats.shared``).

    BadTable for a mistake, for a missing last line, and if the file has another number of rows than it announces.
    """
    if len(text) > MOST_BYTES:
        raise BadTable(f"{name}: {LARGE}")
    content = text.encode("latin-1")
    rows, comments = [], Comments(content)
    lines = lines_of(content)
    for number, line in enumerate(lines, start=1):
        with shared.at(f"{name}:{number}"):
            comments.take(number, line)
            if row := line.partition(b"#")[0].strip(b" \t"):
                rows.append(_row([field.strip(" \t") for field in row.decode("latin-1").split(",")], number))
    if not text.endswith("\n"):
        raise BadTable(f"{name}:{len(lines)}: {CUT}")
    if missing := comments.missing(len(rows)):
        raise BadTable("{}:{}: {}".format(name, *missing))
    if not comments.gpus:
        return Table(tuple(rows))
    return Table(tuple(rows), provenance={GPUS: comments.gpus}, provenance_lines={GPUS: comments.gpus_line})


@dataclass(frozen=True, slots=True)
class OtherNvidiaFile:
    """A file that is almost in NVIDIA's format. ``header`` is the line number of a header that is not a comment (0:
    none). ``columns`` is the smallest number of columns in a row: rows may lack nNodes and nRanks.
    """

    rows: int
    columns: int
    header: int


def other_nvidia(content: bytes, name: str) -> OtherNvidiaFile | None:
    """How a file differs from NVIDIA's format, if it is almost in that format; else None.

    The file may have a header that is not a comment, and rows without nNodes and nRanks, which then apply to any
    numbers of nodes and ranks.

    None if the file has other differences, too.
    """
    kept, header, counts = list[str](), 0, list[int]()
    for number, line in enumerate(content.decode("latin-1").splitlines(), start=1):
        fields = [field.strip(" \t") for field in line.partition("#")[0].split(",")]
        if fields == [""]:
            continue
        if not kept and not header and {"algorithm", "protocol"} <= {field.lower() for field in fields}:
            header = number
            continue
        counts.append(len(fields))
        kept.append(",".join(fields + ["-1"] * (REQUIRED - len(fields)) if len(fields) == SHORT else fields))
    try:
        table = read_nvidia("".join(f"{line}\n" for line in kept), name)
    except BadTable:
        return None
    return OtherNvidiaFile(len(table.decisions), min(counts), header) if counts else None


def _row(fields: list[str], line: int) -> Decision:
    most = COLUMNS.count(",") + 1
    if not REQUIRED <= len(fields) <= most:
        raise Mistake(f"{len(fields)} columns (valid: {REQUIRED} to {most}: {COLUMNS})")
    collective, low, high, algorithm, protocol, channels, nodes, ranks, pipelined, registered = fields + ["-1"] * (
        most - len(fields)
    )
    # The reader takes -1 for the largest number there (strtoull).
    least, greatest = shared.whole(low, "min_bytes", 0, LARGEST), shared.any_or(high, "max_bytes", 0, LARGEST)
    if greatest is not None and least > greatest:
        raise Mistake(f"min_bytes {least} is above max_bytes {greatest}: no size matches")
    asked = shared.any_or(registered, "regBuff", 0, 1)
    return Decision(
        shared.named(shared.COLLECTIVE_KEYS, collective, "collective"),
        (shared.choice(algorithm, protocol, channels),),
        bytes=Span(least, None if greatest == LARGEST else greatest),
        nodes=shared.exactly(shared.any_or(nodes, "nNodes", 1, LARGEST_COUNT - 1), ANY_COUNT),
        ranks=shared.exactly(shared.any_or(ranks, "nRanks", 1, LARGEST_COUNT - 1), ANY_COUNT),
        pipelined=shared.exactly(shared.any_or(pipelined, "numPipeOps", 0, LARGEST_COUNT - 1), ANY_PIPELINED),
        registered=None if asked is None else bool(asked),
        line=line,
    )


def to_nvidia(rows: Sequence[Decision], place: Place, provenance: Mapping[str, str]) -> str:
    """Writes the rows in NVIDIA's format. BadTable for a row that this format cannot express."""
    head = [f"# {COLUMNS}", announce(len(rows)), *(f"# {key}: {value}" for key, value in provenance.items())]
    return close("\n".join([*head, *shared.columns(rows, _columns, place), ""]), len(rows))


def _columns(row: Decision) -> list[str]:
    (choice,) = row.choices
    box = boxes.of(row)
    if box is None:
        raise Mistake("no communicator has these ranks, nodes and ranks per node")
    exact = box.ranks[0] == box.ranks[1] and box.nodes[0] == box.nodes[1]
    if row.ranks_per_node is not None and not exact:
        raise Mistake("NVIDIA's format cannot say 'ranks-per-node'; valid with it: exact 'nodes' or 'ranks'")
    if row.bytes_per_rank != ANY_BYTES and box.ranks[0] != box.ranks[1]:
        raise Mistake("NVIDIA's format cannot say 'bytes-per-rank'; valid with it: an exact number of ranks")
    if row.nvlink_domains != ANY_COUNT:
        raise Mistake("NVIDIA's format cannot say 'nvlink-domains'")
    if choice.chunk_bytes is not None:
        raise Mistake("NVIDIA's format cannot say 'chunk'")
    words = [
        _count("nodes", box.nodes, row.nodes == ANY_COUNT),
        _count("ranks", box.ranks, row.ranks == ANY_COUNT),
        _count("pipelined", box.pipelined, row.pipelined == ANY_PIPELINED),
    ]
    return [
        row.collective.name.lower(),
        *map(str, box.bytes),
        *shared.cell_keys(choice),
        str(choice.channels or -1),
        *words,
        "-1" if row.registered is None else str(int(row.registered)),
    ]


def _count(key: str, ends: Range, is_any: bool) -> str:
    if ends[0] == ends[1]:
        return str(ends[0])
    if not is_any:
        raise Mistake(f"an interval of '{key}': NVIDIA's format has one number, or any")
    return "-1"


READERS = {"nvidia": read_nvidia, "ncclx-csv": ncclx.read_csv, "ncclx-json": ncclx.read_json}
WRITERS = {"nvidia": to_nvidia, "ncclx-csv": ncclx.csv_text, "ncclx-json": ncclx.json_text}
FORMATS = ("table", *READERS)
OF_THE_PLUGIN = ("table", "nvidia")  # formats that NCCL_TUNER_TABLE accepts


@dataclass(frozen=True, slots=True)
class File:
    """A file as it was read. In all formats except "table", a row whose choice cannot run leaves the call to the next
    row (``tuner.plugin.formats.shared``).

    For JSON, the line of a row is the number of its rule.
    """

    name: str
    format: str
    table: Table

    def place(self, line: int) -> str:
        """The place of a row, for messages."""
        return f"{self.name}: rule {line}" if self.format == "ncclx-json" else f"{self.name}:{line}"

    @property
    def falls_through(self) -> bool:
        """Whether a row whose choice cannot run leaves the call to the next row; if not, NCCL chooses."""
        return self.format != "table"


FILE = ReaderBounds("a decision table, of any format", unpacked_bytes=16 << 20, lines=200_000)


def read(path: Path) -> File:
    """Reads a table of any format. BadTable if the file is missing, has no known format, or has a mistake."""
    return from_content(read_bytes(path, BadTable, bounds=FILE), str(path))


def from_content(content: bytes, name: str) -> File:
    """Reads a decision table in any of the formats. BadTable for anything else; errors name the file ``name``."""
    letters = shared.text_of(content, name)
    kind = format_of(letters, name)
    if kind == "table":
        return File(name, kind, parse.from_text(content, name))
    table = READERS[kind](letters, name)
    return File(name, kind, replace(table, provenance={"converted-from": kind, **table.provenance}))


def to_text(file: File, target: str) -> str:
    """The file's text in the format ``target``. BadTable for a row that this format cannot express."""
    if target not in FORMATS:
        raise BadTable(f"unknown format '{target}' ({one_of(FORMATS)})")
    table = file.table
    if target == "table":
        decisions = shared.ranked(table.decisions, file.place) if file.falls_through else table.decisions
        return parse.to_text(replace(table, decisions=decisions))
    if others := [row.line for row in table.costs] + [row.line for row in table.constants]:
        place = file.place(min(others))
        raise BadTable(f"{place}: the format {target} has no costs and constants; valid there: decisions")
    rows = table.decisions if file.falls_through else shared.single(table.decisions, file.place)
    return WRITERS[target](rows, file.place, table.provenance)


def format_of(content: str, name: str) -> str:
    """The format of a table. The format is recognised by the header, by a brace at the start, or by the columns of the
    first row that hold the algorithm and the protocol.

    BadTable for an unknown format.
    """
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
    if "->" in first:
        raise BadTable(f"{name}:{number}: a row of a decision table without its first line; put '{HEADER}' above it")
    raise BadTable(f"{name}:{number}: '{shared.shown(first)}' begins no format that is known ({one_of(FORMATS)})")
