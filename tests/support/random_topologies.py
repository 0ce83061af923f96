"""Topologies that nobody built: sockets, switches, GPUs, links and adapters drawn at random, for NCCL to search."""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

PCIE = ("8.0 GT/s PCIe", "16.0 GT/s PCIe", "32.0 GT/s PCIe", "64.0 GT/s PCIe")
WITHOUT_NVLINK = (75, 89, 120)  # compute capabilities
MELLANOX_BRIDGE = 'vendor="0x15b3" device="0x1979"'
BROADCOM_GEN4 = 'vendor="0x1000" device="0xc010" subsystem_vendor="0x1000" subsystem_device="0xa096"'
SETTINGS: tuple[dict[str, str], ...] = (
    {},
    {},
    {},
    {"NCCL_CROSS_NIC": "0"},
    {"NCCL_CROSS_NIC": "1"},
    {"NCCL_P2P_LEVEL": "SYS"},
    {"NCCL_P2P_DISABLE": "1"},
    {"NCCL_NET_GDR_LEVEL": "SYS"},
    {"NCCL_PXN_DISABLE": "1"},
    {"NCCL_NET_DISABLE_INTRA": "1"},
    {"NCCL_COLLNET_ENABLE": "1"},
)


@dataclass(frozen=True)
class Drawn:
    """A node, and what is asked of it."""

    xml: str
    gpus: int
    nodes: int
    environment: dict[str, str]
    across: bool  # peer-to-peer works between sockets


def drawn(seed: str) -> Drawn:
    """The same for the same seed."""
    random = Random(seed)
    node = _Node(random)
    used = random.choice([node.gpus, node.gpus, max(1, node.gpus // 2), random.randint(1, node.gpus)])
    # Where NVLinks join GPUs that NVML denies peer-to-peer, NCCL refuses the machine.
    across = node.linked != "none" or random.random() < 0.7
    return Drawn(node.xml(), used, random.choice([1, 2, 2]), random.choice(SETTINGS), across)


class _Node:
    def __init__(self, random: Random) -> None:
        self.random = random
        self.sm = random.choice([70, 75, 80, 86, 89, 90, 100, 120])
        self.arm = random.random() < 0.1
        intel = f'vendor="GenuineIntel" familyid="6" modelid="{random.choice([79, 85, 143, 173, 207])}"'
        amd = f'vendor="AuthenticAMD" familyid="{random.choice([143, 175, 191])}" modelid="1"'
        self.cpu = 'arch="arm64"' if self.arm else f'arch="x86_64" {random.choice([intel, amd])}'
        self.sockets = random.choice([1, 1, 2, 2, 2, 4])
        self.gpus = random.choice([1, 2, 3, 4, 4, 6, 8, 8])
        self.nets = random.choice([1, 1, 2, 2, 3, 4, 4, 8])
        self.linked = random.choice(["none", "none", "switch", "switch", "mesh", "pairs"])
        if self.sm in WITHOUT_NVLINK:
            self.linked = "none"
        self.links = random.choice([1, 2, 4, 6, 12, 18])
        self.c2c = self.arm and self.sm >= 90 and random.random() < 0.6
        self.speed = random.choice(PCIE if self.sm >= 100 else PCIE[:3])
        self.mbps = random.choice([10000, 25000, 100000, 200000, 400000, 800000])
        self.gpu_direct = random.choice([0, 1, 1, 1])
        self.two_ports = random.random() < 0.15
        self.layout = random.choice(["direct", "switches", "switches", "mixed", "two levels", "Broadcom"])
        self.bus_ids = (f"0000:{number:02x}:00.0" for number in range(0x10, 0xFF))
        self.gpu_bus_ids = [next(self.bus_ids) for _ in range(self.gpus)]
        self.mesh = {
            pair: random.choice([1, 2, 4])
            for pair in ((a, b) for b in range(self.gpus) for a in range(b))
            if random.random() < 0.8
        }

    def xml(self) -> str:
        gpus, nets = self.spread(self.gpus, 0.8), self.spread(self.nets, 0.7)
        sockets = []
        for socket in range(self.sockets):
            own_gpus = [self.gpu(gpu) for gpu, at in enumerate(gpus) if at == socket]
            own_nets = [self.net(net) for net, at in enumerate(nets) if at == socket]
            below = "".join(self.placed(own_gpus, own_nets))
            sockets.append(f'<cpu numaid="{socket}" affinity="ffffffff" {self.cpu}>\n{below}</cpu>\n')
        return '<system version="1">\n' + "".join(sockets) + "</system>\n"

    def spread(self, count: int, evenly: float) -> list[int]:
        """The socket of each."""
        if self.random.random() < evenly:
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
        elif self.layout == "Broadcom":
            yield from (self.switch(self.switch(group, BROADCOM_GEN4), BROADCOM_GEN4) for group in groups)
        else:
            bare = 0.4 if self.layout == "mixed" else 0.0
            yield from (group if self.random.random() < bare else self.switch(group) for group in groups)

    def switch(self, below: str, chip: str = MELLANOX_BRIDGE) -> str:
        head = f'<pci busid="{next(self.bus_ids)}" class="0x060400" {chip}'
        return f'{head} link_speed="{self.speed}" link_width="16">\n{below}</pci>\n'

    def gpu(self, number: int) -> str:
        links = "".join(
            f'<nvlink target="{target}" count="{count}" tclass="{tclass}"/>\n'
            for target, count, tclass in self.nvlinks(number)
        )
        c2c = '<c2c bw="44712" count="10"/>\n' if self.c2c else ""
        return (
            f'<pci busid="{self.gpu_bus_ids[number]}" class="0x030200" vendor="0x10de" device="0x2330" '
            f'link_speed="{self.speed}" link_width="16">\n'
            f'<gpu dev="{number}" sm="{self.sm}" rank="{number}" gdr="1">\n{links}{c2c}</gpu>\n</pci>\n'
        )

    def nvlinks(self, number: int) -> Iterator[tuple[str, int, str]]:
        if self.linked == "switch":
            yield "ffff:ff:ff.0", self.links, "0x068000"
        for peer, bus_id in enumerate(self.gpu_bus_ids):
            pair = min(number, peer), max(number, peer)
            if self.linked == "mesh" and pair in self.mesh:
                yield bus_id, self.mesh[pair], "0x030200"
            if self.linked == "pairs" and peer == number ^ 1:
                yield bus_id, self.links, "0x030200"

    def net(self, number: int) -> str:
        chip, port = (number // 2, 1 + number % 2) if self.two_ports else (number, 1)
        speed = self.speed if self.random.random() < 0.8 else PCIE[1]
        return (
            f'<pci busid="{next(self.bus_ids)}" class="0x020000" vendor="0x15b3" device="0x1021" link_speed="{speed}" '
            f'link_width="{self.random.choice([16, 16, 8])}">\n<nic>\n<net name="mlx5_{number}" dev="{number}" '
            f'speed="{self.mbps}" port="{port}" latency="0" guid="0x{chip:x}00" maxconn="131072" '
            f'gdr="{self.gpu_direct}"/>\n</nic>\n</pci>\n'
        )
