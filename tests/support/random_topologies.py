"""Topologies that nobody built: sockets, switches, GPUs, links and adapters drawn at random, for NCCL to search."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from random import Random

from tests.support.search_variables import ASSIGNMENTS
from tuner.machine.gpus import PeerToPeer
from tuner.scenario.oracle_configuration import OracleConfiguration

PCIE = ("8.0 GT/s PCIe", "16.0 GT/s PCIe", "32.0 GT/s PCIe", "64.0 GT/s PCIe")
INTEL_MODELS = (45, 79, 85, 106, 143, 173, 174, 175, 207)
AMD_FAMILIES = (23, 25, 26, 143, 175, 191)
WITHOUT_NVLINK = (75, 89, 120)  # compute capabilities
MELLANOX_BRIDGE = 'vendor="0x15b3" device="0x1979" subsystem_vendor="0x15b3" subsystem_device="0x1979"'
BROADCOM_GEN4 = 'vendor="0x1000" device="0xc010" subsystem_vendor="0x1000" subsystem_device="0xa096"'
BROADCOM_GEN5 = 'vendor="0x1000" device="0xc030" subsystem_vendor="0x1000" subsystem_device="0x0001"'
BROADCOM_GEN5_BELOW = 'vendor="0x1000" device="0xc030" subsystem_vendor="0x1000" subsystem_device="0x100a"'
NO_LINKS = 0


@dataclass(frozen=True)
class Drawn:
    """A node, and what is asked of it."""

    xml: str
    gpus: int  # used of it
    nodes: int
    environment: dict[str, str]
    peer_to_peer: PeerToPeer

    def oracle_configuration(self, nccl: str) -> OracleConfiguration:
        """The same for libnccl, on a network that reduces."""
        return OracleConfiguration(
            self.xml,
            self.nodes,
            self.gpus,
            nccl,
            self.environment,
            peer_to_peer=self.peer_to_peer,
            network_reduces=True,
        )


def drawn(seed: str) -> Drawn:
    """The same for the same seed."""
    random = Random(seed)
    node = _Node(random)
    used = random.choice([node.gpus, node.gpus, max(1, node.gpus // 2), random.randint(1, node.gpus)])
    # Where NVLinks join GPUs that NVML denies peer-to-peer, NCCL refuses the machine.
    draw = 0.0 if node.linked != "none" else random.random()
    allowed = PeerToPeer.all if draw < 0.7 else PeerToPeer.within_sockets if draw < 0.85 else PeerToPeer.none
    set_ = random.sample(ASSIGNMENTS, random.choice([0, 0, 1, 1, 2]))
    environment = dict(assignment.split("=") for assignment in set_)
    return Drawn(node.xml(), used, random.choice([1, 2, 2, 3]), environment, allowed)


class _Node:
    def __init__(self, random: Random) -> None:
        self.random = random
        self.sm = random.choice([70, 75, 80, 86, 89, 90, 90, 100, 103, 120])
        self.arm = random.random() < 0.12
        self.cpu = self._cpu()
        self.sockets = random.choice([1, 1, 2, 2, 2, 4])
        self.gpus = random.choice([1, 2, 2, 2, 3, 3, 4, 4, 4, 4, 5, 6, 8, 8])
        self.nets = random.choice([1, 1, 2, 2, 3, 4, 4, 6, 8])
        self.linked = random.choice(["none", "none", "switch", "switch", "mesh", "pairs", "ring", "line"])
        if self.sm in WITHOUT_NVLINK:
            self.linked = "none"
        self.c2c = self.arm and self.sm >= 90 and random.random() < 0.7
        self.speed = random.choice(PCIE if self.sm >= 100 else PCIE[:3])
        self.mbps = random.choice([10000, 25000, 50000, 100000, 200000, 400000, 800000])
        self.net_gpu_direct = random.choice([0, 1, 1, 1, 1])
        self.ports = random.choice(["one", "one", "one", "one", "one", "two", "two functions"])
        self.layout = random.choice(["direct", "switches", "switches", "mixed", "two levels", "Gen4", "Gen5"])
        self.slots = iter(range(0x10, 0xFF))
        self.gpu_bus_ids = [self.bus_id() for _ in range(self.gpus)]
        self.devs = list(range(self.gpus))
        if random.random() < 0.1:
            random.shuffle(self.devs)
        self.nvlinks = self._nvlinks()

    def sometimes(self, share: float) -> bool:
        return self.random.random() < share

    def bus_id(self) -> str:
        return f"0000:{next(self.slots):02x}:00.0"

    def _cpu(self) -> str:
        if self.arm:
            return 'arch="arm64"'
        intel = f'vendor="GenuineIntel" familyid="6" modelid="{self.random.choice(INTEL_MODELS)}"'
        amd = f'vendor="AuthenticAMD" familyid="{self.random.choice(AMD_FAMILIES)}" modelid="1"'
        zhaoxin = f'vendor="CentaurHauls" familyid="7" modelid="{self.random.choice([0x1B, 0x5B])}"'
        return f'arch="x86_64" {self.random.choice([*[intel] * 6, *[amd] * 6, zhaoxin])}'

    def _nvlinks(self) -> dict[frozenset[int], int]:
        """How many NVLinks join two GPUs, or one and the NVSwitch; some nodes lack a few."""
        everywhere = self.random.choice([1, 2, 4, 6, 12, 18])
        own, last = range(self.gpus), self.gpus - 1
        pairs = {
            "none": [],
            "switch": [(gpu,) for gpu in own],
            "mesh": combinations(own, 2),
            "pairs": [(gpu, gpu + 1) for gpu in own[:last:2]],
            "line": [(gpu, gpu + 1) for gpu in own[:last]],
            "ring": [(gpu, gpu + 1) for gpu in own[:last]] + [(0, last)] * (last > 1),
        }[self.linked]
        unlike = self.linked == "mesh" or self.sometimes(0.15)
        missing = 0.2 if self.linked == "mesh" else self.random.choice([0.0] * 6 + [0.3])
        links = {frozenset(pair): self.random.choice([1, 2, 4]) if unlike else everywhere for pair in pairs}
        return {pair: NO_LINKS if self.sometimes(missing) else count for pair, count in links.items()}

    def xml(self) -> str:
        gpus, nets = self.spread(self.gpus, 0.8), self.spread(self.nets, 0.7)
        sockets = []
        for socket in range(self.sockets):
            own_gpus = [self.gpu(gpu) for gpu, at in enumerate(gpus) if at == socket]
            own_nets = [net for net, at in enumerate(nets) if at == socket]
            virtual = [own_nets.pop()] if own_nets and self.sometimes(0.03) else []
            below = "".join([*self.placed(own_gpus, list(self.adapters(own_nets))), *map(self.virtual, virtual)])
            sockets.append(f'<cpu numaid="{socket}" affinity="ffffffff" {self.cpu}>\n{below}</cpu>\n')
        return '<system version="1">\n' + "".join(sockets) + "</system>\n"

    def spread(self, count: int, evenly: float) -> list[int]:
        """The socket of each."""
        if self.sometimes(evenly):
            return [number * self.sockets // count for number in range(count)]
        return [self.random.randrange(self.sockets) for _ in range(count)]

    def placed(self, gpus: list[str], nets: list[str]) -> Iterator[str]:
        if self.layout == "direct":
            yield from gpus + nets
            return
        most, groups = self.random.choice([1, 2, 4]), list[str]()
        while gpus or nets:
            group, gpus = gpus[:most], gpus[most:]
            if nets:
                group.insert(self.random.randrange(len(group) + 1), nets.pop(0))
            groups.append("".join(group))
        if self.layout == "two levels":
            yield self.switch("".join(map(self.switch, groups)))
        elif self.layout == "Gen4":
            yield from (self.switch(self.switch(group, BROADCOM_GEN4), BROADCOM_GEN4) for group in groups)
        elif self.layout == "Gen5":
            below = (self.switch(group, BROADCOM_GEN5_BELOW) for group in groups)
            yield self.switch("".join(below), BROADCOM_GEN5)
        else:
            bare = 0.4 if self.layout == "mixed" else 0.0
            yield from (group if self.sometimes(bare) else self.switch(group) for group in groups)

    def link(self) -> str:
        """The attributes of a PCI link; a few are slower or narrower than the others."""
        speed = PCIE[1] if self.sometimes(0.08) else self.speed
        width = self.random.choice([4, 8]) if self.sometimes(0.08) else 16
        return f'link_speed="{speed}" link_width="{width}"'

    def switch(self, below: str, chip: str = MELLANOX_BRIDGE) -> str:
        return f'<pci busid="{self.bus_id()}" class="0x060400" {chip} {self.link()}>\n{below}</pci>\n'

    def gpu(self, number: int) -> str:
        links = "".join(
            f'<nvlink target="{target}" count="{count}" tclass="{tclass}"/>\n'
            for target, count, tclass in self.nvlinks_of(number)
        )
        c2c = '<c2c bw="44712" count="10"/>\n' if self.c2c else ""
        gpu_direct = int(not self.sometimes(0.05))
        return (
            f'<pci busid="{self.gpu_bus_ids[number]}" class="0x030200" vendor="0x10de" device="0x2330" '
            f'subsystem_vendor="0x10de" subsystem_device="0x1626" {self.link()}>\n'
            f'<gpu dev="{self.devs[number]}" sm="{self.sm}" rank="{number}" gdr="{gpu_direct}">\n{links}{c2c}</gpu>\n'
            "</pci>\n"
        )

    def nvlinks_of(self, number: int) -> Iterator[tuple[str, int, str]]:
        for ends, count in self.nvlinks.items():
            if count != NO_LINKS and number in ends:
                others = [self.gpu_bus_ids[peer] for peer in ends if peer != number]
                yield (others[0], count, "0x030200") if others else ("ffff:ff:ff.0", count, "0x068000")

    def adapters(self, nets: list[int]) -> Iterator[str]:
        """Network devices as the PCI devices that they are, which may have two ports."""
        while nets:
            if self.ports == "one" or len(nets) == 1:
                net = nets.pop(0)
                yield self.adapter(self.bus_id(), [self.net(net, 1, net)])
                continue
            chip, first, second = nets[0], nets.pop(0), nets.pop(0)
            bus_id = self.bus_id()
            if self.ports == "two":
                yield self.adapter(bus_id, [self.net(first, 1, chip), self.net(second, 2, chip)])
            else:
                one = self.adapter(bus_id, [self.net(first, 1, chip)])
                yield one + self.adapter(f"{bus_id[:-1]}1", [self.net(second, 1, chip)])

    def adapter(self, bus_id: str, nets: list[str]) -> str:
        return (
            f'<pci busid="{bus_id}" class="0x020000" vendor="0x15b3" device="0x1021" subsystem_vendor="0x15b3" '
            f'subsystem_device="0x0041" {self.link()}>\n<nic>\n{"".join(nets)}</nic>\n</pci>\n'
        )

    def virtual(self, number: int) -> str:
        """A network device that is no PCI device."""
        return f"<nic>\n{self.net(number, 1, number)}</nic>\n"

    def net(self, number: int, port: int, chip: int) -> str:
        mbps = 25000 if self.sometimes(0.08) else self.mbps
        latency = self.random.choice(["0", "0", "0", "0", "2.5"])
        gpu_direct = 1 - self.net_gpu_direct if self.sometimes(0.05) else self.net_gpu_direct
        return (
            f'<net name="mlx5_{number}" dev="{number}" speed="{mbps}" port="{port}" latency="{latency}" '
            f'guid="0x{chip + 1:x}00" maxconn="131072" gdr="{gpu_direct}"/>\n'
        )
