"""Records of a communicator as a log shows it: its facts, what the log lacks, and the printed choices.

The user's facts override the log's. Nothing is guessed: ``needed`` lists what the emulator needs and neither the user
nor the log says.
"""

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING

from tuner import release
from tuner.base.dataclass import dataclass
from tuner.base.names import Collective, DataType, Op
from tuner.base.records import json_form
from tuner.emulator.communicator import Node
from tuner.machine.graphs import COLLNET_GRAPHS, Graphs
from tuner.machine.topology import Topology
from tuner.scenario.logs.reader import Block, NcclLog, RankLog, TreePlace

if TYPE_CHECKING:
    from tuner.base.findings import Finding
    from tuner.scenario.logs.choice_groups import LoggedGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class LogAdditions:
    """What a user says about the run; if a field is None or empty, the log has to say it."""

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
    """Facts of one node; None for what neither the log nor the user says."""

    ranks: tuple[int, ...]  # those that the log shows
    local_ranks: int | None
    hosts: int | None  # more than one in a NVLink domain
    mnnvl: bool  # NVLink between hosts is on
    comp_caps: tuple[int, ...] | None
    cpu_arch: str | None
    cpu_vendor: str | None
    nvswitch: bool | None
    graphs: Graphs | None
    # whether NVLink leads from a GPU to another, and from every one to every other
    linked: tuple[bool, bool] = field(default=(False, False), metadata=json_form(omitted=True))


@dataclass(frozen=True, slots=True)
class LoggedChoice:
    """A choice that was printed ``count`` times. ``bytes`` is NCCL's nBytes; None if the collective is not known."""

    collective: Collective | None
    bytes: int | None
    algorithm: str
    protocol: str
    channel_lo: int | None
    channel_hi: int | None
    time_us: str | None
    dtype: DataType | None
    op: Op | None
    operations: int | None  # calls in its group; None if the log has no COLL lines
    count: int = 1

    @property
    def planned(self) -> bool:
        """Whether the line is for one call (2.24 and later), and not for several calls with one choice."""
        return self.channel_hi is not None


@dataclass(frozen=True, slots=True)
class Hardware:
    """Hardware of the nodes in a log without graphs; None or empty for what the log does not say.

    ``ranks_of_hosts``: how many ranks each host has, if the log shows all ranks. The other fields describe rank 0's
    host, or the first host that prints them: ``bus_ids`` of its GPUs as NCCL packs them into a number, ``adapters``
    that NCCL's own network uses.
    """

    instance: str | None  # a cloud's name of the machine
    gpu_names: tuple[str, ...]  # each once
    comp_caps: tuple[int, ...]  # each once, as the user says them
    ranks_of_hosts: tuple[int, ...]
    bus_ids: tuple[int, ...]
    adapters: tuple[str, ...]
    adapters_mbps: tuple[int, ...]  # each speed once
    multicast: bool | None  # whether the GPUs can NVLS
    networks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LogEvidence:
    """What a log shows besides graphs and tables; empty for what is not printed.

    ``tuner_plugin``: the plugin that chooses, if any. For aws-ofi-nccl, ``aws_release`` and ``tuner_product`` are the
    release and the product name that its tuner uses, if they are printed. ``transports``: number of connections by
    NCCL's name of the transport: P2P/CUMEM, SHM, NET/IB/GDRDMA. ``rings``: ranks of each channel in their order.
    ``trees``: parent and children by channel and rank. ``nvls_heads``: ranks of each head, one per node.
    ``adapters_of_ranks``: per rank, NCCL's numbers of the adapters that it sends over. ``findings``: what the checks
    found, in their order.
    """

    tuner_plugin: str | None
    transports: Mapping[str, int]
    warnings: tuple[str, ...]
    rings: tuple[tuple[int, ...], ...] = field(metadata=json_form(omitted=True))
    trees: Mapping[int, Mapping[int, TreePlace]] = field(metadata=json_form(omitted=True))
    nvls_heads: tuple[tuple[int, ...], ...] = field(metadata=json_form(omitted=True))
    adapters_of_ranks: Mapping[int, tuple[int, ...]] = field(metadata=json_form(omitted=True))
    findings: "tuple[Finding, ...]"
    aws_release: str | None = field(default=None, metadata=json_form(optional=True))
    tuner_product: str | None = field(default=None, metadata=json_form(optional=True))


@dataclass(frozen=True, slots=True)
class Imported:
    """What was read about one communicator. ``needed`` is what is missing to emulate it, ``missing`` what was not
    printed."""

    release: str | None
    printed_releases: tuple[str, ...]  # whatever the user says
    communicator: str | None
    communicators: tuple[tuple[str, int | None], ...]  # all of the log: name, ranks
    ranks: int | None
    node_count: int | None
    hardware: Hardware
    nodes: tuple[NodeFacts, ...]  # one for those that are shown, where their number is not known
    environment: Mapping[str, str]
    net_gbs: float | None
    table: tuple[Block, ...]
    thresholds: tuple[str, ...] | None
    coll_channels: str | None
    nvls_channels: str | None
    choices: tuple[LoggedChoice, ...]
    choice_groups: "tuple[LoggedGroup, ...]"  # the same choices, those of one group together and in their order
    symmetric: tuple[str, ...]
    needed: tuple[str, ...]
    missing: tuple[str, ...]
    notes: tuple[str, ...]
    evidence: LogEvidence

    @property
    def emulated(self) -> bool:
        """Whether the emulator has tables for the log's release."""
        return self.release in release.names()


def as_node(facts: NodeFacts, net_gbs: float | None) -> Node:
    """A node as input for the emulator. ``net_gbs``: the slowest path from a GPU to its own adapter, if needed."""
    some_nvlink, all_nvlink = facts.linked
    return Node(
        graphs=facts.graphs or {},
        comp_caps=facts.comp_caps or (),
        cpu_arch=facts.cpu_arch or "",
        cpu_vendor=facts.cpu_vendor,
        has_nvswitch=bool(facts.nvswitch),
        direct_nvlink=bool(facts.nvswitch) or all_nvlink,
        some_nvlink=bool(facts.nvswitch) or some_nvlink,
        net_gbs=net_gbs or 0.0,
        hosts=facts.hosts or 1,
        fabric=facts.mnnvl,
        network_reduces=any(name in (facts.graphs or {}) for name in COLLNET_GRAPHS),
    )


@dataclass(slots=True)
class CommunicatorLines:
    """The ranks of one communicator."""

    name: str
    logs: list[RankLog]

    @property
    def ranks(self) -> int | None:
        """The number of ranks; None if no line says it."""
        return next((log.ranks for log in self.logs if log.ranks is not None), None)

    @property
    def root(self) -> RankLog | None:
        """The lines of rank 0; None if the log has none."""
        return next((log for log in self.logs if log.rank == 0), None)


def groups(logs: Sequence[RankLog]) -> list[CommunicatorLines]:
    """The communicators in their order in the log. A rank whose lines do not name its communicator joins one of the
    same size in which this rank is missing."""
    by_name: dict[str, CommunicatorLines] = {}
    for log in logs:
        if log.group is not None:
            by_name.setdefault(log.group, CommunicatorLines(log.group, [])).logs.append(log)
    for log in logs:
        if log.group is None and log.ranks is not None:
            home = next((g for g in by_name.values() if g.ranks == log.ranks and not _has(g, log.rank)), None)
            if home is None:
                name = f"{log.comm}"
                home = by_name.setdefault(name, CommunicatorLines(name, []))
            home.logs.append(log)
    if not by_name and logs:
        return [CommunicatorLines("unnamed", list(logs))]
    return list(by_name.values())


def _has(group: CommunicatorLines, rank: int | None) -> bool:
    return any(log.rank == rank for log in group.logs)


@dataclass(frozen=True, slots=True)
class Reading:
    """A communicator whose facts are being collected in the lists; ``group`` is None if the log shows no communicator.

    ``needed`` is what is missing to emulate it, ``missing`` what was not printed, ``notes`` what was assumed.
    """

    log: NcclLog
    given: LogAdditions
    group: CommunicatorLines | None
    needed: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def logs(self) -> list[RankLog]:
        """The facts of each of its ranks."""
        return self.group.logs if self.group else []
