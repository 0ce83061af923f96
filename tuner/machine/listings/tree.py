"""Finds a tree of PCI switches and NUMA nodes that fits a table of connections, in the form in which NCCL would have
found it.

In the table of nvidia-smi, PIX means one PCI switch between two devices, PXB several switches; PHB and NODE mean the
same CPU, SYS different CPUs. So devices with PIX between them are put below one <pci>. Groups of these with PXB between
them are put below a further, common <pci>. All devices that are nearer to each other than SYS, or on one NUMA node, are
put below one <cpu>.
"""

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from itertools import pairwise
from typing import NoReturn

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadTopology
from tuner.base.expressions import expression
from tuner.base.spelling import option
from tuner.machine.listings.shape import Listing

ESCAPES = expression(r"\x1b\[[0-9;]*[A-Za-z]")
HEADER = expression(r"^[\W_]*(GPU\d+(?=GPU|NIC|mlx|\s|$).*)$")
SECOND_ROW = expression(r"^[\W_]*GPU\d+\s+(X|SYS|SOC|NODE|PHB|P[IX][XB]|PSB|NV\d+|OK|[CGT]?NS|DR|U)\s")
TRAILING = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")
TOGETHER = expression(r"(?<=\d)(?=(?:NIC|GPU|mlx)\d)")  # finds names that lost the blank between them
CELL = expression(r"\s*(X|SYS|SOC|NODE|PHB|PXB|PIX|PSB|C2C|NV\d{1,2}|OK|CNS|GNS|TNS|NS|DR|U)(?![a-z_\d])")
PEER = {"OK", "CNS", "GNS", "TNS", "NS", "DR", "U"}
SAME = {"SOC": "SYS", "PSB": "PIX"}  # words of other drivers, with the usual ones
LEGEND = expression(r"^\W*(NIC\d+)\s*:\s*(\S+)")
CPUS = expression(r"\d+(-\d+)?(,\d+(-\d+)?)*")
MOST_DEVICES = 512


@dataclass(slots=True)
class Matrix:
    """One table: ``cells`` by row and column, and the CPUs and the NUMA node of each GPU, if the table has them."""

    devices: tuple[str, ...]
    columns: tuple[str, ...]  # the columns after those of the devices
    cells: dict[tuple[str, str], str] = field(default_factory=dict)
    cpus: dict[str, str] = field(default_factory=dict)
    numa: dict[str, int] = field(default_factory=dict)

    @property
    def is_peer(self) -> bool:
        """Whether ``nvidia-smi topo -p2p`` printed the table."""
        return any(cell in PEER for cell in self.cells.values())

    @property
    def has_links(self) -> bool:
        """Whether the table shows NVLinks; tables of ``nvidia-smi topo -mp`` do not."""
        return any(cell.startswith("NV") for cell in self.cells.values())

    @property
    def gpus(self) -> tuple[str, ...]:
        """The names of GPUs in the table: GPU0, GPU1 ..."""
        return tuple(name for name in self.devices if re.fullmatch(r"GPU\d+", name))

    @property
    def adapters(self) -> tuple[str, ...]:
        """The names of the table's devices that are not GPUs."""
        return tuple(name for name in self.devices if name not in self.gpus)

    def between(self, a: str, b: str) -> str | None:
        """The connection of two devices, from the row of either device."""
        return self.cells.get((a, b)) or self.cells.get((b, a))


@dataclass(frozen=True, slots=True)
class Printed:
    """The tables of ``nvidia-smi topo`` in a text, and the names of adapters.

    ``connected`` has the tables of the option -m and then those of -mp; ``peer`` has the tables of -p2p.
    """

    connected: tuple[Matrix, ...]
    peer: tuple[Matrix, ...]
    names: Mapping[str, str]


def is_it(text: str) -> bool:
    """Whether the text contains a table of nvidia-smi topo."""
    lines = ESCAPES.sub("", text).splitlines()
    return any(HEADER.match(a) and SECOND_ROW.match(b) for a, b in pairwise(lines))


def tables(text: str, where: str) -> Printed:
    """The tables in a text. BadTopology, with the line, if a table is incomplete."""
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
    """The different tables of one node; if there are several nodes, of the first one."""
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
                f"{where}: the row of {name} has {matrix.devices.index(device)} of {len(matrix.devices)} columns: each "
                "has to be X, NV and a number, PIX, PXB, PHB, NODE or SYS"
            )
        place = cell.end()
        if name != device:
            matrix.cells[name, device] = SAME.get(cell[1], cell[1])
    tokens = rest[place:].split()
    if len(tokens) < len(matrix.columns) and "\t" in rest:
        tokens = [token.strip() for token in rest[place:].lstrip(" ").removeprefix("\t").split("\t")]
    known = dict(zip(matrix.columns, tokens, strict=False))
    if CPUS.fullmatch(cpus := known.get("CPU Affinity", "")):
        matrix.cpus[name] = cpus
    if numa := re.match(r"\d+", known.get("NUMA Affinity", "")):
        matrix.numa[name] = int(numa[0])


def _check_whole(matrix: Matrix, where: str) -> None:
    """Raises BadTopology if the connection between a GPU and some other device is in no row."""
    for a in matrix.gpus:
        for b in matrix.devices:
            if a != b and matrix.between(a, b) is None:
                raise BadTopology(f"{where}: no row says how {a} and {b} are connected: give the whole table")


def _fail(where: str, at: int, problem: str) -> NoReturn:
    raise BadTopology(f"{where}:{at + 1}: {problem}")


GPU_CLASS, ADAPTER_CLASS, SWITCH_CLASS = "0x030200", "0x020700", "0x060400"
NEAR = {"PIX": 0, "PXB": 1, "PHB": 2, "NODE": 3}  # SYS is farther than all of these
# Peer-to-peer is refused because of the chipset, the GPU, the topology or a registry key; NS means NVLinks that do not
# exist
REFUSED = {"CNS", "GNS", "TNS", "DR"}
Group = tuple[str, ...]


def listing(printed: Printed, file: str) -> Listing:
    """The listing of the node that these tables describe.

    Its devices are those of the first table.
    """
    matrix, notes = printed.connected[0], list[str]()
    near = _nearness(printed.connected)
    numa_of = _numa_nodes(matrix, near, notes)
    buses = _Buses(matrix, printed)
    root = ET.Element("system", {"version": "1"})
    for numa in sorted(set(numa_of.values())):
        cpu = ET.SubElement(root, "cpu", {"numaid": str(numa)})
        here = tuple(name for name in matrix.devices if numa_of[name] == numa)
        for together in _groups(here, lambda a, b: near(a, b) <= NEAR["PXB"]):
            _place(cpu, together, near, buses)
    links = {
        (a, b): int(cell.removeprefix("NV")) if cell.startswith("NV") else 0
        for a, one in enumerate(matrix.gpus)
        for b, other in enumerate(matrix.gpus)
        if a < b and (cell := matrix.between(one, other) or "")
    }
    if len(printed.connected) == 1 and any(links.values()) and len(matrix.gpus) > 1:
        notes.append(
            "NVLinks hide which GPUs are below one PCI switch: taken apart unless an adapter joins them; "
            "'nvidia-smi topo -mp' in the same file says it"
        )
    if matrix.adapters:
        notes.append("NCCL uses every adapter that is up, except for those that NCCL_IB_HCA excludes")
    notes += _peer_notes(printed, numa_of)
    return Listing(file, "nvidia-smi topo -m", root, len(matrix.gpus), links, {}, (), tuple(notes))


def _nearness(tables: Sequence[Matrix]) -> Callable[[str, str], int]:
    """A function that returns the distance of two devices over PCIe: 0 for PIX, the largest value for what is farther
    than NODE. An NVLink entry does not show this distance."""

    def near(a: str, b: str) -> int:
        said = [table.between(a, b) for table in tables]
        return min((NEAR[cell] for cell in said if cell in NEAR), default=len(NEAR))

    return near


def _groups(devices: Iterable[str], joined: Callable[[str, str], bool]) -> list[Group]:
    """Groups of devices that are joined, directly or through other devices, in the order of the devices."""
    groups: list[list[str]] = []
    for name in devices:
        mine = [group for group in groups if any(joined(name, other) for other in group)]
        groups = [group for group in groups if group not in mine] + [
            [*(each for group in mine for each in group), name]
        ]
    order = list(devices)
    return sorted((tuple(sorted(group, key=order.index)) for group in groups), key=lambda group: order.index(group[0]))


def _numa_nodes(matrix: Matrix, near: Callable[[str, str], int], notes: list[str]) -> dict[str, int]:
    """The NUMA node of each device: for GPUs what the table says, for other devices the NUMA node of the devices near
    them."""
    apart = len(NEAR)

    def joined(a: str, b: str) -> bool:
        numa = matrix.numa.get(a), matrix.numa.get(b)
        if None not in numa:
            return numa[0] == numa[1]
        cpus = matrix.cpus.get(a), matrix.cpus.get(b)
        return near(a, b) < apart or (None not in cpus and cpus[0] == cpus[1])

    nodes, taken = dict[str, int](), set(matrix.numa.values())
    for group in _groups(matrix.devices, joined):
        said = sorted({matrix.numa[name] for name in group if name in matrix.numa})
        free = next(number for number in range(len(matrix.devices) + 1) if number not in taken)
        number = said[0] if said else free
        taken.add(number)
        for name in group:
            nodes[name] = matrix.numa.get(name, number)
        if len(said) > 1:
            notes.append(
                f"{', '.join(group)} are of NUMA nodes {', '.join(map(str, said))}: adapters put into the first"
            )
    return nodes


def _place(cpu: ET.Element, together: Group, near: Callable[[str, str], int], buses: "_Buses") -> None:
    """Places devices with PXB between them: one switch for those with PIX between them, and if there are several such
    switches, another one above."""
    inner = _groups(together, lambda a, b: near(a, b) <= NEAR["PIX"])
    if len(inner) == 1:
        above = cpu if len(together) == 1 else buses.switch(cpu)
        for name in together:
            buses.device(above, name)
        return
    upper = buses.switch(cpu)
    alone = next((group for group in inner if len(group) == 1 and not group[0].startswith("GPU")), None)
    for group in inner:
        above = upper if group == alone else buses.switch(upper)
        for name in group:
            buses.device(above, name)


class _Buses:
    """Adds devices with bus ids. The table has no bus ids, so they are invented, in the order of the devices'
    numbers."""

    def __init__(self, matrix: Matrix, printed: Printed) -> None:
        self._matrix, self._names, self._switches = matrix, printed.names, 0

    def switch(self, above: ET.Element) -> ET.Element:
        self._switches += 1
        busid = f"ff{self._switches // 256:02x}:{self._switches % 256:02x}:00.0"
        return ET.SubElement(above, "pci", {"busid": busid, "class": SWITCH_CLASS})

    def device(self, above: ET.Element, name: str) -> None:
        gpus, adapters = self._matrix.gpus, self._matrix.adapters
        if name in gpus:
            number = gpus.index(name)
            pci = ET.SubElement(above, "pci", {"busid": f"0000:{number:02x}:00.0", "class": GPU_CLASS})
            ET.SubElement(pci, "gpu", {"dev": str(number)})
            return
        number = adapters.index(name)
        busid = f"{1 + number // 256:04x}:{number % 256:02x}:00.0"
        pci = ET.SubElement(above, "pci", {"busid": busid, "class": ADAPTER_CLASS})
        net = {"name": self._names.get(name, name), "dev": str(number), "port": "1", "guid": hex(number + 1)}
        ET.SubElement(ET.SubElement(pci, "nic"), "net", net)


def _peer_notes(printed: Printed, numa_of: Mapping[str, int]) -> Iterator[str]:
    """Yields notes, from the tables of -p2p, about GPUs that cannot access each other's memory."""
    cells = {pair: cell for table in printed.peer for pair, cell in table.cells.items()}
    refused = {pair for pair, cell in cells.items() if cell in REFUSED}
    if refused and refused == set(cells):
        yield f"no GPU reaches another's memory ({_words(cells, refused)}): {option('change')} p2p=none"
    elif refused and refused == {pair for pair in cells if len({numa_of.get(name) for name in pair}) > 1}:
        why = _words(cells, refused)
        yield f"GPUs of two sockets do not reach each other's memory ({why}): {option('change')} p2p=within-sockets"
    elif refused:
        pairs = sorted({"-".join(sorted(pair)) for pair in refused})
        yield f"not taken into the topology: {', '.join(pairs)} do not reach each other ({_words(cells, refused)})"
    table = printed.connected[0]
    silent = [(a, b) for (a, b), cell in cells.items() if cell == "NS" and (table.between(a, b) or "").startswith("NV")]
    if silent:
        yield f"-p2p says NS between {len(silent) // 2} pairs of GPUs that have NVLinks: NVLinks are not used there"


def _words(cells: Mapping[tuple[str, str], str], pairs: Iterable[tuple[str, str]]) -> str:
    return ", ".join(sorted({cells[pair] for pair in pairs}))
