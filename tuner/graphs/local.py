"""Adapters that a GPU uses first, and which GPU an adapter belongs to.

Source: ncclTopoGetLocal, ncclTopoGetLocalNet, ncclTopoGetLocalGpu, src/graph/topo.cc, v2.28.9-1.
"""

from tuner.base.errors import BadInput, BadTopology
from tuner.base.numerics import ceil_div
from tuner.graphs.system import Adapter, Gpu, Kind, Node, System
from tuner.release.environment import Environment
from tuner.release.search import Routing


def nearest(system: System, node: Node, kind: Kind) -> tuple[list[int], int]:
    """The devices of a kind that a device reaches best, by number, and the type of the paths to them.

    Best is the most bandwidth, and the nearest type among these. DIS where it reaches none.
    """
    type_, gbs, found = system.types.DIS, 0.0, list[int]()
    for number, path in enumerate(node.paths.get(kind, ())):
        if path.gbs > gbs or (path.gbs == gbs and path.type < type_):
            gbs, type_ = path.gbs, path.type
            found = []
        if path.gbs == gbs and path.type == type_:
            found.append(number)
    return found, type_


class LocalNets:
    """The adapters of each GPU, as the paths are when they are asked for."""

    def __init__(self, system: System, routing: Routing, max_channels: int, variables: Environment) -> None:
        self.system = system
        self.routing = routing
        self.max_channels = max_channels
        self.policy = variables.text("NCCL_NETDEVS_POLICY") if routing.nets_policy else None

    def of_gpu(self, gpu: Gpu) -> list[int]:
        """The adapter of channel 0, 1, ... up to where they repeat. BadTopology for a GPU that reaches none."""
        if self.routing.local_nets == "by_masks":
            return self._by_masks(gpu)
        nets, _ = nearest(self.system, gpu, Kind.NET)
        if not nets:
            raise BadTopology(f"GPU {gpu.dev} reaches no network device")
        gpus, _ = nearest(self.system, self.system.nets[nets[0]], Kind.GPU)
        if self.routing.local_nets == "adapter_by_adapter":
            return self._whole_adapters(gpu, nets, len(gpus))[: self.max_channels]
        per_gpu = self._nets_per_gpu(len(nets), len(gpus))
        start = gpu.dev % len(gpus) if self.routing.local_nets == "mirrored_modulo_gpus" else gpu.dev
        if len(nets) & (len(nets) - 1) == 0:
            start = mirrored(start, len(nets))
        return [nets[(start + channel) % len(nets)] for channel in range(min(per_gpu, self.max_channels))]

    def _whole_adapters(self, gpu: Gpu, nets: list[int], sharing: int) -> list[int]:
        """All ports of a GPU's share of the adapters, or as many as NCCL_NETDEVS_POLICY says from its first one on."""
        by_guid = dict[int, list[int]]()
        for net in nets:
            by_guid.setdefault(self.system.nets[net].guid, []).append(net)
        adapters = list(by_guid.values())
        count = len(adapters)
        share = int(ceil_div(count, sharing))
        first = (mirrored(gpu.dev, count) if count & (count - 1) == 0 else gpu.dev * share) % count
        turned = [*adapters[first:], *adapters[:first]]
        limited = self._limit(len(nets))
        return [net for adapter in (turned[:share] if limited is None else turned) for net in adapter][:limited]

    def _nets_per_gpu(self, nets: int, gpus: int) -> int:
        limited = self._limit(nets)
        return int(ceil_div(nets, gpus)) if limited is None else limited

    def _limit(self, nets: int) -> int | None:
        """The adapters of each GPU where NCCL_NETDEVS_POLICY says how many."""
        policy = (self.policy or "AUTO").upper()
        if policy == "ALL":
            return nets
        most = max_nets(policy) if policy.startswith("MAX:") else 0
        return min(most, nets) if most > 0 else None

    def gpu_of(self, net: Adapter) -> int:
        """The number of the GPU that a network device belongs to; -1: none."""
        if self.routing.local_nets == "by_masks":
            return self._gpu_by_masks(net)
        system = self.system
        gpus, _ = nearest(system, system.nets[system.number(net)], Kind.GPU)
        choices = {gpu: self.of_gpu(system.gpus[gpu]) for gpu in gpus}
        for channel in range(max(map(len, choices.values()), default=0)):
            for gpu, nets in choices.items():
                if system.nets[nets[channel % len(nets)]].id == net.id:
                    return gpu
        return -1

    def check_relays(self, variables: Environment) -> None:
        """BadInput where NCCL fails as it looks for the GPUs that relay sends for others (ncclTopoGetPxnRanks)."""
        relays = variables.number("NCCL_PXN_DISABLE", 0) != 1
        if self.routing.local_nets == "by_masks" and relays and self.system.nets:
            for gpu in self.system.gpus:
                self._gpu_by_masks(self.system.nets[self._by_masks(gpu)[0]])

    def _mask(self, gpu: int) -> tuple[list[int], int]:
        """The ids of the network devices from which a GPU is reached best, and the type of these paths."""
        type_, gbs, found = self.system.types.DIS, 0.0, list[int]()
        for net in self.system.nets:
            path = net.paths[Kind.GPU][gpu]
            if path.gbs > gbs or (path.gbs == gbs and path.type < type_):
                gbs, type_ = path.gbs, path.type
                found = []
            if path.gbs == gbs and path.type == type_:
                found.append(net.id)
        return sorted(set(found)), type_

    def _by_masks(self, gpu: Gpu) -> list[int]:
        """The adapters dealt out round robin to the GPUs that have the same ones."""
        system = self.system
        masks = [self._mask(number)[0] for number in range(len(system.gpus))]
        own = masks[system.gpus.index(gpu)]
        if not own:
            raise BadTopology(f"GPU {gpu.dev} reaches no network device")
        sharing = [number for number, mask in enumerate(masks) if mask == own]
        place = sharing.index(system.gpus.index(gpu))
        ids = [own[(place + channel * len(sharing)) % len(own)] for channel in range(self.max_channels)]
        numbers = [next(n for n, net in enumerate(system.nets) if net.id == each) for each in ids]
        repeats = next((n for n in range(1, len(numbers)) if numbers[n] == numbers[0]), len(numbers))
        return numbers[:repeats]

    def _gpu_by_masks(self, net: Adapter) -> int:
        nearest_type, mask, gpus = self.system.types.DIS, list[int](), list[int]()
        for gpu in range(len(self.system.gpus)):
            own, type_ = self._mask(gpu)
            if net.id not in own:
                continue
            if type_ < nearest_type:
                nearest_type, mask, gpus = type_, own, []
            if type_ == nearest_type:
                if own != mask:
                    raise BadInput(f"this release of NCCL refuses GPUs that share network device {net.dev} unevenly")
                gpus.append(gpu)
        return gpus[mask.index(net.id) % len(gpus)] if mask else -1


def max_nets(policy: str) -> int:
    """The number in NCCL_NETDEVS_POLICY=MAX:n; 0: there is none."""
    digits = policy.upper().removeprefix("MAX:")
    return int(digits) if digits.isdecimal() else 0


def mirrored(value: int, power_of_two: int) -> int:
    """The bits of a number in reverse order (mirrorBits, topo.h)."""
    bits = power_of_two.bit_length() - 1
    return sum(1 << (bits - 1 - bit) for bit in range(bits) if value >> bit & 1)
