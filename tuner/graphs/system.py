"""NCCL's system graph of one node, a host or an NVLink domain: devices, links, and the paths found over these links.

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
    NVS = 2  # all NVSwitches together
    CPU = 3  # a NUMA node
    NIC = 4  # an adapter's PCI device
    NET = 5  # one of its network devices
    DEV = 6  # a GPU's hardware, in releases that tell it from the rank on it

    __hash__ = object.__hash__  # as fast as a member of an enumeration is looked up


@dataclass(frozen=True, slots=True)
class PathTypes:
    """The numbers of a release's path types, nearest first; -1 for a type that the release does not have."""

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
        """Path types of a release that has these names in this order."""
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
    """A path from one device to another; ``type`` as in :class:`PathTypes`. It is unreachable if it has no links and no
    bandwidth."""

    type: int
    links: tuple[Link, ...] = ()
    gbs: float = 0.0

    @property
    def hops(self) -> int:
        """Number of links."""
        return len(self.links)


UNKNOWN = -1  # rail or plane of an adapter
HOST_BIT = 56  # of an id, from which on it says the host


@dataclass(slots=True, eq=False)
class SystemDevice:
    """A device; NCCL looks it up by ``id``, which is unique within its kind except in broken files."""

    kind: DeviceKind
    id: int
    links: list[Link] = field(default_factory=list, repr=False)  # in a circle, so never printed
    paths: dict[DeviceKind, list[Path]] = field(default_factory=dict, repr=False)  # to each of a kind; absent: none
    device: int = 0  # of a PCI switch: vendor, device, subsystem vendor and device, 16 bits each

    @property
    def host(self) -> int:
        """Number of the device's host in an NVLink domain; 0 for the first host and the NVSwitches."""
        return self.id >> HOST_BIT


@dataclass(slots=True, eq=False)
class GpuDevice(SystemDevice):
    """A GPU as a rank uses it."""

    dev: int = -1  # NVML's number
    rank: int = -1
    compute_capability: int = 0  # 90 is 9.0
    gpu_direct: bool = False
    peer_group: int = 0  # of GPUs between which NVML and CUDA allow peer-to-peer


@dataclass(slots=True, eq=False)
class AdapterDevice(SystemDevice):
    """A network device."""

    dev: int = -1  # the network plugin's number
    guid: int = 0
    port: int = 0
    pci: str = ""  # bus id of its PCI device
    rail: int = UNKNOWN
    plane: int = UNKNOWN
    gbs: float = 0.0  # what is left of it during the search
    latency_us: float = 0.0
    gpu_direct: bool = False
    in_network: bool = False  # it does collectives
    most_channels: int = 0
    local_gpu: int = -1  # number of the GPU that is its own, -1: none


@dataclass(slots=True, eq=False)
class CpuDevice(SystemDevice):
    """A NUMA node."""

    arch: str = ""
    vendor: str | None = None
    family: int = 0
    model: int = 0


@dataclass(slots=True, eq=False)
class System:
    """All devices of a node, by kind in NCCL's order."""

    types: PathTypes
    hosts: int = 1  # of a NVLink domain
    nodes: dict[DeviceKind, list[SystemDevice]] = field(default_factory=lambda: {kind: [] for kind in DeviceKind})
    in_network: bool = False  # CollNet is on, and there are adapters for it, if only in the file
    several_nodes: bool = False  # the communicator has ranks that are not in this system
    # Groups of the node's ranks that only the network joins: which one each rank is in; all but the own are cut off.
    part_of_rank: tuple[int, ...] = ()
    max_gbs: float = 0.0  # of one channel, NCCL's maxBw
    total_gbs: float = 0.0  # of a GPU, NCCL's totalBw

    @property
    def gpus(self) -> list[GpuDevice]:
        """The GPUs."""
        return self.nodes[DeviceKind.GPU]  # type: ignore[return-value]

    @property
    def nets(self) -> list[AdapterDevice]:
        """The network devices."""
        return self.nodes[DeviceKind.NET]  # type: ignore[return-value]

    @property
    def cpus(self) -> list[CpuDevice]:
        """The NUMA nodes."""
        return self.nodes[DeviceKind.CPU]  # type: ignore[return-value]

    @property
    def switched(self) -> bool:
        """Whether the system has NVSwitches."""
        return bool(self.nodes[DeviceKind.NVS])

    def everything(self) -> Iterator[SystemDevice]:
        """Every device, kind by kind."""
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
        """Removes a device and the links to it (ncclTopoRemoveNode, topo.cc)."""
        self.nodes[gone.kind] = [node for node in self.nodes[gone.kind] if node is not gone]
        for node in self.everything():
            node.links = [link for link in node.links if link.to is not gone]

    @property
    def compute_capabilities(self) -> list[int]:
        """Compute capability of each GPU: 80, 90, 100 ..."""
        return [gpu.compute_capability for gpu in self.gpus]
