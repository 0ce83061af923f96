"""The configuration of NVIDIA's example tuner plugin, strictly: what its reader guesses or drops is an error here.

Columns: collective, least and most bytes, algorithm, protocol, channels, nodes, ranks [, numPipeOps [, regBuff]]; -1 is
any, or NCCL's own. Source: plugins/tuner/example/{plugin.c,nccl_tuner.conf}, v2.30.7-1.
"""

from collections.abc import Mapping, Sequence

from tuner.base.errors import BadTable
from tuner.plugin.formats import shared
from tuner.plugin.table import boxes
from tuner.plugin.table.boxes import Range
from tuner.plugin.table.comments import CUT, GPUS, LARGE, MOST_BYTES, Comments, announce, close, lines_of
from tuner.plugin.table.fall_through import Place
from tuner.plugin.table.records import (
    ANY_BYTES,
    ANY_COUNT,
    ANY_PIPELINED,
    LARGEST,
    LARGEST_COUNT,
    Decision,
    Interval,
    Table,
)
from tuner.plugin.table.values import Mistake

COLUMNS = "collective,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,regBuff"
REQUIRED = 8


def read(text: str, name: str) -> Table:
    """Rows of one choice that fall through (``tuner.plugin.table.fall_through``), as strictly as the plugin reads.

    BadTable for a mistake, and for a file that does not end with its last line, or has not the rows that it announces.
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
        bytes=Interval(least, None if greatest == LARGEST else greatest),
        nodes=shared.exactly(shared.any_or(nodes, "nNodes", 1, LARGEST_COUNT - 1), ANY_COUNT),
        ranks=shared.exactly(shared.any_or(ranks, "nRanks", 1, LARGEST_COUNT - 1), ANY_COUNT),
        pipelined=shared.exactly(shared.any_or(pipelined, "numPipeOps", 0, LARGEST_COUNT - 1), ANY_PIPELINED),
        registered=None if asked is None else bool(asked),
        line=line,
    )


def to_text(rows: Sequence[Decision], place: Place, provenance: Mapping[str, str]) -> str:
    """BadTable names the row that has no words in this format."""
    head = [f"# {COLUMNS}", announce(len(rows)), *(f"# {key}: {value}" for key, value in provenance.items())]
    return close("\n".join([*head, *shared.columns(rows, _columns, place), ""]), len(rows))


def _columns(row: Decision) -> list[str]:
    (choice,) = row.choices
    box = boxes.of(row)
    if box is None:
        raise Mistake("no communicator has these ranks, nodes and ranks per node")
    exact = box.ranks[0] == box.ranks[1] and box.nodes[0] == box.nodes[1]
    if row.ranks_per_node is not None and not exact:
        raise Mistake("'ranks-per-node' is nothing that NVIDIA's format says; valid with it: exact 'nodes' or 'ranks'")
    if row.bytes_per_rank != ANY_BYTES and box.ranks[0] != box.ranks[1]:
        raise Mistake("'bytes-per-rank' is nothing that NVIDIA's format says; valid with it: an exact number of ranks")
    if row.nvlink_domains != ANY_COUNT:
        raise Mistake("'nvlink-domains' is nothing that NVIDIA's format says")
    if choice.chunk_bytes is not None:
        raise Mistake("'chunk' is nothing that NVIDIA's format says")
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
