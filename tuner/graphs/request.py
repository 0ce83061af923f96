"""The request of a search: a node, how many nodes there are, and the variables that the search reads."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field

from tuner.base.dataclass import dataclass
from tuner.base.records import from_json
from tuner.machine.gpus import PeerToPeer
from tuner.machine.graphs import OrderedGraph


@dataclass(frozen=True, slots=True)
class Hosts:
    """Equal hosts of an NVLink domain that follow each other in the order of ranks; the fields are those of a
    SearchRequest."""

    topology: str
    gpus: int
    gpu_of_rank: Sequence[int] = ()
    hosts: int = 1


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """One kind of node of a communicator: a host, or several that NVLink joins (multi-node NVLink, MNNVL).

    BadTopology on first use if the text is not a topology.
    """

    topology: str  # text of a topology XML in NCCL's format, of one host, with <gpu> and <net> elements
    gpus: int  # used of it: the first by dev
    several_nodes: bool  # whether the communicator has ranks on other nodes
    environment: Mapping[str, str] = field(default_factory=dict)  # NCCL_* variables
    peer_to_peer: PeerToPeer = PeerToPeer.all  # between which GPUs of a host NVML and CUDA allow it
    gpu_of_rank: Sequence[int] = ()  # which of the GPUs each local rank is on, where ranks share some
    nvls_off: bool = False  # as ranks share GPUs
    hosts: int = 1  # of the NVLink domain that are like this
    in_domain: bool = False  # they are a NVLink domain, which may be of one host
    others: Sequence[Hosts] = ()  # further hosts of it, in the order of ranks
    graph_file: str | None = None  # text of the file that NCCL_GRAPH_FILE names
    later: bool = False  # its processes had a communicator before, which merged adapters
    network_reduces: bool = False  # CollNet's network is there, on every adapter
    rank: int = 0  # of the node, the one that searches: in a node that NCCL takes for several, it searches its own part

    @property
    def in_network(self) -> bool:
        """Whether CollNet is on."""
        return self.network_reduces and self.environment.get("NCCL_COLLNET_ENABLE") == "1"

    @property
    def each_host(self) -> Iterator[Hosts]:
        """Every host, in the order of ranks."""
        for kind in (Hosts(self.topology, self.gpus, self.gpu_of_rank, self.hosts), *self.others):
            for _ in range(kind.hosts):
                yield kind


# What the search of a node gives.


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Result of the search of a node."""

    graphs: Mapping[str, OrderedGraph]  # by name; one that NCCL finds no channels for has none
    net_gbs: float  # slowest path from a GPU to its own adapter, 1e9 bytes per second; 0 for a release without it
    part_of_rank: tuple[int, ...]  # which of the nodes that NCCL takes the node for each of its ranks is in
    # Who sends over another GPU (PXN): a rank of the node (of its part, by order), the network device, by its number
    # as in a channel's order, and the rank that it sends over
    relays: tuple[tuple[int, int, int], ...] = ()

    @property
    def parts(self) -> int:
        """The number of nodes as which NCCL treats this node."""
        return len(set(self.part_of_rank))


def request_of(text: str) -> SearchRequest:
    """Reads a request back from its JSON."""
    request: SearchRequest = from_json(SearchRequest, json.loads(text))
    return request
