"""One node as immutable records, with what NCCL derives from them before its search.

Sources are files of ``src/graph`` at v2.28.9-1.
"""

from collections.abc import Sequence
from dataclasses import replace
from enum import Enum
from itertools import combinations

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput


class Target(Enum):
    """The kinds of devices to which an NVLink may lead."""

    GPU = "GPU"
    CPU = "CPU"
    SWITCH = "NVSwitch"


@dataclass(frozen=True, slots=True)
class NvLink:
    """``count`` links from a GPU to one device."""

    target: str  # bus id of the device
    count: int
    tclass: str  # PCI class of that device

    @property
    def kind(self) -> Target:
        """The kind of the device at a link's end, by the beginning of its PCI class. As in NCCL, anything that is
        neither a GPU nor a CPU counts as a switch (ncclTopoAddNvLinks, topo.cc)."""
        if self.tclass.startswith("0x03"):
            return Target.GPU
        if self.tclass.startswith("0x068001"):
            return Target.CPU
        return Target.SWITCH


@dataclass(frozen=True, slots=True)
class Cpu:
    """One NUMA node. ``family`` and ``model`` are in NCCL's numbering (143, not 23, for AMD's EPYC 7742)."""

    numaid: int
    arch: str
    vendor: str | None  # absent unless arch is x86_64
    family: int | None
    model: int | None


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU of a topology, with its NVLinks."""

    dev: int
    busid: str
    sm: int
    numaid: int
    gpu_direct: bool  # whether adapters may read and write the GPU's memory
    nvlinks: tuple[NvLink, ...]
    device: str | None = None  # NVIDIA's device id, such as 0x2330

    def count_nvlinks(self, kind: Target) -> int:
        """Number of NVLinks that lead to devices of that kind."""
        return sum(link.count for link in self.nvlinks if link.kind is kind)


@dataclass(frozen=True, slots=True)
class Net:
    """One network device as NCCL opens it; ``busid`` is None if the device is not on PCI."""

    dev: int
    name: str
    port: int
    speed_mbps: int
    latency_us: float
    guid: int | None
    numaid: int
    busid: str | None
    gpu_direct: bool  # whether the device can read and write GPU memory
    reduces: bool = False  # whether it does collectives in the network (CollNet), according to a dump of such a run


@dataclass(frozen=True, slots=True)
class Topology:
    """One node: CPUs in the order of the file, GPUs and network devices in the order of ``dev``."""

    cpus: tuple[Cpu, ...]
    gpus: tuple[Gpu, ...]
    nets: tuple[Net, ...]
    gpu_of_rank: tuple[int, ...] = ()  # index of the GPU of each local rank of a dump; empty if ranks share no GPU

    def with_nets(self, numbers: Sequence[int]) -> "Topology":
        """The topology with only some of its network devices, which are given by their index in ``nets``."""
        return replace(self, nets=tuple(self.nets[number] for number in numbers))

    def with_gpus(self, numbers: Sequence[int]) -> "Topology":
        """The topology with only some of its GPUs, which are given by their index in ``gpus``, and one rank on each of
        them."""
        return replace(self, gpus=tuple(self.gpus[number] for number in numbers), gpu_of_rank=())

    @property
    def cpu(self) -> Cpu:
        """The CPU whose architecture and vendor NCCL's tuning uses: the first one in the file that local rank 0 keeps.

        Local rank 0 drops every CPU that has neither this rank's GPU nor a network device (ncclTopoTrimXml, xml.cc).
        """
        used = {net.numaid for net in self.nets} | {self.gpus[0].numaid}
        return next(cpu for cpu in self.cpus if cpu.numaid in used)

    @property
    def cpu_arch(self) -> str:
        """The architecture of the processors, such as ``x86_64``."""
        return self.cpu.arch

    @property
    def cpu_vendor(self) -> str | None:
        """The vendor of the processors; None if the topology does not say it."""
        return self.cpu.vendor

    def first_gpus(self, count: int) -> tuple[Gpu, ...]:
        """The first ``count`` GPUs in the order of ``dev``, which is the order of local ranks.

        BadInput if the node has fewer GPUs.
        """
        if not 1 <= count <= len(self.gpus):
            raise BadInput(f"{count} GPUs per node were asked for, but the node has {len(self.gpus)}")
        return self.gpus[:count]

    def placed(self, ranks: int) -> tuple[int, ...] | None:
        """For each of the first ``ranks`` local ranks, the index of its GPU; None if there are fewer local ranks."""
        all_ranks = self.gpu_of_rank or tuple(range(len(self.gpus)))
        return all_ranks[:ranks] if ranks <= len(all_ranks) else None

    def compute_capabilities(self, count: int) -> tuple[int, ...]:
        """Compute capabilities (``sm``) of the first ``count`` GPUs: 80, 90, 100 ..."""
        return tuple(gpu.sm for gpu in self.first_gpus(count))

    def has_nvswitch(self, count: int) -> bool:
        """Whether NCCL sees an NVSwitch from the first ``count`` GPUs. NCCL treats all NVSwitches of a node as one."""
        return any(gpu.count_nvlinks(Target.SWITCH) for gpu in self.first_gpus(count))

    def all_direct_nvlink(self, count: int) -> bool:
        """Whether every two of the first ``count`` GPUs reach each other over NVLink without passing another GPU."""
        return all(_linked(a, b) for a, b in combinations(self.first_gpus(count), 2))

    def any_direct_nvlink(self, count: int) -> bool:
        """Whether at least two of the first ``count`` GPUs reach each other over NVLink without passing another GPU."""
        return any(_linked(a, b) for a, b in combinations(self.first_gpus(count), 2))

    def gpu_direct(self, count: int) -> bool | None:
        """Whether the first ``count`` GPUs and all adapters can do GPUDirect RDMA; None if only some can."""
        gpus, nets = [gpu.gpu_direct for gpu in self.first_gpus(count)], [net.gpu_direct for net in self.nets]
        if not (any(gpus) and any(nets)):
            return False
        return True if all(gpus) and all(nets) else None

    @property
    def nvswitches(self) -> int:
        """The number of different NVSwitch addresses; 1 if the host does not see the switches (B200, most virtual
        machines)."""
        return len({link.target for gpu in self.gpus for link in gpu.nvlinks if link.kind is Target.SWITCH})


def _linked(a: Gpu, b: Gpu) -> bool:
    switched = bool(a.count_nvlinks(Target.SWITCH) and b.count_nvlinks(Target.SWITCH))
    return switched or any(link.target == b.busid for link in a.nvlinks)
