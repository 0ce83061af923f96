"""How the GPUs of one node reach each other and their adapters, as far as sends and receives go by it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PeerLinks:
    """Of one kind of node, after what its ranks do not use was cut off.

    ``local_channels`` is the least of the channels that NCCL has for a pair of its GPUs: two for each NVLink between
    them, and two where there is none; None for a GPU alone. ``adapters`` has, by GPU, how many network devices NCCL
    counts, and their bandwidth together.
    """

    all_nvlink: bool
    local_channels: int | None
    adapters: tuple[tuple[int, float], ...]  # devices, GB/s
    all_peer_to_peer: bool = False  # every GPU reaches every other, without a GPU in between
    joined_by_network: frozenset[tuple[int, int]] = frozenset()  # pairs of GPUs, by local rank, that nothing else joins
    all_connected_by_memory: bool = False  # peer-to-peer joins all, rather than the network
    # By adapter: its number, the first GPU's path to it, and whether that has GPUDirect RDMA both ways.
    first_gpu_direct: tuple[tuple[int, str, bool], ...] = ()

    def gpu_direct_of(self, number: int) -> bool:
        """Whether an adapter reads and writes the first GPU's memory."""
        return next(both for dev, _, both in self.first_gpu_direct if dev == number)
