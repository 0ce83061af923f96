"""The tables of ``nvidia-smi topo``: -m and -mp say how devices are connected, -p2p who reaches whose memory.

Read as people keep them: with colours, with tabs or blanks, in a log or a comment, without their legend.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NoReturn

from tuner.base.errors import BadTopology

ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
HEADER = re.compile(r"^[\W_]*(GPU\d+(?=GPU|NIC|mlx|\s|$).*)$")
SECOND_ROW = re.compile(r"^[\W_]*GPU\d+\s+(X|SYS|SOC|NODE|PHB|P[IX][XB]|PSB|NV\d+|OK|[CGT]?NS|DR|U)\s")
TRAILING = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")
TOGETHER = re.compile(r"(?<=\d)(?=(?:NIC|GPU|mlx)\d)")  # names that lost the blank between them
CELL = re.compile(r"\s*(X|SYS|SOC|NODE|PHB|PXB|PIX|PSB|C2C|NV\d{1,2}|OK|CNS|GNS|TNS|NS|DR|U)(?![a-z_\d])")
PEER = {"OK", "CNS", "GNS", "TNS", "NS", "DR", "U"}
SAME = {"SOC": "SYS", "PSB": "PIX"}  # words of other drivers
LEGEND = re.compile(r"^\W*(NIC\d+)\s*:\s*(\S+)")
CPUS = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*")
MOST_DEVICES = 512


@dataclass(slots=True)
class Matrix:
    """One table: ``cells`` by row and column, and of each GPU the CPUs and the NUMA node, where it says them."""

    devices: tuple[str, ...]
    columns: tuple[str, ...]  # after the devices
    cells: dict[tuple[str, str], str] = field(default_factory=dict)
    cpus: dict[str, str] = field(default_factory=dict)
    numa: dict[str, int] = field(default_factory=dict)

    @property
    def is_peer(self) -> bool:
        """Whether it is of -p2p."""
        return any(cell in PEER for cell in self.cells.values())

    @property
    def has_links(self) -> bool:
        """Whether it shows NVLinks, which -mp does not."""
        return any(cell.startswith("NV") for cell in self.cells.values())

    @property
    def gpus(self) -> tuple[str, ...]:
        """GPU0, GPU1 ... as it names them."""
        return tuple(name for name in self.devices if re.fullmatch(r"GPU\d+", name))

    @property
    def adapters(self) -> tuple[str, ...]:
        """The other devices."""
        return tuple(name for name in self.devices if name not in self.gpus)

    def between(self, a: str, b: str) -> str | None:
        """How two devices are connected; either row may say it."""
        return self.cells.get((a, b)) or self.cells.get((b, a))


@dataclass(frozen=True, slots=True)
class Printed:
    """All that a text shows: ``connected`` of -m, then -mp; ``peer`` of -p2p; the names of adapters."""

    connected: tuple[Matrix, ...]
    peer: tuple[Matrix, ...]
    names: Mapping[str, str]


def is_it(text: str) -> bool:
    """Whether there is such a table."""
    lines = ESCAPES.sub("", text).splitlines()
    return any(HEADER.match(a) and SECOND_ROW.match(b) for a, b in pairwise(lines))


def tables(text: str, where: str) -> Printed:
    """The tables of a text. BadTopology, with the line, for one that is not whole."""
    lines = ESCAPES.sub("", text).splitlines()
    found = [
        _matrix(lines, at, where)
        for at, (line, after) in enumerate(pairwise(lines))
        if HEADER.match(line) and not SECOND_ROW.match(line) and SECOND_ROW.match(after)
    ]
    legend = [match for line in lines if (match := LEGEND.match(line))]
    for matrix in found:
        _check_whole(matrix, where)
    return Printed(
        tuple(sorted(_distinct([each for each in found if not each.is_peer]), key=lambda each: not each.has_links)),
        tuple(each for each in found if each.is_peer),
        {match[1]: match[2] for match in legend},
    )


def _distinct(found: Sequence[Matrix]) -> list[Matrix]:
    """Those of one node: of several nodes in a file the first, and a table that is printed twice once."""
    return [each for at, each in enumerate(found) if each not in found[:at] and each.devices == found[0].devices]


def _matrix(lines: Sequence[str], at: int, where: str) -> Matrix:
    header = HEADER.match(lines[at])
    assert header is not None
    head, columns = header[1], []
    for name in TRAILING:
        if name in head:
            head = head.replace(name, " ")
            columns.append(name)
    devices = tuple(TOGETHER.sub(" ", head).split())
    if len(devices) > MOST_DEVICES or len(set(devices)) < len(devices):
        _fail(where, at, f"{len(devices)} devices; valid: up to {MOST_DEVICES}, each once")
    matrix = Matrix(devices, tuple(columns))
    begins = re.compile(rf"^[\W_]*({'|'.join(map(re.escape, sorted(devices, key=len, reverse=True)))})(?=\s)")
    for number in range(at + 1, min(at + 1 + len(devices), len(lines))):
        row = begins.match(lines[number])
        if row is None:
            break
        _row(matrix, row[1], lines[number][row.end() :], f"{where}:{number + 1}")
    return matrix


def _row(matrix: Matrix, name: str, rest: str, where: str) -> None:
    place = 0
    for device in matrix.devices:
        cell = CELL.match(rest, place)
        if cell is None:
            raise BadTopology(
                f"{where}: {name} has {matrix.devices.index(device)} of {len(matrix.devices)} columns; "
                "valid: X, NV and a number, PIX, PXB, PHB, NODE or SYS in each"
            )
        place = cell.end()
        if name != device:
            matrix.cells[name, device] = SAME.get(cell[1], cell[1])
    tokens = rest[place:].split()
    if len(tokens) < len(matrix.columns) and "\t" in rest:
        tokens = [token.strip() for token in rest[place:].removeprefix("\t").split("\t")]
    known = dict(zip(matrix.columns, tokens, strict=False))
    if CPUS.fullmatch(cpus := known.get("CPU Affinity", "")):
        matrix.cpus[name] = cpus
    if numa := re.match(r"\d+", known.get("NUMA Affinity", "")):
        matrix.numa[name] = int(numa[0])


def _check_whole(matrix: Matrix, where: str) -> None:
    """BadTopology where a pair with a GPU in it is in no row."""
    for a in matrix.gpus:
        for b in matrix.devices:
            if a != b and matrix.between(a, b) is None:
                raise BadTopology(f"{where}: no row says how {a} and {b} are connected; valid: the whole table")


def _fail(where: str, at: int, problem: str) -> NoReturn:
    raise BadTopology(f"{where}:{at + 1}: {problem}")
