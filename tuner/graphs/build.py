"""Builds the system graph of a topology XML: devices, and the links between them.

Source: ncclTopoGetSystemFromXml and what it calls, src/graph/topo.cc, v2.28.9-1. All bandwidths are rounded to float32
at the places where NCCL stores them.
"""

import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence

from tuner.base.errors import BadTopology, NcclFails, Remedy
from tuner.base.numerics import f32, f64
from tuner.graphs.system import (
    HOST_BIT,
    UNKNOWN,
    AdapterDevice,
    CpuDevice,
    DeviceKind,
    GpuDevice,
    Link,
    PathTypes,
    System,
    SystemDevice,
)
from tuner.graphs.xml import HOST, integer
from tuner.release.search import CpuAbove, CpuLinks, Devices

LOCAL_GBS = 5000.0
# Speeds of a PCIe lane in 1e8 bits per second, by the beginning of the text in the XML; the first match counts. Source:
# kvDictPciGen.
LANE_SPEEDS = (
    ("2.5 GT/s", 15),
    ("5 GT/s", 30),
    ("8 GT/s", 60),
    ("16 GT/s", 120),
    ("32 GT/s", 240),
    ("5.0 GT/s PCIe", 30),
    ("8.0 GT/s PCIe", 60),
    ("16.0 GT/s PCIe", 120),
    ("32.0 GT/s PCIe", 240),
    ("64.0 GT/s PCIe", 480),
)
UNKNOWN_LANE_SPEED = 60
UNKNOWN_WIDTH = 16


def cpu_gbs(cpu: CpuDevice, links: CpuLinks) -> float:
    """The bandwidth from a CPU to each other CPU of its host, in GB/s (ncclTopoGetInterCpuBw)."""
    if cpu.arch == "ppc64":
        return links.power_gbs
    if cpu.arch == "arm64":
        return links.arm_gbs
    if cpu.vendor == "GenuineIntel":
        of_family = (gbs for model, gbs in links.intel_model_gbs if cpu.family == 6 and cpu.model >= model)
        return next(of_family, links.intel_gbs)
    if cpu.vendor == "AuthenticAMD":
        return next((gbs for family, gbs in links.amd_family_gbs if cpu.family == family), links.amd_gbs)
    if cpu.vendor in ("CentaurHauls", "  Shanghai  "):
        return links.yongfeng_gbs if (cpu.family, cpu.model) == (7, 0x5B) else links.zhaoxin_gbs
    return LOCAL_GBS


def nvlink_gbs(gpu: SystemDevice, devices: Devices) -> float:
    """Bandwidth of one NVLink of this GPU, in GB/s (ncclTopoNVLinkBw)."""
    assert isinstance(gpu, GpuDevice)
    capability = gpu.compute_capability
    exact = (gbs for one, gbs in devices.nvlink_exactly_gbs if one == capability)
    return next(exact, next(gbs for least, gbs in devices.nvlink_gbs if capability >= least))


def pci_gbs(element: ET.Element) -> float:
    """Bandwidth of the link of a PCI device, in GB/s."""
    speed = next(
        (speed for text, speed in LANE_SPEEDS if element.get("link_speed", "").startswith(text)), UNKNOWN_LANE_SPEED
    )
    width = integer(element, "link_width") or UNKNOWN_WIDTH
    return float(f32(f64(width * speed) / 80.0))


UNKNOWN_MBPS = 10000
FUNCTION_OF_BUS_ID = 0xF
# NCCL_TOPO_GPU_LOCAL_RANK_SHIFT, topo.h: a rank's id is the id of its GPU with the rank's number in the bits from here
RANK_OF_GPU_BIT = 40
NO_PCI_DEVICE = 0  # the id of an adapter that is not a PCI device


PeerGroups = Sequence[Mapping[str, int]]  # for each host, the peer-to-peer group of each GPU, by bus id


def build(root: ET.Element, devices: Devices, types: PathTypes, peer_groups: PeerGroups) -> System:
    """The system graph of a <system> element. BadTopology if NCCL cannot build a graph from it."""
    return _Builder(devices, types, peer_groups).build(root)


class _Builder:
    def __init__(self, devices: Devices, types: PathTypes, peer_groups: PeerGroups) -> None:
        self.devices = devices
        self.system = System(types)
        self.peer_groups = peer_groups
        self.host = 0  # number of the host of the CPU that is being read
        self._hosts: list[str] = []  # the hosts, in the order in which the file has them

    def build(self, root: ET.Element) -> System:
        for read in (self.add_cpu, self.add_nvlinks, self.add_c2c, self.add_pci_links):
            for cpu in root.findall("cpu"):
                self.host = self.host_of(cpu)
                read(cpu)
        self.system.hosts = len(self._hosts)
        flatten(self.system, self.devices)
        self.connect_cpus()
        sort(self.system)
        return self.system

    def host_of(self, cpu: ET.Element) -> int:
        """The number of a CPU's host, in the order in which hosts appear (ncclGetSystemId)."""
        host = cpu.get(HOST, "")
        if host not in self._hosts:
            self._hosts.append(host)
        return self._hosts.index(host)

    def own(self, number: int) -> int:
        """The id of a device of the current host, made of the host's number and the device's (NCCL_TOPO_ID, topo.h)."""
        return (self.host << HOST_BIT) + (number & (1 << HOST_BIT) - 1)

    def add_cpu(self, element: ET.Element) -> None:
        cpu = CpuDevice(DeviceKind.CPU, self.own(integer(element, "numaid")), arch=element.get("arch", ""))
        if cpu.arch == "x86_64":
            cpu.vendor = element.get("vendor")
            cpu.family, cpu.model = integer(element, "familyid", 0), integer(element, "modelid", 0)
        self.system.nodes[DeviceKind.CPU].append(cpu)
        for child in element:
            if child.tag == "pci":
                self.add_pci(child, cpu)
            elif child.tag == "nic":
                # NCCL has one such device for all CPUs, attached to the first (sic).
                without = NO_PCI_DEVICE if self.devices.ports_share_nic else self.own(NO_PCI_DEVICE)
                nic = self.system.find(DeviceKind.NIC, without)
                if nic is None:
                    nic = self.new(SystemDevice(DeviceKind.NIC, self.own(NO_PCI_DEVICE)))
                    join(cpu, nic, "PIX", LOCAL_GBS)
                self.add_nets(child, nic, "")

    def new(self, node: SystemDevice) -> SystemDevice:
        self.system.nodes[node.kind].append(node)
        return node

    def add_pci(self, element: ET.Element, parent: SystemDevice) -> None:
        bus = self.own(bus_id(element.get("busid", "")))
        gpus, nic = element.findall("gpu"), element.find("nic")
        kind = self.kind_of(element.get("class", ""))
        node: SystemDevice | None = None
        for rank_of_gpu, gpu in enumerate(gpus):
            if gpu.get("rank") is None:
                return
            node = self.add_gpu(element, gpu, bus | rank_of_gpu << RANK_OF_GPU_BIT)
        if nic is not None:
            own = bus & ~FUNCTION_OF_BUS_ID if self.devices.ports_share_nic else bus
            there = self.system.find(DeviceKind.NIC, own)
            if there is None:
                there = node = self.new(SystemDevice(DeviceKind.NIC, own))
            self.add_nets(nic, there, element.get("busid", ""))
        elif kind == "PCI" and not gpus:
            node = self.new(SystemDevice(DeviceKind.PCI, bus, device=_device(element)))
            for child in element:
                if child.tag == "pci":
                    self.add_pci(child, node)
        if node is not None:
            join(parent, node, "PIX", pci_gbs(element))

    def kind_of(self, pci_class: str) -> str:
        return next((kind for prefix, kind in self.devices.pci_classes if pci_class.startswith(prefix)), "PCI")

    def add_gpu(self, pci: ET.Element, element: ET.Element, own: int) -> SystemDevice:
        gpu = GpuDevice(
            DeviceKind.GPU,
            own,
            dev=integer(element, "dev"),
            rank=integer(element, "rank"),
            compute_capability=integer(element, "sm"),
            gpu_direct=integer(element, "gdr") != 0,
            peer_group=self.peer_groups[self.host][pci.get("busid", "").lower()],
        )
        self.new(gpu)
        if not self.devices.gpu_and_rank_apart:
            return gpu
        bus = self.own(own & (1 << RANK_OF_GPU_BIT) - 1)
        hardware = self.system.find(DeviceKind.DEV, bus)
        if hardware is None:
            hardware = self.new(
                GpuDevice(DeviceKind.DEV, bus, dev=gpu.dev, rank=gpu.rank, compute_capability=gpu.compute_capability)
            )
        join(gpu, hardware, "LOC", LOCAL_GBS)
        return hardware

    def add_nets(self, element: ET.Element, nic: SystemDevice, pci: str) -> None:
        for child in element:
            if child.get("dev") is None or child.get("net") == "0":
                continue
            dev, mbps = integer(child, "dev"), integer(child, "speed", 0)
            gbs = float(f32((mbps if mbps > 0 else UNKNOWN_MBPS) / 8000.0))
            guid = child.get("guid")
            net = AdapterDevice(
                DeviceKind.NET,
                self.own(dev),
                dev=dev,
                guid=self.own(dev) if guid is None else int(guid, 16),
                port=integer(child, "port", 0),
                pci=pci,
                rail=integer(child, "rail", UNKNOWN),
                plane=integer(child, "plane", UNKNOWN),
                gbs=gbs,
                latency_us=float(f32(child.get("latency", "0"))),
                gpu_direct=integer(child, "gdr", 0) != 0,
                in_network=integer(child, "coll", 0) != 0,
                most_channels=integer(child, "maxconn", 1 << 20),
            )
            self.new(net)
            join(net, nic, "NET", gbs)

    def hardware(self, bus: int) -> SystemDevice:
        """The GPU with this bus id, at which links begin. BadTopology if no GPU in use has it."""
        kind = DeviceKind.DEV if self.devices.gpu_and_rank_apart else DeviceKind.GPU
        gpu = self.system.find(kind, self.own(bus))
        if gpu is None:
            raise BadTopology(f"no GPU in use has the bus id {bus:x}, at which a link begins")
        return gpu

    def add_nvlinks(self, element: ET.Element, own: str | None = None) -> None:
        for child in _each_gpu_once(element):
            if child.tag != "nvlink":
                self.add_nvlinks(child, child.get("busid") or own)
                continue
            gpu = self.hardware(bus_id(own or ""))
            gbs = float(f32(integer(child, "count")) * f32(nvlink_gbs(gpu, self.devices)))
            far = self.far_end(gpu, child)
            if far is not None:
                connect(gpu, far, "NVL", gbs)
                if far.kind is not gpu.kind:
                    connect(far, gpu, "NVL", gbs)

    def far_end(self, gpu: SystemDevice, link: ET.Element) -> SystemDevice | None:
        kind = self.kind_of(link.get("tclass", ""))
        if kind == "GPU":
            return self.system.find(gpu.kind, self.own(bus_id(link.get("target", ""))))
        if kind == "CPU":
            return cpu_above(gpu, self.devices.cpu_above)
        return (self.system.nodes[DeviceKind.NVS] or [self.new(SystemDevice(DeviceKind.NVS, 0))])[0]

    def add_c2c(self, element: ET.Element, own: str | None = None) -> None:
        for child in _each_gpu_once(element):
            if child.tag != "c2c":
                self.add_c2c(child, child.get("busid") or own)
                continue
            gpu = self.hardware(bus_id(own or ""))
            cpu = cpu_above(gpu, self.devices.cpu_above)
            if cpu is not None:
                gbs = float(f32(integer(child, "bw") * integer(child, "count") / 1000.0))
                join(cpu, gpu, self.devices.c2c, gbs)

    def add_pci_links(self, element: ET.Element, own: str | None = None) -> None:
        for child in element:
            if child.tag != "pcilink":
                self.add_pci_links(child, child.get("busid") or own)
                continue
            near = self.system.find(DeviceKind.PCI, self.own(bus_id(own or "")))
            far = self.system.find(DeviceKind.PCI, self.own(bus_id(child.get("target", ""))))
            if near is not None and far is not None:
                connect(near, far, "LOC", LOCAL_GBS)

    def connect_cpus(self) -> None:
        cpus = self.system.cpus
        for cpu in cpus:
            for other in cpus:
                if other is not cpu and other.host == cpu.host:
                    connect(cpu, other, "SYS", float(f32(cpu_gbs(cpu, self.devices.cpu_links))))


def _each_gpu_once(element: ET.Element) -> list[ET.Element]:
    """The children of an element, without the <gpu> elements of further ranks on the same GPU
    (ncclTopoXmlIsPrimaryGpuForDev)."""
    first = element.find("gpu")
    return [child for child in element if child.tag != "gpu" or child is first]


def join(parent: SystemDevice, node: SystemDevice, kind: str, gbs: float) -> None:
    """Adds a link in both directions."""
    connect(node, parent, kind, gbs)
    connect(parent, node, kind, gbs)


def connect(node: SystemDevice, far: SystemDevice, kind: str, gbs: float) -> None:
    """Adds one direction of a link to the links of ``node`` (ncclTopoConnectNodes).

    If the node already has a link of this kind to the same device, the bandwidth is added to that link. The node's
    links stay sorted by bandwidth, the widest first.
    """
    links = node.links
    at = next((at for at, link in enumerate(links) if link.to is far and link.kind == kind), len(links))
    link = links.pop(at) if at < len(links) else Link(kind, far, 0.0)
    link.gbs = float(f32(link.gbs) + f32(gbs))
    while at > 0 and links[at - 1].gbs < link.gbs:
        at -= 1
    links.insert(at, link)


def cpu_above(node: SystemDevice, how: CpuAbove, below: tuple[SystemDevice, ...] = ()) -> SystemDevice | None:
    """The CPU above a device (findLocalCpu); ``below`` lists the devices that the search passed on its way. BadInput if
    NCCL would loop."""
    if node.kind is DeviceKind.CPU:
        return node
    if node in below:
        raise NcclFails(
            "this release of libnccl crashes on this topology: it looks for a GPU's CPU between two PCIe switches "
            "without an end; valid: NCCL 2.26.2 and later, or GPUs directly on their CPU, as virtual machines show them"
        ).cured(Remedy("nccl", "2.26.2"))
    for link in node.links:
        followed = how == "over_any_device" or link.to.kind in (DeviceKind.PCI, DeviceKind.CPU)
        if link.kind == "PIX" and followed and not (how == "upwards" and link.to in below[-1:]):
            found = cpu_above(link.to, how, (*below, node))
            if found is not None:
                return found
    return None


def bus_id(text: str) -> int:
    """The hexadecimal digits of a bus id as one number (busIdToInt64). BadTopology if it has other characters."""
    digits = "".join(char for char in text if char not in ".:-")
    try:
        return int(digits, 16)
    except ValueError:
        raise BadTopology(f"bus id {text!r} is not written in hexadecimal digits, such as 0000:1b:00.0") from None


def _device(element: ET.Element) -> int:
    names = ("vendor", "device", "subsystem_vendor", "subsystem_device")
    return sum(integer(element, name, 0) << shift for name, shift in zip(names, (48, 32, 16, 0), strict=True))


# NCCL changes a new system graph: it merges switches of two levels, and puts links into the order of a traversal.
# Source: ncclTopoFlattenBcmSwitches and ncclTopoSortSystem, src/graph/topo.cc, v2.28.9-1.

SUBSYSTEM_DEVICE = 0xFFFF
REVISIONS = 0xFFF  # bits of a device word that do not distinguish the levels


def flatten(system: System, devices: Devices) -> None:
    """Merges the two levels that some Broadcom switches show into one switch."""
    at = 0
    while at < len(system.nodes[DeviceKind.PCI]):
        switch = system.nodes[DeviceKind.PCI][at]
        at += 1
        lower = next((lower for upper, lower in devices.flattened if _is(switch, upper)), None)
        if lower is None:
            continue
        if devices.flattened_by_equal_device:
            below = [
                link.to for link in switch.links if link.to.kind is DeviceKind.PCI and link.to.device == switch.device
            ]
        else:
            below = [link.to for link in switch.links if link.to.kind is DeviceKind.PCI and _is(link.to, lower)]
        switch.links = [link for link in switch.links if link.to not in below]
        for sub in below:
            _dissolve(system, sub, switch)
        switch.device = 0x1000C01010000000 if devices.flattened_by_equal_device else switch.device | SUBSYSTEM_DEVICE
        at = devices.flattened_goes_on_at


def _is(switch: SystemDevice, device: int) -> bool:
    return switch.device & ~REVISIONS == device


def _dissolve(system: System, sub: SystemDevice, switch: SystemDevice) -> None:
    """Attaches what is below a switch directly to the switch above it."""
    for link in sub.links:
        if link.to is switch:
            continue
        switch.links.append(Link(link.kind, link.to, link.gbs))
        back = next((back for back in link.to.links if back.to is sub), None)
        if back is not None:
            back.to = switch
    system.remove(sub)


def sort(system: System) -> None:
    """Puts the link towards the CPU last in each device's list of links, from each CPU downwards."""
    for cpu in system.cpus:
        _sort(cpu, None)


def _sort(node: SystemDevice, above: SystemDevice | None) -> None:
    if above is not None:
        at = next(at for at, link in enumerate(node.links) if link.to is above)
        node.links.append(node.links.pop(at))
    for link in list(node.links):
        if link.kind == "PIX" and link.to is not above:
            _sort(link.to, node)
