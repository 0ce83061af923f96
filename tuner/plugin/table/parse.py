"""A strict reader and a writer of decision tables. The reader reports the first mistake with its line; it then uses no
part of the file.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tuner.base.bounds import ReaderBounds
from tuner.base.errors import BadTable, one_of
from tuner.base.expressions import expression
from tuner.base.files import read_bytes, write_text
from tuner.base.names import Algorithm, Collective, Protocol
from tuner.base.nouns import Span
from tuner.plugin.table import values
from tuner.plugin.table.records import (
    ANY_BYTES,
    ANY_COUNT,
    ANY_PIPELINED,
    CALLS_EXPLORED,
    CAPS,
    GENERATIONS,
    HEADER,
    LINKS,
    MOST_ARMS,
    MOST_PIPELINED_ENDS,
    SCALES,
    Arms,
    Conditions,
    ConstantRow,
    CostLine,
    CostRow,
    Decision,
    Table,
    TableChoice,
    pipelined_ends,
)
from tuner.plugin.table.values import (
    CUT,
    GPUS,
    LARGE,
    MOST_BYTES,
    ROWS,
    Comments,
    Mistake,
    announce,
    by_name,
    close,
    lines_of,
    shown,
)

PROVENANCE = expression(r"# *([A-Za-z][A-Za-z0-9_-]*): +(\S.*?) *")
_Readers = Mapping[str, Callable[[bytes], Any]]
_WHERE: _Readers = {
    "bytes": values.sizes,
    "bytes-per-rank": values.sizes,
    "ranks": values.counts,
    "nodes": values.counts,
    "ranks-per-node": values.counts,
    "nvlink-domains": values.counts,
}
_WHEN: _Readers = {**_WHERE, "registered": values.yes_or_no, "pipelined": values.counts_from_0}
_TIME: _Readers = {"latency-us": values.latency, "bandwidth-gbs": values.bandwidth, "batch": values.batch}
_SETTINGS: _Readers = {"channels": values.channels, "chunk": values.chunk}
_ARM: _Readers = {"channels": values.channels, **values.SCHEDULE}


FILE = ReaderBounds("a decision table of this project's", unpacked_bytes=16 << 20, lines=200_000)


def read(path: Path) -> Table:
    """Reads a table. BadTable if the file cannot be read or has a mistake."""
    return from_text(read_bytes(path, BadTable, bounds=FILE), str(path))


def from_text(content: bytes | str, name: str = "table") -> Table:
    """Reads a table from its content. BadTable for the first mistake, with ``name`` and the line."""
    # works on bytes throughout, because Python's text has line ends, blanks and digits that the format does not have
    content = content.encode() if isinstance(content, str) else content
    if len(content) > MOST_BYTES:
        raise BadTable(f"{name}: {LARGE}")
    lines = lines_of(content)
    reader = _Reader(content)
    for number, line in enumerate(lines, start=1):
        try:
            reader.take(number, line)
        except Mistake as mistake:
            raise BadTable(f"{name}:{number}: {mistake}") from None
    if not reader.has_header:
        raise BadTable(f"{name}:1: empty: the first line has to be '{HEADER}'")
    if not content.endswith(b"\n"):
        raise BadTable(f"{name}:{len(lines)}: {CUT}")
    if missing := reader.comments.missing(len(reader.decisions) + len(reader.costs) + len(reader.constants)):
        raise BadTable("{}:{}: {}".format(name, *missing))
    return reader.table()


class _Reader:
    def __init__(self, content: bytes) -> None:
        self.has_header = False
        self.decisions: list[Decision] = []
        self.costs: list[CostRow] = []
        self.constants: list[ConstantRow] = []
        self.provenance: dict[str, str] = {}
        self.provenance_lines: dict[str, int] = {}
        self.comments = Comments(content)
        self._in_provenance = False
        self._ends: set[int] = set()  # ends of intervals of ``pipelined``
        self._named: set[tuple[str, ...]] = set()  # names of the constants so far

    def take(self, number: int, line: bytes) -> None:
        self.comments.take(number, line)
        self._take_provenance(number, line)
        words = [word for word in re.split(rb"[ \t]+", line.split(b"#")[0]) if word]
        if words and not self.has_header:
            _check_header(words)
            self.has_header = self._in_provenance = True
        elif words and words[0] == b"cost":
            self.costs.append(_cost(words[1:], number))
        elif words and words[0] == b"constant":
            self._take_constant(words[1:], number)
        elif words:
            self._take_decision(words, number)

    def table(self) -> Table:
        """The table that was read.

        Must be called after the last line, because the comment that names the GPUs may be anywhere.
        """
        if self.comments.gpus:
            self.provenance[GPUS] = self.comments.gpus
            self.provenance_lines[GPUS] = self.comments.gpus_line
        rows = tuple(self.decisions), tuple(self.costs), tuple(self.constants)
        return Table(*rows, self.provenance, self.provenance_lines)

    def _take_provenance(self, number: int, line: bytes) -> None:
        match = PROVENANCE.fullmatch(line.decode(errors="replace")) if self._in_provenance else None
        self._in_provenance = match is not None
        if match and match[1] not in (ROWS, *self.provenance):
            self.provenance[match[1]] = match[2]
            self.provenance_lines[match[1]] = number

    def _take_decision(self, words: list[bytes], number: int) -> None:
        row = _decision(words, number)
        self._ends |= pipelined_ends([row])
        if len(self._ends) > MOST_PIPELINED_ENDS:
            raise Mistake(f"more than {MOST_PIPELINED_ENDS} different ends of 'pipelined' in the table")
        self.decisions.append(row)

    def _take_constant(self, words: list[bytes], number: int) -> None:
        constant = _constant(words, number)
        if constant.words in self._named:
            raise Mistake(f"constant '{' '.join(constant.words)}' twice")
        self._named.add(constant.words)
        self.constants.append(constant)


def _check_header(words: list[bytes]) -> None:
    name, version = HEADER.encode().split()
    if words[0] != name:
        raise Mistake(f"the first line has to be '{HEADER}', not '{shown(b' '.join(words))}'")
    if words[1:] != [version]:
        raise Mistake(f"version '{shown(b' '.join(words[1:]))}' of the table format is unknown (valid: 1)")


def _decision(words: list[bytes], number: int) -> Decision:
    collective, left, right = _sides(words, "an algorithm/protocol")
    when = _conditions(left, _WHEN)
    if right and right[0].lower() == b"explore":
        if "registered" in when:
            raise Mistake("registered= in a row that explores: ranks whose buffers differ would choose differently")
        return Decision(collective, (), arms=_arms(right[1:]), line=number, **when)
    return Decision(collective, _choices(right), line=number, **when)


def _cost(words: list[bytes], number: int) -> CostRow:
    collective, left, right = _sides(words or [b""], "an algorithm/protocol and its time")
    conditions = _conditions(left, _WHERE)
    algorithm, protocol = _cell(right[0] if right else b"")
    time = None if right[1:] == [b"never"] else _time(right[1:])
    return CostRow(collective, algorithm, protocol, time, line=number, **conditions)


def _time(words: list[bytes]) -> CostLine:
    pairs = _pairs(words, _TIME, "after '->'")
    if missing := [key for key in ("latency-us", "bandwidth-gbs") if key not in pairs]:
        raise Mistake(f"no {missing[0]} of a cost (valid: latency-us=NUMBER bandwidth-gbs=NUMBER [batch=N], or never)")
    return CostLine(pairs["latency-us"], pairs["bandwidth-gbs"], pairs.get("batch", 1))


def _constant(words: list[bytes], number: int) -> ConstantRow:
    name = _word(words, 0, ("base-latency-us", "link-latency-us", *CAPS), "constant")
    if name in CAPS:
        where = [_word(words, 1, GENERATIONS, "generation"), _word(words, 2, SCALES, "number of nodes")]
    else:
        link = [] if name == "base-latency-us" else [_word(words, 1, LINKS, "link")]
        at = len(link) + 1
        algorithm, protocol = _cell(words[at] if at < len(words) else b"")
        where = [*link, f"{algorithm.name}/{protocol.name}".lower()]
    rest = words[1 + len(where) :]
    if len(rest) != 1:
        raise Mistake(f"'{shown(b' '.join(rest))}' is not one number at the end of the constant")
    return ConstantRow((name, *where), values.decimal(rest[0], f"constant {name}"), number)


def _word(words: list[bytes], at: int, valid: tuple[str, ...], what: str) -> str:
    word = words[at] if at < len(words) else b""
    if word.decode(errors="replace") not in valid:
        raise Mistake(f"unknown {what} '{shown(word)}' ({one_of(valid)})")
    return word.decode()


def _sides(words: list[bytes], what: str) -> tuple[Collective, list[bytes], list[bytes]]:
    """Splits a row: the collective, the words between it and the arrow, and the words after the arrow."""
    collective = by_name(Collective, words[0], "collective")
    if b"->" not in words:
        raise Mistake(f"no '->' with {what} after it")
    arrow = words.index(b"->")
    return collective, words[1:arrow], words[arrow + 1 :]


def _conditions(words: list[bytes], readers: _Readers) -> dict[str, Any]:
    pairs = _pairs(words, readers, "before '->'")
    if "bytes" in pairs and "bytes-per-rank" in pairs:
        raise Mistake("'bytes' and 'bytes-per-rank' in one row")
    return {key.replace("-", "_"): value for key, value in pairs.items()}


def _arms(words: list[bytes]) -> Arms:
    arms: list[TableChoice | None] = []
    schedule: dict[str, int] = {}
    parts = _parts(words)
    for index, part in enumerate(parts):
        own = bool(part) and part[0].lower() == b"nccl"
        algorithm_protocol = None if own else _cell(part[0] if part else b"")
        settings = _pairs(part[1:], _ARM, "after explore")
        if own and "channels" in settings:
            raise Mistake("nccl takes no channels")
        schedule = {key: settings[key] for key in values.SCHEDULE if key in settings}
        if schedule and index + 1 < len(parts):
            raise Mistake("every, block and calls stand behind the last arm")
        if len(arms) == MOST_ARMS:
            raise Mistake(f"more than {MOST_ARMS} arms")
        arm = None if algorithm_protocol is None else TableChoice(*algorithm_protocol, settings.get("channels"))
        if arm in arms:
            raise Mistake(f"'{shown(part[0])}' twice with the same channels")
        arms.append(arm)
    if not any(arms):
        raise Mistake("nothing to explore but nccl")
    if missing := [key for key in ("every", "block") if key not in schedule]:
        raise Mistake(f"no {missing[0]}=N behind the last arm")
    return Arms(tuple(arms), schedule["every"], schedule["block"], schedule.get("calls", CALLS_EXPLORED))


def _parts(words: list[bytes]) -> list[list[bytes]]:
    """Splits words at the bars."""
    parts: list[list[bytes]] = [[]]
    for word in words:
        if word == b"|":
            parts.append([])
        else:
            parts[-1].append(word)
    return parts


def _choices(words: list[bytes]) -> tuple[TableChoice, ...]:
    parts = _parts(words)
    choices: list[TableChoice] = []
    for index, part in enumerate(parts):
        if part and part[0].lower() == b"nccl":
            if part[1:] or index + 1 < len(parts):
                raise Mistake("'nccl' takes no settings, and nothing comes after it")
            break
        choice = _choice(part)
        if choice.algo_proto in [other.algo_proto for other in choices]:
            raise Mistake(f"'{choice.algorithm.name}/{choice.protocol.name}' twice")
        choices.append(choice)
    return tuple(choices)


def _choice(words: list[bytes]) -> TableChoice:
    algorithm, protocol = _cell(words[0] if words else b"")
    settings = _pairs(words[1:], _SETTINGS, "after '->'")
    return TableChoice(algorithm, protocol, settings.get("channels"), settings.get("chunk"))


def _cell(word: bytes) -> tuple[Algorithm, Protocol]:
    algorithm, slash, protocol = word.partition(b"/")
    if not slash:
        raise Mistake(f"'{shown(word)}' is not algorithm/protocol, such as ring/ll128")
    return by_name(Algorithm, algorithm, "algorithm"), by_name(Protocol, protocol, "protocol")


def _pairs(words: list[bytes], readers: _Readers, side: str) -> dict[str, Any]:
    pairs: dict[str, Any] = {}
    for word in words:
        key_bytes, equals, value = word.partition(b"=")
        key = key_bytes.decode(errors="replace")
        if not equals or key not in readers:
            what = f"unknown key '{shown(key_bytes)}'" if equals else f"'{shown(word)}' is not key=value"
            raise Mistake(f"{what} (valid {side}: {', '.join(readers)})")
        if key in pairs:
            raise Mistake(f"'{key}' twice")
        pairs[key] = readers[key](value)
    return pairs


def to_text(table: Table) -> str:
    """The file's content.

    BadTable if the provenance could not be read back, a row has both ``bytes`` and ``bytes_per_rank``, or the table is
    too large.
    """
    rows = [*map(_constant_text, table.constants), *map(_cost_text, table.costs), *map(decision_text, table.decisions)]
    # The number of rows stands at the end and at the head, so that a file that is cut between lines is detected.
    provenance = [_provenance(*entry) for entry in table.provenance.items()]
    text = close("\n".join([HEADER, announce(len(rows)), *provenance, *rows, ""]), len(rows))
    if len(text) > MOST_BYTES:
        raise BadTable(f"a table of {len(rows)} rows is {LARGE}, which the plugin does not read")
    return text


def write(path: Path, table: Table) -> None:
    """Writes the table to a file. BadTable for what the format cannot express; BadInput for an unwritable file."""
    write_text(path, to_text(table))


def _provenance(key: str, value: str) -> str:
    line = f"# {key}: {value}"
    match = PROVENANCE.fullmatch(line)
    if not match or match.groups() != (key, value) or key == ROWS or any(letter in line for letter in "\0\r\n"):
        raise BadTable(f"provenance {key!r}: {value!r} is not a word and one line of text")
    return line


def _constant_text(constant: ConstantRow) -> str:
    return " ".join(["constant", *constant.words, repr(constant.value)])


def _cost_text(cost: CostRow) -> str:
    words = ["cost", *_conditions_text(cost), "->", f"{cost.algorithm.name}/{cost.protocol.name}".lower()]
    if cost.time is None:
        return " ".join([*words, "never"])
    words += [f"latency-us={cost.time.latency_us!r}", f"bandwidth-gbs={cost.time.bandwidth_gbs!r}"]
    return " ".join(words if cost.time.batch == 1 else [*words, f"batch={cost.time.batch}"])


def decision_text(row: Decision) -> str:
    """The row as a table writes it. BadTable if it has both ``bytes`` and ``bytes_per_rank``."""
    words = list(_conditions_text(row))
    if row.registered is not None:
        words.append(f"registered={'yes' if row.registered else 'no'}")
    if row.pipelined != ANY_PIPELINED:
        words.append(f"pipelined={_interval(row.pipelined, str)}")
    if row.arms is not None:
        return " ".join([*words, "->", "explore", _arms_text(row.arms)])
    return " ".join([*words, "->", " | ".join(map(choice_text, row.choices)) or "nccl"])


def _arms_text(arms: Arms) -> str:
    choices = " | ".join("nccl" if arm is None else choice_text(arm) for arm in arms.choices)
    calls = "" if arms.calls == CALLS_EXPLORED else f" calls={arms.calls}"
    return f"{choices} every={arms.every} block={arms.block}{calls}"


def choice_text(choice: TableChoice) -> str:
    """The choice as a row writes it: ``ring/ll128 channels=8``."""
    words = [f"{choice.algorithm.name}/{choice.protocol.name}".lower()]
    if choice.channels is not None:
        words.append(f"channels={choice.channels}")
    if choice.chunk_bytes is not None:
        words.append(f"chunk={size_text(choice.chunk_bytes)}")
    return " ".join(words)


def _conditions_text(row: Conditions) -> Iterator[str]:
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


def _interval(interval: Span, text: Callable[[int], str]) -> str:
    if interval.high == interval.low:
        return text(interval.low)
    return f"{text(interval.low)}..{'' if interval.high is None else text(interval.high)}"


def size_text(size_bytes: int) -> str:
    """Writes a size in the largest unit that expresses it exactly."""
    for unit, shift in (("T", 40), ("G", 30), ("M", 20), ("K", 10)):
        if size_bytes and size_bytes % (1 << shift) == 0:
            return f"{size_bytes >> shift}{unit}"
    return str(size_bytes)
