"""The records of which the explanation of a graph consists; each can be written as JSON. Bandwidths are in 1e9 bytes
per second."""

from dataclasses import field

from tuner.base.dataclass import dataclass
from tuner.base.names import Pattern
from tuner.base.records import json_form


@dataclass(frozen=True, slots=True)
class LinkRejection:
    """A link that had too little bandwidth left: what it carried and what was needed when it first refused."""

    link: str  # from one device to the next, such as "gpu:3 -> pci 0000:1b:00.0"
    times: int
    link_gbs: float  # the link's bandwidth when nothing uses it
    carries_gbs: float
    needs_gbs: float


@dataclass(frozen=True, slots=True)
class SearchTried:
    """One search: what it asked of each channel, and what it found."""

    pattern: Pattern
    bw_intra_gbs: float
    bw_inter_gbs: float
    type_intra: str
    type_inter: str
    cross_nic: int
    same_channels: bool
    min_channels: int
    max_channels: int
    tried: int  # number of GPUs that it tried
    allowed: int  # number of GPUs that it was allowed to try
    outcome: str
    repeats: bool  # it equals an earlier search, so that nothing had to be tried
    channels: int  # channels of the best graph after this search
    refused: LinkRejection | None  # the link that refused most often; None if all had enough


@dataclass(frozen=True, slots=True)
class Found:
    """The numbers that describe a graph found by a search."""

    channels: int
    bw_intra_gbs: float  # bandwidth of one channel
    bw_inter_gbs: float
    total_intra_gbs: float  # bandwidth of all channels together
    total_inter_gbs: float
    type_intra: str
    type_inter: str
    cross_nic: int


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason why the graph is as it is. ``says`` is a sentence, ``links`` are the links that the sentence is
    about."""

    kind: str
    says: str
    links: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Limit:
    """Something that limits the graph; without it the search finds ``then``."""

    kinds: tuple[
        str, ...
    ]  # "adapter", "pcie", "nvlink", "c2c", "sockets", "steps", "paths", "channels", "ring", "tries"
    says: str
    links: tuple[str, ...]  # named as in :class:`LoadedLink`; empty if the limit is not a link
    then: Found


@dataclass(frozen=True, slots=True)
class Lift:
    """A change of the machine or of a variable, with what a new search finds after it. ``topology`` is the text of the
    changed file."""

    change: str  # the change in words
    changes: tuple[str, ...]  # the change as KEY=VALUE, in the form of ``diff`` and ``--change``
    found: Found
    more: bool  # NCCL finds more bandwidth than without the change
    environment: dict[str, str] = field(default_factory=dict)
    topology: str | None = field(default=None, metadata=json_form(omitted=True))


@dataclass(frozen=True, slots=True)
class MachineDevice:
    """A device of the machine as NCCL sees it; ``above`` is the switch or CPU to which PCIe or C2C attaches it."""

    name: str  # as in the names of links, such as "gpu:3"
    kind: str  # "gpu", "net", "nic", "pci", "cpu", "nvs"
    says: str  # the device in words, such as "PCIe switch 0000:1b:00.0"
    place: str  # the device's number or bus id
    above: str | None


@dataclass(frozen=True, slots=True)
class LoadedLink:
    """One direction of a link, and the bandwidth that the channels take from it in NCCL's count."""

    link: str
    start: str
    end: str
    kind: str  # "pcie", "nvlink", "c2c", "sockets", "adapter"
    link_gbs: float
    carries_gbs: float
    channels_gbs: dict[int, float]  # bandwidth that each channel takes, by the channel's number
    limits: bool  # whether the link is one of those that keep the graph from having more


@dataclass(frozen=True, slots=True)
class GraphExplanation:
    """The explanation of a graph: its searches in order, the bounds that NCCL sets before it searches, and what would
    lift the limits."""

    graph: str
    # Channels enter and leave through adapters; also true for a host that NCCL treats as several nodes
    several_nodes: bool
    max_gbs: float  # bandwidth of the best path from a GPU, which limits one channel
    total_gbs: float  # bandwidth of all links of a GPU, which limits all channels together
    found: Found
    one_more: Reason | None  # why there is no further channel
    faster: Reason | None  # why a channel has no more bandwidth
    reasons: tuple[Reason, ...]
    limits: tuple[Limit, ...]
    lifts: tuple[Lift, ...]
    devices: tuple[MachineDevice, ...]
    links: tuple[LoadedLink, ...]
    searches: tuple[SearchTried, ...]
