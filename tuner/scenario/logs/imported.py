"""Records of a communicator in a log: its facts, what the log lacks, and the printed choices.

Facts from the user override those of the log. Nothing is guessed: ``needed`` lists what the emulator needs but neither
the user nor the log supplies.
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
from tuner.release import Release
from tuner.scenario.logs.reader import Block, NcclLog, RankLog, TreePlace

if TYPE_CHECKING:
    from tuner.base.findings import Finding
    from tuner.scenario.logs.choice_groups import LoggedGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class LogAdditions:
    """What a user adds about the run. If a field is None or empty, the log has to supply it."""

    communicator: str | None = None
    release: str | None = None
    nodes: int | None = None
    comp_caps: tuple[int, ...] = ()  # one for all GPUs, or one per rank
    cpu_arch: str | None = None
    cpu_vendor: str | None = None
    nvswitch: bool | None = None
    net_latency_us: float | None = None
    net_gbs: float | None = None  # bandwidth of the slowest path from a GPU to its own adapter
    environment: Mapping[str, str] = field(default_factory=dict)
    topology: Topology | None = None
    graphs: Graphs | None = None
    collective: Collective | None = None


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """The facts of one node; None for what neither the log nor the user supplies."""

    ranks: tuple[int, ...]  # the ranks that the log shows
    local_ranks: int | None
    hosts: int | None  # more than one in an NVLink domain
    mnnvl: bool  # NVLink between hosts is on
    comp_caps: tuple[int, ...] | None
    cpu_arch: str | None
    cpu_vendor: str | None
    nvswitch: bool | None
    graphs: Graphs | None
    # whether NVLink joins any two GPUs directly, and whether it joins every two
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
    operations: int | None  # number of calls in its group; None if the log has no COLL lines
    count: int = 1

    @property
    def planned(self) -> bool:
        """Whether the line is about one call (2.24 and later), and not about several calls with one choice."""
        return self.channel_hi is not None


@dataclass(frozen=True, slots=True)
class Hardware:
    """The hardware of the nodes in a log without graphs; None or empty for what the log does not show.

    ``ranks_of_hosts`` is the number of ranks of each host, if the log shows all ranks. The other fields describe rank
    0's host, or the first host that prints them: ``bus_ids`` are those of its GPUs, packed into numbers as NCCL does;
    ``adapters`` are those that NCCL's own network uses.
    """

    instance: str | None  # a cloud's name for the machine
    gpu_names: tuple[str, ...]  # each name once
    comp_caps: tuple[int, ...]  # each once, from the user
    ranks_of_hosts: tuple[int, ...]
    bus_ids: tuple[int, ...]
    adapters: tuple[str, ...]
    adapters_mbps: tuple[int, ...]  # each speed once
    multicast: bool | None  # whether the GPUs can run NVLS
    networks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LogEvidence:
    """What a log shows in addition to graphs and tables; empty for what is not printed.

    ``tuner_plugin``: the plugin that chooses, if any. For aws-ofi-nccl, ``aws_release`` and ``tuner_product`` are the
    release and the product name that its tuner uses, if they are printed. ``transports``: number of connections by
    NCCL's name of the transport: P2P/CUMEM, SHM, NET/IB/GDRDMA. ``rings``: ranks of each channel in their order.
    ``trees``: parent and children by channel and rank. ``nvls_heads``: for each head, its rank on each node.
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
    """What was read about one communicator. ``needed`` lists what is missing to emulate the communicator, ``missing``
    what the log does not print."""

    release: str | None
    printed_releases: tuple[str, ...]  # releases in the log, whatever the user says
    communicator: str | None
    communicators: tuple[tuple[str, int | None], ...]  # name and number of ranks of all communicators in the log
    ranks: int | None
    node_count: int | None
    hardware: Hardware
    nodes: tuple[NodeFacts, ...]  # one for each node that is shown, if the number of nodes is not known
    environment: Mapping[str, str]
    net_gbs: float | None
    table: tuple[Block, ...]
    thresholds: tuple[str, ...] | None
    coll_channels: str | None
    nvls_channels: str | None
    choices: tuple[LoggedChoice, ...]
    choice_groups: "tuple[LoggedGroup, ...]"  # the same choices in order, those of one group together
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
    """A node as input for the emulator. ``net_gbs``: the bandwidth of the slowest path from a GPU to its own adapter,
    if needed."""
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
    """The lines of the ranks of one communicator."""

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
    """The communicators in the order of the log. A rank whose lines do not name its communicator joins one of the same
    size that lacks this rank."""
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
    """A communicator whose facts are being collected; ``group`` is None if the log shows no communicator.

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


@dataclass(frozen=True, slots=True)
class ShownByLog:
    """The log and the communicator that a check examines.

    ``reading.log`` has the facts of all lines, ``reading.logs`` those of the communicator's ranks. ``variables`` are
    the environment variables from the log or the user. ``channels`` are the printed numbers of channels for collectives
    and for NVLS, and ``nccl`` is the release; each is None if it is not known.
    """

    reading: Reading
    variables: Mapping[str, str]
    channels: tuple[str, str | None] | None
    nccl: Release | None
