"""Examines a topology: findings, the repaired text, and what NCCL picks before and after the repair."""

import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from tuner.answers.changes import AtSize, at_sizes
from tuner.answers.diff import Side
from tuner.answers.doctor import check_gpus, check_links, check_places
from tuner.answers.doctor.records import NOTE, UNLIKE, WRONG, ExaminedNode, TopologyFinding
from tuner.base.dataclass import dataclass
from tuner.base.errors import BadTopology, TunerError
from tuner.base.files import write_text
from tuner.emulator.request import Request
from tuner.machine import catalogue
from tuner.machine.adapters import Nearness
from tuner.machine.listings.complete import compared, ranked
from tuner.machine.listings.shape import of_topology
from tuner.machine.topology import edit, read
from tuner.scenario import Scenario
from tuner.scenario.domain import what_hosts_are
from tuner.scenario.node import MOST_RANKS

LINKS = "pcie"  # the change of which there may be one for each device
CHECKS = (check_places.check, check_links.check_links, check_gpus.check, check_links.check_adapters)


@dataclass(frozen=True, slots=True)
class Examination:
    """Findings in ``file``. ``nearness`` says which machine of the catalogue the topology is compared with, and how
    similar both are. ``topology`` is the text of the repaired topology.

    ``left`` are the findings that remain in the repaired text. ``sizes`` has NCCL's picks before and after the repair,
    for the release ``nccl`` and ``nodes`` nodes. It is empty if the picks before or after the repair cannot be
    computed; ``not_priced`` then says why.
    """

    file: str
    nearness: Nearness | None
    findings: tuple[TopologyFinding, ...]
    changes: tuple[str, ...]
    left: tuple[TopologyFinding, ...]
    topology: str
    sizes: tuple[AtSize, ...]
    not_priced: str | None
    nccl: str
    nodes: int

    @property
    def sound(self) -> bool:
        """Whether the topology has no finding of the severity ``wrong``. Notes, and differences from a machine that
        only resembles the node, do not count.
        """
        return all(finding.severity != WRONG for finding in self.findings)


@dataclass(frozen=True, slots=True)
class DoctorOptions:
    """Release, number of nodes, call and sizes (bytes) for which the cost of all faults together is computed. The cost
    of each single finding is computed at the last size.
    """

    nccl: str
    nodes: int
    request: Request
    sizes: tuple[int, ...]


def examine(file: str, text: str, like: str | None, asked: DoctorOptions) -> Examination:
    """Examines the topology ``text`` of ``file``. ``like`` names a machine; None: the nearest with as many equal GPUs.

    BadTopology if the text is not a topology or has more GPUs than NCCL has room for. UnknownMachine for an unknown
    ``like``.
    """
    if (gpus := len(read(text).gpus)) > MOST_RANKS:
        raise BadTopology(f"{file} has {gpus} GPUs in one node, but NCCL has room for {MOST_RANKS}")
    near, named = nearest(text, like), like is not None
    findings = [*found(node_of(text, near, named)), *_split(file, text, asked)]
    changes = tuple(change for finding in findings if finding.severity == WRONG for change in finding.changes)
    repaired = after(text, changes)
    left = found(node_of(repaired, near, named)) if changes else findings
    sizes: tuple[AtSize, ...] = ()
    why = None
    if changes:
        try:
            sizes, findings = _priced(text, repaired, findings, asked)
        except TunerError as error:
            why = str(error)
    return Examination(file, near, tuple(findings), changes, tuple(left), repaired, sizes, why, asked.nccl, asked.nodes)


def nearest(text: str, like: str | None) -> Nearness | None:
    """The machine to compare with: the machine ``like``, else the nearest machine with as many equal GPUs."""
    shape = of_topology(text)
    if like is not None:
        return compared(catalogue.load(like).name, shape)
    for near in ranked(shape, trays=True):
        of_machine = of_topology(catalogue.load(near.machine).topology_xml)
        same = bool(set(shape.devices) & set(of_machine.devices)) or shape.comp_cap == of_machine.comp_cap
        if same and shape.gpus == of_machine.gpus:
            return near
    return None


def found(node: ExaminedNode) -> list[TopologyFinding]:
    """All findings, faults first."""
    every = [finding for check in CHECKS for finding in check(node)]
    order = (WRONG, UNLIKE, NOTE)
    return sorted(every, key=lambda finding: order.index(finding.severity))


def _split(file: str, text: str, asked: DoctorOptions) -> Iterator[TopologyFinding]:
    """Finds whether NCCL splits the host into several nodes, and how. That is no fault, but it changes what NCCL
    does.
    """
    try:
        with tempfile.TemporaryDirectory() as name:
            own = Path(name) / "topology.xml"
            says = what_hosts_are(_side(own, text, asked).scenario.resolve().nodes)
    except TunerError:
        return
    if says is not None:
        says = says.replace(str(own), file)
        yield TopologyFinding(
            "split-host", NOTE, says, (), "set NCCL_NET_DISABLE_INTRA=1 if all GPUs should be one node"
        )


def after(text: str, changes: Sequence[str]) -> str:
    """The text after applying the changes in order; they are written as for ``diff``. Neighbouring changes of PCIe
    links that name their devices are applied together.
    """
    pairs = [(key, value) for key, _, value in (change.partition("=") for change in changes)]
    in_turn: list[tuple[str, str]] = []
    for key, alike in groupby(pairs, key=itemgetter(0)):
        values = [value for _, value in alike]
        joined = [",".join(values)] if key == LINKS and all("@" in each for each in values) else values
        in_turn += [(key, value) for value in joined]
    return edit.edited(text, in_turn) if in_turn else text


def node_of(text: str, near: Nearness | None, named: bool = False) -> ExaminedNode:
    """The node of a topology, together with the machine ``near`` with which it is compared. ``named``: whether the user
    said that the node is this machine. Raises BadTopology.
    """
    root = ET.fromstring(text)
    like = None if near is None else catalogue.load(near.machine)
    like_root = None if like is None else ET.fromstring(like.topology_xml)
    return ExaminedNode(
        text,
        root,
        read(text),
        of_topology(text),
        {child: parent for parent in root.iter() for child in parent},
        like,
        like_root,
        like_root is not None and (named or _same(root, like_root)),
    )


def _same(root: ET.Element, other: ET.Element) -> bool:
    """Whether most GPUs and adapters have the same ids and bus ids in both trees, so that it is the same product."""
    mine, theirs = _devices(root), _devices(other)
    return 2 * len(mine & theirs) > len(mine)


def _devices(root: ET.Element) -> set[tuple[str | None, ...]]:
    """Identifies devices: GPUs by bus id and device id, adapters by name and bus id."""
    slots = [pci for pci in root.iter("pci") if pci.find("gpu") is not None]
    nets = [(net.get("name"), pci.get("busid")) for pci in root.iter("pci") for net in pci.findall("nic/net")]
    return {(pci.get("busid"), pci.get("device")) for pci in slots} | set(nets)


def _priced(
    text: str, repaired: str, findings: Sequence[TopologyFinding], asked: DoctorOptions
) -> tuple[tuple[AtSize, ...], list[TopologyFinding]]:
    """Picks before and after, and the findings, each with the bus bandwidth at the last size if all except this finding
    is repaired.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        before, whole = _side(folder / "before", text, asked), _side(folder / "after", repaired, asked)
        sizes = tuple(at_sizes(before, whole, asked.request, asked.sizes))
        alone = [finding for finding in findings if finding.changes and finding.severity == WRONG]
        left: dict[int, float | None]
        if len(alone) < 2:
            left = {id(finding): sizes[-1].busbw_gbs_before for finding in alone}
        else:
            left = {id(each): _left(folder, text, each, (alone, whole, asked)) for each in alone}
        return sizes, [replace(each, busbw_gbs_left=left.get(id(each))) for each in findings]


def _left(
    folder: Path, text: str, left: TopologyFinding, among: tuple[Sequence[TopologyFinding], Side, DoctorOptions]
) -> float | None:
    """The bus bandwidth if all findings except ``left`` are repaired; None if that cannot be answered."""
    findings, whole, asked = among
    changes = [change for finding in findings if finding is not left for change in finding.changes]
    try:
        side = _side(folder / f"without-{findings.index(left)}", after(text, changes), asked)
        (last,) = at_sizes(side, whole, asked.request, asked.sizes[-1:])
    except TunerError:
        return None
    return last.busbw_gbs_before


def _side(file: Path, text: str, asked: DoctorOptions) -> Side:
    write_text(file, text)
    return Side(Scenario(asked.nccl, asked.nodes, topology=file))
