"""A decision table as a file's content; what is written reads back equal."""

from collections.abc import Callable, Iterator
from pathlib import Path

from tuner.base.errors import BadTable
from tuner.base.files import write_text
from tuner.plugin.table.comments import LARGE, MOST_BYTES, ROWS, announce, close
from tuner.plugin.table.parse import PROVENANCE
from tuner.plugin.table.records import (
    ANY_BYTES,
    ANY_COUNT,
    ANY_PIPELINED,
    HEADER,
    Choice,
    Conditions,
    Constant,
    Cost,
    Decision,
    Interval,
    Table,
)


def to_text(table: Table) -> str:
    """The file's content.

    BadTable where provenance would not read back, a row has ``bytes`` beside ``bytes_per_rank``, or it is too large.
    """
    rows = [*map(_constant, table.constants), *map(_cost, table.costs), *map(decision_text, table.decisions)]
    # How many rows there are stands at the end, and at the head: a file that is cut between lines shows, too.
    provenance = [_provenance(*entry) for entry in table.provenance.items()]
    text = close("\n".join([HEADER, announce(len(rows)), *provenance, *rows, ""]), len(rows))
    if len(text) > MOST_BYTES:
        raise BadTable(f"a table of {len(rows)} rows is {LARGE}, which the plugin does not read")
    return text


def write(path: Path, table: Table) -> None:
    """Writes the table to a file. Errors: BadTable for what the format cannot say; BadInput for an unwritable file."""
    write_text(path, to_text(table))


def _provenance(key: str, value: str) -> str:
    line = f"# {key}: {value}"
    match = PROVENANCE.fullmatch(line)
    if not match or match.groups() != (key, value) or key == ROWS or any(letter in line for letter in "\0\r\n"):
        raise BadTable(f"provenance {key!r}: {value!r} is not a word and one line of text")
    return line


def _constant(constant: Constant) -> str:
    return " ".join(["constant", *constant.words, repr(constant.value)])


def _cost(cost: Cost) -> str:
    words = ["cost", *_conditions(cost), "->", f"{cost.algorithm.name}/{cost.protocol.name}".lower()]
    if cost.time is None:
        return " ".join([*words, "never"])
    words += [f"latency-us={cost.time.latency_us!r}", f"bandwidth-gbs={cost.time.bandwidth_gbs!r}"]
    return " ".join(words if cost.time.batch == 1 else [*words, f"batch={cost.time.batch}"])


def decision_text(row: Decision) -> str:
    """The row as it stands in a table. Errors: BadTable as of :func:`to_text`."""
    words = list(_conditions(row))
    if row.registered is not None:
        words.append(f"registered={'yes' if row.registered else 'no'}")
    if row.pipelined != ANY_PIPELINED:
        words.append(f"pipelined={_interval(row.pipelined, str)}")
    return " ".join([*words, "->", " | ".join(map(choice_text, row.choices)) or "nccl"])


def choice_text(choice: Choice) -> str:
    """The choice as a row has it: ``ring/ll128 channels=8``."""
    words = [f"{choice.algorithm.name}/{choice.protocol.name}".lower()]
    if choice.channels is not None:
        words.append(f"channels={choice.channels}")
    if choice.chunk_bytes is not None:
        words.append(f"chunk={size_text(choice.chunk_bytes)}")
    return " ".join(words)


def _conditions(row: Conditions) -> Iterator[str]:
    yield row.collective.name.lower()
    if row.bytes != ANY_BYTES and row.bytes_per_rank != ANY_BYTES:
        raise BadTable(f"a row for {row.collective.name} has 'bytes' beside 'bytes-per-rank'")
    if row.bytes != ANY_BYTES:
        yield f"bytes={_interval(row.bytes, size_text)}"
    if row.bytes_per_rank != ANY_BYTES:
        yield f"bytes-per-rank={_interval(row.bytes_per_rank, size_text)}"
    if row.ranks != ANY_COUNT:
        yield f"ranks={_interval(row.ranks, str)}"
    if row.nodes != ANY_COUNT:
        yield f"nodes={_interval(row.nodes, str)}"
    if row.ranks_per_node is not None:
        yield f"ranks-per-node={_interval(row.ranks_per_node, str)}"
    if row.nvlink_domains != ANY_COUNT:
        yield f"nvlink-domains={_interval(row.nvlink_domains, str)}"


def _interval(interval: Interval, text: Callable[[int], str]) -> str:
    if interval.high == interval.low:
        return text(interval.low)
    return f"{text(interval.low)}..{'' if interval.high is None else text(interval.high)}"


def size_text(size_bytes: int) -> str:
    """The largest unit that says it exactly."""
    for unit, shift in (("T", 40), ("G", 30), ("M", 20), ("K", 10)):
        if size_bytes and size_bytes % (1 << shift) == 0:
            return f"{size_bytes >> shift}{unit}"
    return str(size_bytes)
