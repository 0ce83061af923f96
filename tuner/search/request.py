"""What is searched: a node, how many there are, and the variables that reach the search."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Request:
    """One kind of node of a communicator. BadTopology for a topology that is none, on first use."""

    topology: str  # text of a topology XML in NCCL's format, of one node, with <gpu> and <net> elements
    gpus: int  # used of it: the first by dev
    several_nodes: bool  # whether the communicator has ranks on other hosts
    environment: Mapping[str, str] = field(default_factory=dict)  # NCCL_* variables
    peer_to_peer_across_sockets: bool = True  # whether NVML and CUDA allow it between GPUs of two sockets
    gpu_of_rank: Sequence[int] = ()  # which of the GPUs each local rank is on, where ranks share some
    nvls_off: bool = False  # as ranks share GPUs

    @property
    def in_network(self) -> bool:
        """Whether CollNet is on, and the network then does collectives on every adapter."""
        return self.environment.get("NCCL_COLLNET_ENABLE") == "1"
