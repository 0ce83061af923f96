"""How the GPUs of one node reach each other and their adapters, as far as sends and receives go by it."""

from tuner.base.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class AdapterAccess:
    """A network device as a GPU has it: the path to it, and GPUDirect RDMA: whether it reads and writes its memory."""

    id: int  # as graphs number it
    path: str
    reads: bool
    writes: bool


@dataclass(frozen=True, slots=True)
class PeerLinks:
    """Links of one kind of node, after what its ranks do not use was cut off.

    ``local_channels`` is the least of the channels that NCCL has for a pair of its GPUs: two for each NVLink between
    them, and two where there is none; None for a GPU alone. ``adapters`` has, by GPU, how many network devices NCCL
    counts, and their bandwidth together.
    """

    all_nvlink: bool
    local_channels: int | None
    adapters: tuple[tuple[int, float], ...]  # devices, GB/s
    all_peer_to_peer: bool = False  # every GPU reaches every other, without a GPU in between
    cuda_joins_all: bool = False  # CUDA allows peer-to-peer between all, at any distance
    joined_by_network: frozenset[tuple[int, int]] = frozenset()  # pairs of GPUs, by local rank, that nothing else joins
    all_connected_by_memory: bool = False  # peer-to-peer joins all, rather than the network
    access: tuple[tuple[AdapterAccess, ...], ...] = ()  # by GPU, the adapters as it has them; empty on one node

    def adapter_of(self, gpu: int, adapter: int) -> AdapterAccess:
        """An adapter as a GPU of the node has it, by the number that graphs give it."""
        return next(each for each in self.access[gpu] if each.id == adapter)
