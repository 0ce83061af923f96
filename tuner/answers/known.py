"""Lists what is known by name: machines, releases of NCCL and tables of measured times, for commands and for Python."""

from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING

from tuner import release
from tuner.base.dataclass import dataclass
from tuner.base.frames import Rows
from tuner.base.records import json_form
from tuner.machine import catalogue
from tuner.machine.gpus import PeerToPeer

if TYPE_CHECKING:  # a list of machines does without tables of times
    from tuner.times.measured.header import MeasuredAdapters, MeasuredHealth, MeasuredSource
    from tuner.times.measured.samples import Measurements


@dataclass(frozen=True, slots=True)
class ListedMachine:
    """A machine of the catalogue as ``--json`` lists it. The numbers of GPUs and adapters are those of one node."""

    name: str
    title: str
    gpus_per_node: int
    compute_capability: str
    nics: int
    cpu: str
    peer_to_peer: PeerToPeer
    environment: Mapping[str, str]
    trays: int | None = field(default=None, metadata=json_form(optional=True))  # of a machine that is a NVLink domain


def listed_machine(machine: catalogue.Machine) -> ListedMachine:
    """A machine in the form in which it is listed."""
    topology = machine.topology
    capabilities = sorted(set(topology.compute_capabilities(machine.gpus_per_node)))
    return ListedMachine(
        name=machine.name,
        title=machine.title,
        gpus_per_node=machine.gpus_per_node * (machine.trays or 1),
        compute_capability=", ".join(f"{capability / 10:.1f}" for capability in capabilities),
        nics=len(topology.nets) * (machine.trays or 1),
        cpu=" ".join(filter(None, (topology.cpu_vendor, topology.cpu_arch))),
        peer_to_peer=machine.peer_to_peer,
        environment=machine.environment,
        trays=machine.trays,
    )


@dataclass(frozen=True, slots=True)
class ListedTable:
    """A table as ``--json`` lists it."""

    name: str
    title: str
    machine: str
    machine_note: str
    gpu: str
    nccl: str
    nodes: tuple[int, ...]
    gpus_per_node: tuple[int, ...]
    collectives: tuple[str, ...]
    rows: int
    health: "MeasuredHealth"
    health_note: str
    adapters: "MeasuredAdapters"
    source: "MeasuredSource"


def listed_table(table: "Measurements") -> ListedTable:
    """A table in the form in which it is listed."""
    from tuner.times.measured import COLLECTIVES

    head = table.header
    there = {row.point.name for row in table.blocks}
    return ListedTable(
        name=table.name,
        title=head.title,
        machine=head.machine,
        machine_note=head.machine_note,
        gpu=head.gpu,
        nccl=head.nccl,
        nodes=tuple(sorted({row.nodes for row in table.blocks})),
        gpus_per_node=tuple(sorted({row.gpus_per_node for row in table.blocks})),
        collectives=tuple(name for name in COLLECTIVES if name in there),
        rows=len(table.blocks),
        health=head.health,
        health_note=head.health_note,
        adapters=head.adapters,
        source=head.source,
    )


@dataclass(frozen=True, slots=True)
class ListedRelease:
    """A release of NCCL with whose library the emulator is compared. ``builds`` lists the CUDA builds that exist (cu12,
    cu13).
    """

    name: str
    builds: tuple[str, ...]


def machines() -> Rows[ListedMachine]:
    """The machines of the catalogue; the numbers of GPUs and adapters are those of one node.

    >>> machines()[0].name
    'a100-4x-1nic'
    """
    return Rows(tuple(listed_machine(catalogue.load(name)) for name in catalogue.names()))


def releases() -> Rows[ListedRelease]:
    """The releases of NCCL that are compared with their library, oldest first.

    Other releases are answered if the releases around them agree; the answer then says so.

    >>> releases()[0].name
    '2.18.1'
    """
    return Rows(tuple(ListedRelease(name, tuple(release.load(name).library)) for name in release.names()))


def measured(machine: str | None = None) -> Rows[ListedTable]:
    """The tables of measured times, shipped ones and the user's own kept ones: all, or those of a ``machine``.

    UnknownMachine if there is no such machine.

    >>> len(measured("dgx-b200")) > 5
    True
    """
    from tuner.times import measured as tables
    from tuner.times.acceptance import own_runs

    name = None if machine is None else catalogue.load(machine).name
    every = (*map(tables.load, tables.names()), *map(own_runs.load, own_runs.names()))
    return Rows(tuple(listed_table(each) for each in every if name in (None, each.header.machine)))
