"""NCCL's system graph of one node, which is a host or an NVLink domain: its devices, links, and the paths over these
links.

Sources are files of ``src/graph`` at v2.28.9-1; bandwidths are float32 values in Python floats, 1e9 bytes per second.
"""

from collections.abc import Iterator
from dataclasses import field
from enum import Enum

from tuner.base.dataclass import dataclass
from tuner.base.names import PATH_NAMES


class DeviceKind(Enum):
    """Kinds of devices, in NCCL's order (topo.h)."""

    GPU = 0
    PCI = 1
    NVS = 2  # all NVSwitches together are one device
    CPU = 3  # a NUMA node
    NIC = 4  # the PCI device of an adapter
    NET = 5  # one network device of an adapter
    DEV = 6  # the hardware of a GPU, in releases that distinguish it from the rank on it

    __hash__ = object.__hash__  # makes look-ups as fast as for other objects


@dataclass(frozen=True, slots=True)
class PathTypes:
    """The numbers of a release's path types, the nearest first; -1 for a type that the release does not have."""

    LOC: int
    NVL: int
    NVB: int
    C2C: int
    PIX: int
    PXB: int
    P2C: int
    PXN: int
    PHB: int
    SYS: int
    NET: int
    DIS: int
    names: tuple[str, ...]

    @classmethod
    def of(cls, names: tuple[str, ...]) -> "PathTypes":
        """The path types of a release; ``names`` are its names of path types, the nearest first."""
        numbers = {name: names.index(name) if name in names else -1 for name in PATH_NAMES}
        return cls(**numbers, names=names)


@dataclass(slots=True, eq=False)
class Link:
    """One direction of a link; ``kind`` is the name of a path type, which is PIX for PCI links."""

    kind: str
    to: "SystemDevice"
    gbs: float


@dataclass(slots=True, eq=False)
class Path:
    """A path from one device to another; ``type`` is a number as in :class:`PathTypes`. A path without links and
    bandwidth does not exist."""

    type: int
    links: tuple[Link, ...] = ()
    gbs: float = 0.0

    @property
    def hops(self) -> int:
        """The number of links."""
        return len(self.links)


UNKNOWN = -1  # the rail or plane of an adapter is not known
HOST_BIT = 56  # the bits of an id from here on are the host's number


@dataclass(slots=True, eq=False)
class SystemDevice:
    """A device; NCCL looks it up by ``id``, which is unique within its kind except in broken files."""

    kind: DeviceKind
    id: int
    links: list[Link] = field(default_factory=list, repr=False)  # not printed, because links form circles
    # To each device of a kind; a kind is absent if there are no such paths
    paths: dict[DeviceKind, list[Path]] = field(default_factory=dict, repr=False)
    device: int = 0  # of a PCI switch: vendor, device, subsystem vendor and subsystem device, 16 bits each

    @property
    def host(self) -> int:
        """The number of the device's host in an NVLink domain; 0 for the first host and for NVSwitches."""
        return self.id >> HOST_BIT


@dataclass(slots=True, eq=False)
class GpuDevice(SystemDevice):
    """A GPU as one rank uses it."""

    dev: int = -1  # the number that NVML gives the GPU
    rank: int = -1
    compute_capability: int = 0  # 90 for 9.0
    gpu_direct: bool = False
    peer_group: int = 0  # number of the group of GPUs between which NVML and CUDA allow peer-to-peer


@dataclass(slots=True, eq=False)
class AdapterDevice(SystemDevice):
    """A network device."""

    dev: int = -1  # the number that the network plugin gives the device
    guid: int = 0
    port: int = 0
    pci: str = ""  # bus id of the adapter's PCI device
    rail: int = UNKNOWN
    plane: int = UNKNOWN
    gbs: float = 0.0  # the bandwidth that is left during the search
    latency_us: float = 0.0
    gpu_direct: bool = False
    in_network: bool = False  # whether the adapter can do collectives
    most_channels: int = 0
    local_gpu: int = -1  # number of the GPU that it belongs to; -1 if it belongs to none


@dataclass(slots=True, eq=False)
class CpuDevice(SystemDevice):
    """A NUMA node."""

    arch: str = ""
    vendor: str | None = None
    family: int = 0
    model: int = 0


@dataclass(slots=True, eq=False)
class System:
    """All devices of a node, by kind, in NCCL's order."""

    types: PathTypes
    hosts: int = 1  # number of hosts of the NVLink domain
    nodes: dict[DeviceKind, list[SystemDevice]] = field(default_factory=lambda: {kind: [] for kind in DeviceKind})
    in_network: bool = False  # CollNet is on, and there are adapters for it; first only whether it is on
    several_nodes: bool = False  # the communicator has ranks that are not in this system
    # For each rank of the node, the number of its group. Only the network joins different groups; all groups but the
    # own one are removed.
    part_of_rank: tuple[int, ...] = ()
    max_gbs: float = 0.0  # the most bandwidth of one channel, NCCL's maxBw
    total_gbs: float = 0.0  # the bandwidth of all links of a GPU, NCCL's totalBw

    @property
    def gpus(self) -> list[GpuDevice]:
        """The GPUs of the system."""
        return self.nodes[DeviceKind.GPU]  # type: ignore[return-value]

    @property
    def nets(self) -> list[AdapterDevice]:
        """The network devices of the system."""
        return self.nodes[DeviceKind.NET]  # type: ignore[return-value]

    @property
    def cpus(self) -> list[CpuDevice]:
        """The NUMA nodes of the system."""
        return self.nodes[DeviceKind.CPU]  # type: ignore[return-value]

    @property
    def switched(self) -> bool:
        """Whether the system has NVSwitches."""
        return bool(self.nodes[DeviceKind.NVS])

    def everything(self) -> Iterator[SystemDevice]:
        """Every device of the system, kind by kind."""
        for nodes in self.nodes.values():
            yield from nodes

    def find(self, kind: DeviceKind, node_id: int) -> SystemDevice | None:
        """The first device with that id, as NCCL looks it up (ncclTopoGetNode, topo.cc)."""
        return next((node for node in self.nodes[kind] if node.id == node_id), None)

    def number(self, node: SystemDevice) -> int:
        """The number under which a device's paths are kept: that of the first device with the same id (getPath,
        paths.cc)."""
        return next(number for number, other in enumerate(self.nodes[node.kind]) if other.id == node.id)

    def remove(self, gone: SystemDevice) -> None:
        """Removes a device and all links to it (ncclTopoRemoveNode, topo.cc)."""
        self.nodes[gone.kind] = [node for node in self.nodes[gone.kind] if node is not gone]
        for node in self.everything():
            node.links = [link for link in node.links if link.to is not gone]

    @property
    def compute_capabilities(self) -> list[int]:
        """The compute capability of each GPU: 80, 90, 100 ..."""
        return [gpu.compute_capability for gpu in self.gpus]
