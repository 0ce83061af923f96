"""A communicator as a log shows it: its facts, what the log does not say of it, and what it printed.

Facts that a user gives go before the log's. Nothing is guessed: what the emulator needs and neither says is ``needed``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tuner import release
from tuner.base.errors import BadInput
from tuner.base.names import Collective, DataType, Op
from tuner.emulator.build import build
from tuner.emulator.communicator import Communicator, Node
from tuner.logs.reader import Block
from tuner.machine.graphs import Graphs
from tuner.machine.topology import Topology
from tuner.release.environment import Environment


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What a user says of the run; None and empty leave it to the log."""

    communicator: str | None = None
    release: str | None = None
    nodes: int | None = None
    comp_caps: tuple[int, ...] = ()  # one for all GPUs, or one per rank
    cpu_arch: str | None = None
    cpu_vendor: str | None = None
    nvswitch: bool | None = None
    net_latency_us: float | None = None
    net_gbs: float | None = None  # slowest path from a GPU to its own adapter
    environment: Mapping[str, str] = field(default_factory=dict)
    topology: Topology | None = None
    graphs: Graphs | None = None
    collective: Collective | None = None


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """One node; what neither the log nor the user says is None."""

    ranks: tuple[int, ...]  # those that the log shows
    local_ranks: int | None
    hosts: int | None  # more than one in a NVLink domain
    mnnvl: bool  # NVLink between hosts is on
    comp_caps: tuple[int, ...] | None
    cpu_arch: str | None
    cpu_vendor: str | None
    nvswitch: bool | None
    graphs: Graphs | None


@dataclass(frozen=True, slots=True)
class LoggedChoice:
    """A choice as printed, ``count`` times; ``bytes`` is NCCL's nBytes, None where the collective is not known."""

    collective: Collective | None
    bytes: int | None
    algorithm: str
    protocol: str
    channel_lo: int | None
    channel_hi: int | None
    time_us: str | None
    dtype: DataType | None
    op: Op | None
    operations: int | None  # calls in its group; None where the log has no COLL lines
    count: int = 1


@dataclass(frozen=True, slots=True)
class Imported:
    """Everything read of one communicator. ``needed`` is what emulating it lacks, ``missing`` what was not printed."""

    release: str | None
    communicator: str | None
    communicators: tuple[tuple[str, int | None], ...]  # all of the log: name, ranks
    ranks: int | None
    node_count: int | None
    nodes: tuple[NodeFacts, ...]  # one for those that are shown, where their number is not known
    environment: Mapping[str, str]
    net_gbs: float | None
    table: tuple[Block, ...]
    thresholds: tuple[str, ...] | None
    coll_channels: str | None
    nvls_channels: str | None
    choices: tuple[LoggedChoice, ...]
    symmetric: tuple[str, ...]
    needed: tuple[str, ...]
    missing: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def emulated(self) -> bool:
        """Whether there is a table of its release."""
        return self.release in release.names()


def in_emulator(imported: Imported) -> Communicator:
    """The communicator in the emulator. BadInput names what is needed for it."""
    if imported.needed:
        raise BadInput("; ".join(imported.needed))
    nccl = release.load(imported.release or "")
    known = nccl.environment.known
    environment = {name: value for name, value in imported.environment.items() if name in known}
    nodes = [
        Node(
            graphs=node.graphs or {},
            comp_caps=node.comp_caps or (),
            cpu_arch=node.cpu_arch or "",
            cpu_vendor=node.cpu_vendor,
            has_nvswitch=bool(node.nvswitch),
            direct_nvlink=bool(node.nvswitch),  # of groups alone, which logs are not compared on
            net_gbs=imported.net_gbs or 0.0,
            hosts=node.hosts or 1,
            fabric=node.mnnvl,
        )
        for node in imported.nodes
    ]
    return build(nccl, [(node, 1) for node in nodes], Environment(environment))
