"""Records of an explanation of a graph; each can be written as JSON. Bandwidths are in 1e9 bytes per second."""

from dataclasses import field

from tuner.base.dataclass import dataclass
from tuner.base.names import Pattern
from tuner.base.records import json_form


@dataclass(frozen=True, slots=True)
class LinkRejection:
    """A link that had too little bandwidth left: what it carried and what was needed when it first refused."""

    link: str  # from a device to the next, such as "gpu:3 -> pci 0000:1b:00.0"
    times: int
    link_gbs: float  # with nothing on it
    carries_gbs: float
    needs_gbs: float


@dataclass(frozen=True, slots=True)
class SearchTried:
    """One search: what it asked of every channel, and what it found."""

    pattern: Pattern
    bw_intra_gbs: float
    bw_inter_gbs: float
    type_intra: str
    type_inter: str
    cross_nic: int
    same_channels: bool
    min_channels: int
    max_channels: int
    tried: int  # GPUs
    allowed: int  # GPUs that may be tried
    outcome: str
    repeats: bool  # one before, and so nothing was tried again
    channels: int  # of the best graph after it
    refused: LinkRejection | None  # the link that refused most often; None if all had enough


@dataclass(frozen=True, slots=True)
class Found:
    """The numbers of a graph."""

    channels: int
    bw_intra_gbs: float  # of a channel
    bw_inter_gbs: float
    total_intra_gbs: float  # of all channels
    total_inter_gbs: float
    type_intra: str
    type_inter: str
    cross_nic: int


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason why the graph is as it is. ``says`` is a sentence, ``links`` are the links that it speaks of."""

    kind: str
    says: str
    links: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Limit:
    """Limit that keeps the graph from having more: without it the search finds ``then``."""

    kinds: tuple[
        str, ...
    ]  # "adapter", "pcie", "nvlink", "c2c", "sockets", "steps", "paths", "channels", "ring", "tries"
    says: str
    links: tuple[str, ...]  # as in :class:`LoadedLink`; empty where it is no link
    then: Found


@dataclass(frozen=True, slots=True)
class Lift:
    """A change of the machine or of a variable, and what a new search finds with it; ``topology`` is the text of the
    changed file."""

    change: str  # in words
    changes: tuple[str, ...]  # KEY=VALUE, as ``diff`` and ``--change`` take them
    found: Found
    more: bool  # than without the change
    environment: dict[str, str] = field(default_factory=dict)
    topology: str | None = field(default=None, metadata=json_form(omitted=True))


@dataclass(frozen=True, slots=True)
class MachineDevice:
    """A device of the machine as NCCL knows it; ``above`` is the switch or CPU to which PCIe or C2C attaches it."""

    name: str  # as the ends of links have it, such as "gpu:3"
    kind: str  # "gpu", "net", "nic", "pci", "cpu", "nvs"
    says: str  # such as "PCIe switch 0000:1b:00.0"
    place: str  # its number or bus id
    above: str | None


@dataclass(frozen=True, slots=True)
class LoadedLink:
    """One direction of a link, and the bandwidth that the channels take from it as NCCL counts it."""

    link: str
    start: str
    end: str
    kind: str  # "pcie", "nvlink", "c2c", "sockets", "adapter"
    link_gbs: float
    carries_gbs: float
    channels_gbs: dict[int, float]  # by the number of the channel, of those that use it
    limits: bool  # it is one of those that keep the graph from having more


@dataclass(frozen=True, slots=True)
class GraphExplanation:
    """A graph's searches in order, the bounds that NCCL sets before it searches, and what would lift the limits."""

    graph: str
    several_nodes: bool  # channels enter and leave through adapters, also of a host that counts as several nodes
    max_gbs: float  # of the best path from a GPU: a channel has no more
    total_gbs: float  # of all links of a GPU: channels together have no more
    found: Found
    one_more: Reason | None  # why not another channel
    faster: Reason | None  # why no more bandwidth a channel
    reasons: tuple[Reason, ...]
    limits: tuple[Limit, ...]
    lifts: tuple[Lift, ...]
    devices: tuple[MachineDevice, ...]
    links: tuple[LoadedLink, ...]
    searches: tuple[SearchTried, ...]
