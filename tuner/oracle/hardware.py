"""Converts a topology file to the machine that the simulated CUDA, NVML and network have to present."""

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Set
from types import MappingProxyType

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, BadTopology
from tuner.machine import adapters
from tuner.machine.gpus import FIRST_WITH_MULTICAST, PeerToPeer
from tuner.oracle.messages import GpuMessage, NetMessage
from tuner.scenario.oracle_configuration import Host

MAX_GPUS_PER_NODE = 64  # SIM_MAX_LOCAL_GPUS in csrc/sim/hardware.h
MAX_NETS_PER_NODE = 64  # SIM_MAX_NETS
MAX_KINDS = 16  # SIM_MAX_KINDS
HOST_HASH = 0x1000  # SIM_HOST_HASH
HOST_OF_GUID_BIT = 32  # SIM_HOST_OF_GUID_BIT
DRIVER_VERSION = (
    # 13030 is new enough for everything in every release (LL128 on Rubin over PXN came last); older drivers are not
    # emulated
    13030
)
MAX_COMMS = 131072  # NCCL's own InfiniBand network reports this for an adapter


@dataclass(frozen=True, slots=True)
class SimulatedNode:
    """One node of the machine."""

    gpus: tuple[GpuMessage, ...]
    nets: tuple[NetMessage, ...]
    coll_nets: int  # number of network devices that do collectives in the network
    switched: bool  # whether an NVLink leads to a switch
    merges_nets: bool  # whether the network merges devices if NCCL asks for it

    @property
    def multicast(self) -> bool:
        """Whether the GPUs offer multicast, which needs an NVLink switch."""
        return self.switched and all(gpu.compute_capability >= FIRST_WITH_MULTICAST for gpu in self.gpus)


# A node without network devices still has a network. NCCL drops it from a communicator of one node.
_ETHERNET = NetMessage("eth0", guid=1, speed_mbps=10000, port=1, max_comms=MAX_COMMS, gdr=0, latency_us=0.0)


def read(
    host: Host,
    *,
    nodes: int = 1,
    variables: Mapping[str, str] = MappingProxyType({}),
    network_reduces: bool = False,
    far_ends: Set[str] = frozenset(),
) -> SimulatedNode:
    """The GPUs and network devices of a node's topology XML, each ordered by ``dev``: the first ``host.gpus`` GPUs, and
    all network devices that NCCL uses.

    ``nodes`` is the number of nodes of the communicator. ``variables`` are NCCL's variables (NCCL_*).
    ``network_reduces`` is the field of OracleConfiguration with this name. ``far_ends`` are bus ids to which NVLinks
    lead that the topology itself does not list.

    Each <cpu> of the topology, which is a NUMA node, becomes a socket. BadTopology if it is not a topology, BadInput if
    it has more devices than can be simulated.
    """
    try:
        root = ElementTree.fromstring(host.topology)
    except ElementTree.ParseError as error:
        raise BadTopology(f"topology is not XML: {error}") from None
    listed = sorted(_gpus(root, host.peer_to_peer), key=lambda pair: pair[0])
    if not listed:
        raise BadTopology("topology has no <gpu> element; the oracle needs the GPUs with their bus ids and sm")
    most = min(len(listed), MAX_GPUS_PER_NODE)
    if not 1 <= host.gpus <= most:
        raise BadInput(f"gpus_per_node is {host.gpus}: valid are 1 to {most}, as many as the topology has")
    named, nets = _nets(root)
    used = adapters.used(named, variables)
    nets = [nets[number] for number in used]
    if len(nets) > MAX_NETS_PER_NODE:
        raise BadTopology(f"topology has {len(nets)} <net> elements; the oracle simulates at most {MAX_NETS_PER_NODE}")
    if not nets and nodes > 1:
        raise BadTopology(f"topology has no <net> element, which a communicator of {nodes} nodes needs")
    coll_nets = len(nets) if network_reduces else 0
    # 03 is the PCI class of displays
    to_switch = any(not link.get("tclass", "").startswith("0x03") for link in root.iter("nvlink"))
    switched = to_switch or not {gpu.bus_id for _, gpu in listed}.issuperset(far_ends)
    gpus = tuple(gpu for _, gpu in listed[: host.gpus])
    merges = adapters.mergeable(named, variables)
    return SimulatedNode(gpus, tuple(nets) or (_ETHERNET,), coll_nets, switched, merges)


def for_x86(topology: str) -> str:
    """A topology XML in the form that a libnccl for x86-64 needs.

    Arm and POWER CPUs have no vendor in a topology. A rank that runs on x86-64 and has a device below such a CPU adds
    the vendor of its own computer. The same CPU then differs from rank to rank, and NCCL counts it twice
    (ncclTopoGetXmlFromCpu and xmlTopoFuseXmlRecursive, src/graph/xml.cc, v2.28.9-1). With a vendor in the file that
    does not happen, and NCCL does not use the vendor of such CPUs.

    To a CPU without an affinity, NCCL adds the affinity of this computer's NUMA node, which may have none. Therefore
    every CPU without an affinity gets one here.
    """
    topology = re.sub(r"<cpu\s(?![^>]*\baffinity=)", '<cpu affinity="ffffffff" ', topology)
    filled = r'<cpu vendor="GenuineIntel" familyid="0" modelid="0" '
    return re.sub(r'<cpu\s(?=[^>]*\barch="(?:arm64|ppc64)")(?![^>]*\bvendor=)', filled, topology)


def of_host(topology: str, number: int) -> str:
    """A topology XML for one host in an NVLink domain, with the simulated host's hash for its CPUs and distinct
    adapters.

    NCCL tells hosts that it fuses into one system apart only by this hash. From 2.27.3 on, it writes its own hash;
    older releases keep the file's, and treat CPUs without a hash as those of a single host (ncclTopoGetXmlFromCpu,
    src/graph/xml.cc, and ncclTopoAddCpu, src/graph/topo.cc, v2.21.5-1). Adapters with the same guid would be ports of
    one adapter, which share its bandwidth (ncclTopoSearchRecNet, src/graph/search.cc), and no two hosts have the same
    one.
    """
    without = re.sub(r'(<cpu\b[^>]*?)\s+host_hash="[^"]*"', r"\1", topology)
    marked = re.sub(r"<cpu\b", f'<cpu host_hash="{HOST_HASH + number:#x}"', without)
    return re.sub(
        r'(?<=\sguid=")[^"]*', lambda guid: hex(int(guid[0], 16) + (number << HOST_OF_GUID_BIT) & (1 << 64) - 1), marked
    )


def _gpus(root: ElementTree.Element, allowed: PeerToPeer) -> list[tuple[int, GpuMessage]]:
    gpus: list[tuple[int, GpuMessage]] = []
    for socket, cpu in enumerate(root.iter("cpu")):
        for pci in cpu.iter("pci"):
            for gpu in pci.findall("gpu"):
                bus_id, sm = pci.get("busid"), gpu.get("sm")
                if bus_id is None or sm is None:
                    raise BadTopology("a <gpu> needs its compute capability in sm= and its <pci> a busid=")
                peers = allowed.group(socket, len(gpus))
                gpus.append((_int(gpu, "dev", len(gpus)), GpuMessage(bus_id, int(sm), peers)))
    return gpus


def _nets(root: ElementTree.Element) -> tuple[list[adapters.NamedAdapter], list[NetMessage]]:
    """The network devices ordered by ``dev``: in the form from which NCCL selects, and in the simulated form."""
    nets: list[tuple[int, NetMessage]] = []
    bus_ids = {net: pci.get("busid") for pci in root.iter("pci") for net in pci.findall("nic/net")}
    named: list[adapters.NamedAdapter] = []
    for element in root.iter("net"):
        name = element.get("name")
        if name is None:
            raise BadTopology("a <net> needs a name=")
        net = NetMessage(
            name=name,
            guid=_int(element, "guid", len(nets) + 1),
            speed_mbps=_int(element, "speed", 10000),
            port=_int(element, "port", 1),
            max_comms=_int(element, "maxconn", MAX_COMMS),
            gdr=_int(element, "gdr", 1),
            latency_us=float(element.get("latency", "0")),
        )
        nets.append((_int(element, "dev", len(nets)), net))
        named.append(adapters.NamedAdapter(name, _int(element, "port", 0), bus_ids.get(element), net.gdr != 0))
    order = sorted(range(len(nets)), key=lambda number: nets[number][0])
    return [named[number] for number in order], [nets[number][1] for number in order]


def _int(element: ElementTree.Element, name: str, default: int) -> int:
    text = element.get(name)
    if text is None:
        return default
    try:
        return int(text, 0)
    except ValueError:
        raise BadTopology(f"<{element.tag}> has {name}={text!r}, which is not an integer") from None
