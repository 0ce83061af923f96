"""The request of a search: a node, whether there are others, and the variables that the search reads."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field

from tuner.base.dataclass import dataclass
from tuner.base.records import from_json
from tuner.machine.gpus import PeerToPeer
from tuner.machine.graphs import OrderedGraph


@dataclass(frozen=True, slots=True)
class Hosts:
    """Successive hosts of an NVLink domain, in the order of ranks, that are equal; the fields are those of a
    SearchRequest."""

    topology: str
    gpus: int
    gpu_of_rank: Sequence[int] = ()
    hosts: int = 1


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """One kind of node of a communicator: a host, or several that NVLink joins (multi-node NVLink, MNNVL).

    Raises BadTopology on first use if the text is not a topology.
    """

    topology: str  # topology XML of one host in NCCL's format, with <gpu> and <net> elements
    gpus: int  # number of its GPUs that are used, the first by dev
    several_nodes: bool  # whether the communicator has ranks on other nodes
    environment: Mapping[str, str] = field(default_factory=dict)  # NCCL_* variables
    peer_to_peer: PeerToPeer = PeerToPeer.all  # the GPUs of a host between which NVML and CUDA allow peer-to-peer
    gpu_of_rank: Sequence[int] = ()  # the GPU of each local rank, if ranks share GPUs
    nvls_off: bool = False  # NVLS is off because ranks share GPUs
    hosts: int = 1  # number of hosts of the NVLink domain that are like this one
    in_domain: bool = False  # the hosts form an NVLink domain, which may consist of one host
    others: Sequence[Hosts] = ()  # further hosts of the NVLink domain, in the order of ranks
    graph_file: str | None = None  # text of the file that NCCL_GRAPH_FILE names
    later: bool = False  # the processes had an earlier communicator, which merged adapters
    network_reduces: bool = False  # the network for CollNet is available on every adapter
    rank: int = 0  # the rank that searches; if NCCL treats the node as several nodes, the rank searches its own part

    @property
    def in_network(self) -> bool:
        """Whether CollNet is on: its network is available, and NCCL_COLLNET_ENABLE is 1."""
        return self.network_reduces and self.environment.get("NCCL_COLLNET_ENABLE") == "1"

    @property
    def each_host(self) -> Iterator[Hosts]:
        """Every host, in the order of ranks."""
        for kind in (Hosts(self.topology, self.gpus, self.gpu_of_rank, self.hosts), *self.others):
            for _ in range(kind.hosts):
                yield kind


# The result of searching a node.


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The result of searching a node."""

    graphs: Mapping[str, OrderedGraph]  # by name; without channels if NCCL finds none
    # Bandwidth of the slowest path from a GPU to its own adapter, 1e9 bytes per second; 0 for releases without it
    net_gbs: float
    # For each rank of the node, which of the nodes it is in, if NCCL treats the node as several
    part_of_rank: tuple[int, ...]
    # The ranks that send over another GPU (PXN): the rank within its part of the node, the number of the network device
    # as in a channel's order, and the rank whose GPU it sends over
    relays: tuple[tuple[int, int, int], ...] = ()

    @property
    def parts(self) -> int:
        """How many nodes NCCL makes of this node: more than one if it treats the node as several."""
        return len(set(self.part_of_rank))


def request_of(text: str) -> SearchRequest:
    """Reads a request back from its JSON."""
    request: SearchRequest = from_json(SearchRequest, json.loads(text))
    return request
