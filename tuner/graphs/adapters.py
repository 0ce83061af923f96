"""The paths between GPUs and network devices, after NCCL has changed them for GPUDirect RDMA, for detours over other
GPUs (PXN), and for C2C links.

Source: ncclTopoComputePaths after its loop over pairs of GPUs, ncclTopoCheckGdr, src/graph/paths.cc, v2.28.9-1.
"""

from collections.abc import Iterable

from tuner.base.errors import BadTopology, NcclFails, Remedy
from tuner.base.numerics import ceil_div, mirrored
from tuner.graphs.paths import divert, joined, level, near_cpu
from tuner.graphs.system import AdapterDevice, DeviceKind, GpuDevice, Path, System, SystemDevice
from tuner.release.environment import Environment
from tuner.release.search import Routing


def nearest(system: System, node: SystemDevice, kind: DeviceKind) -> tuple[list[int], int]:
    """The numbers of the devices of one kind that a device reaches best, and the type of the paths to them.

    The best path has the most bandwidth, and among equals the nearest type. The type is DIS if the device reaches none.
    """
    return _best(system, enumerate(node.paths.get(kind, ())))


def _best(system: System, paths: Iterable[tuple[int, Path]]) -> tuple[list[int], int]:
    """Of the paths with the most bandwidth, the numbers of those with the nearest type; and this type."""
    type_, gbs, found = system.types.DIS, 0.0, list[int]()
    for number, path in paths:
        if path.gbs > gbs or (path.gbs == gbs and path.type < type_):
            gbs, type_ = path.gbs, path.type
            found = []
        if path.gbs == gbs and path.type == type_:
            found.append(number)
    return found, type_


class LocalNets:
    """Assigns adapters to GPUs. Each answer follows the paths as they are when a method is called."""

    def __init__(self, system: System, routing: Routing, max_channels: int, variables: Environment) -> None:
        self.system = system
        self.routing = routing
        self.max_channels = max_channels
        self.policy = variables.text("NCCL_NETDEVS_POLICY") if routing.nets_policy else None

    def of_gpu(self, gpu: GpuDevice) -> list[int]:
        """The adapters of a GPU's channels 0, 1, ...; further channels begin again at the first of them.

        BadTopology if the GPU reaches no adapter.
        """
        if self.routing.local_nets == "by_masks":
            return self._by_masks(gpu)
        nets, _ = nearest(self.system, gpu, DeviceKind.NET)
        if not nets:
            raise BadTopology(f"GPU {gpu.dev} reaches no network device")
        gpus, _ = nearest(self.system, self.system.nets[nets[0]], DeviceKind.GPU)
        if self.routing.local_nets == "adapter_by_adapter":
            return self._whole_adapters(gpu, nets, len(gpus))[: self.max_channels]
        per_gpu = self._nets_per_gpu(len(nets), len(gpus))
        start = gpu.dev % len(gpus) if self.routing.local_nets == "mirrored_modulo_gpus" else gpu.dev
        if len(nets) & (len(nets) - 1) == 0:
            start = mirrored(start, len(nets))
        return [nets[(start + channel) % len(nets)] for channel in range(min(per_gpu, self.max_channels))]

    def _whole_adapters(self, gpu: GpuDevice, nets: list[int], sharing: int) -> list[int]:
        """All ports of the adapters that belong to a GPU, or the number that NCCL_NETDEVS_POLICY allows, beginning with
        the first one."""
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
        """A GPU's adapters, limited to the number that NCCL_NETDEVS_POLICY allows."""
        policy = (self.policy or "AUTO").upper()
        if policy == "ALL":
            return nets
        most = max_nets(policy) if policy.startswith("MAX:") else 0
        return min(most, nets) if most > 0 else None

    def gpu_of(self, net: AdapterDevice) -> int:
        """The number of the GPU that a network device belongs to; -1 if it belongs to none."""
        if self.routing.local_nets == "by_masks":
            return self._gpu_by_masks(net)
        system = self.system
        if self.routing.local_nets == "mirrored_of_any_gpu":
            gpus = list(range(len(system.gpus)))
        else:
            gpus, _ = nearest(system, system.nets[system.number(net)], DeviceKind.GPU)
        choices = {gpu: self.of_gpu(system.gpus[gpu]) for gpu in gpus}
        for channel in range(max(map(len, choices.values()), default=0)):
            for gpu, nets in choices.items():
                if system.nets[nets[channel % len(nets)]].id == net.id:
                    return gpu
        return -1

    def check_relays(self, variables: Environment) -> None:
        """Raises BadInput if NCCL fails while it looks for the GPUs that relay sends for others
        (ncclTopoGetPxnRanks)."""
        relays = variables.number("NCCL_PXN_DISABLE", 0) != 1
        if self.routing.local_nets == "by_masks" and relays and self.system.nets:
            for gpu in self.system.gpus:
                self._gpu_by_masks(self.system.nets[self._by_masks(gpu)[0]])

    def _mask(self, gpu: int) -> tuple[list[int], int]:
        """The ids of the network devices with the best paths to a GPU, and the type of these paths."""
        found, type_ = _best(self.system, ((net.id, net.paths[DeviceKind.GPU][gpu]) for net in self.system.nets))
        return sorted(set(found)), type_

    def _by_masks(self, gpu: GpuDevice) -> list[int]:
        """Distributes adapters, round robin, among the GPUs for which the same adapters are best."""
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

    def _gpu_by_masks(self, net: AdapterDevice) -> int:
        nearest_type, mask, gpus = self.system.types.DIS, list[int](), list[int]()
        for gpu in range(len(self.system.gpus)):
            own, type_ = self._mask(gpu)
            if net.id not in own:
                continue
            if type_ < nearest_type:
                nearest_type, mask, gpus = type_, own, []
            if type_ == nearest_type:
                if own != mask:
                    raise NcclFails(f"this release of NCCL refuses GPUs that share network device {net.dev} unevenly")
                gpus.append(gpu)
        return gpus[mask.index(net.id) % len(gpus)] if mask else -1


def max_nets(policy: str) -> int:
    """The number n in NCCL_NETDEVS_POLICY=MAX:n; 0 if the variable has another value, and so sets no limit."""
    digits = policy.upper().removeprefix("MAX:")
    return int(digits) if digits.isdecimal() else 0


FIRST_WITH_GPU_DIRECT_READ = 80  # compute capability from which GPUDirect RDMA reads do not require NVLinks


class Adapters:
    """Changes the paths between the GPUs and the network devices of a system."""

    def __init__(self, system: System, routing: Routing, local: LocalNets, variables: Environment) -> None:
        self.system = system
        self.routing = routing
        self.local = local
        types = system.types
        self.pxn = variables.c_int("NCCL_PXN_DISABLE", 0) != 1
        pxn_c2c = routing.pxn_c2c is not None and variables.number("NCCL_PXN_C2C", int(routing.pxn_c2c)) != 0
        self.relay_type = types.P2C if pxn_c2c else types.PXB
        self.pxn_c2c = pxn_c2c
        c2c = routing.gpu_direct_c2c != "none"
        self.c2c = c2c and variables.number("NCCL_NET_GDR_C2C", int(routing.gpu_direct_c2c_default)) != 0
        self.read = variables.c_int("NCCL_NET_GDR_READ", -2)
        set_level = level(types, variables, None, "NCCL_NET_GDR_LEVEL")
        default = types.P2C if self.c2c and routing.gpu_direct_c2c == "as_level" else types.PXB
        self.level = default if set_level is None else set_level
        # The GPU of the network device that is being processed, by its paths before any change
        self._relay: int | None = None

    def change_all(self) -> None:
        """Makes all changes, in NCCL's order; after that, each network device belongs to one GPU."""
        self._mark_p2c()
        for net in self.system.nets:
            self._forget_relay()
            for gpu in self.system.gpus:
                if self.pxn:
                    self._over_another_gpu(net, gpu)
                near = self._path(gpu, net).type < self.system.types.PHB
                if (near or not self.routing.gpu_direct_below_phb_only) and not self.gpu_direct(gpu, net, read=False):
                    cpu = self.system.cpus[near_cpu(self.system, gpu, self.routing)]
                    divert(self.system, net, cpu, gpu, self.routing)
                    divert(self.system, gpu, cpu, net, self.routing)
                    self._forget_relay()
        # In these releases NCCL only asks for the GPU of an adapter if GPUs relay
        if self.routing.local_nets != "by_masks":
            for net in self.system.nets:
                net.local_gpu = self.local.gpu_of(net)

    def _path(self, gpu: GpuDevice, net: AdapterDevice) -> Path:
        return gpu.paths[DeviceKind.NET][self.system.number(net)]

    def _back(self, net: AdapterDevice, gpu: GpuDevice) -> Path:
        return net.paths[DeviceKind.GPU][self.system.number(gpu)]

    def _mark_p2c(self) -> None:
        """Changes the type of paths that use C2C to the CPU, and PCI from there, to P2C."""
        types, routing, system = self.system.types, self.routing, self.system
        if routing.p2c == "none":
            return
        for gpu in system.gpus:
            cpu = near_cpu(system, gpu, routing)
            to_cpu = gpu.paths[DeviceKind.CPU][cpu].type
            nets = (
                nearest(system, gpu, DeviceKind.NET)[0]
                if routing.p2c == "of_local_adapters"
                else range(len(system.nets))
            )
            for net in [system.nets[number] for number in nets]:
                path = self._path(gpu, net)
                if routing.p2c == "of_phb_paths":
                    if path.type == types.PHB and to_cpu == types.C2C:
                        path.type = self._back(net, gpu).type = types.P2C
                elif joined(system, to_cpu, net.paths[DeviceKind.CPU][cpu].type, routing) == types.P2C:
                    back = self._back(net, gpu)
                    path.type, back.type = min(types.P2C, path.type), min(types.P2C, back.type)

    def _over_another_gpu(self, net: AdapterDevice, gpu: GpuDevice) -> None:
        """Leads traffic through the GPU that the network device belongs to, if that is better than the direct path
        (PXN)."""
        system, types = self.system, self.system.types
        number = self._relay_of(net)
        if number == -1 or system.gpus[number] is gpu:
            return
        over = system.gpus[number]
        if over.host != gpu.host:
            return
        allowed = not self.routing.pxn_needs_gpu_direct or self.gpu_direct(over, net, read=True)
        there, own = self._path(over, net), self._path(gpu, net)
        if self.routing.pxn_instead_of == "farther_than_pxb":
            near = there.type <= types.PXB or (self.pxn_c2c and there.type == types.P2C)
        else:
            near = there.type <= self.relay_type
        limits = {
            "farther_than_pxb": types.PXB,
            "farther_than_relay": self.relay_type,
            "farther_than_pxn": types.PXN,
        }
        linked = over.paths[DeviceKind.GPU][system.number(gpu)].type <= types.NVL
        better = there.gbs > own.gbs or own.type > limits[self.routing.pxn_instead_of]
        if allowed and near and linked and better:
            divert(system, gpu, over, net, self.routing)
            self._forget_relay()

    def _relay_of(self, net: AdapterDevice) -> int:
        """The number of the GPU that a network device belongs to, by the paths changed so far; -1 if it belongs to
        none."""
        if self._relay is None:
            self._relay = self.local.gpu_of(net)
        return self._relay

    def _forget_relay(self) -> None:
        self._relay = None

    def gpu_direct(self, gpu: GpuDevice, net: AdapterDevice, read: bool) -> bool:
        """Whether a network device may write to (or read from) a GPU's memory directly."""
        types = self.system.types
        if not (net.gpu_direct and gpu.gpu_direct) or (read and not self._may_read(gpu)):
            return False
        path = self._path(gpu, net)
        if path.type == types.PXN:
            gpu = relay(self.system, path)
            path = self._path(gpu, net)
        distance = path.type
        if self.c2c and self.routing.gpu_direct_c2c == "of_p2c_paths" and distance == types.P2C:
            distance = types.C2C
        if self.c2c and self.routing.gpu_direct_c2c == "of_phb_paths" and distance == types.PHB:
            cpu = near_cpu(self.system, gpu, self.routing)
            distance = types.C2C if gpu.paths[DeviceKind.CPU][cpu].type == types.C2C else distance
        return distance <= self.level

    def _may_read(self, gpu: GpuDevice) -> bool:
        if self.read == 0:
            return False
        newer = self.routing.gpu_direct_read_on_ampere and gpu.compute_capability >= FIRST_WITH_GPU_DIRECT_READ
        if self.read > 0 or newer or len(self.system.gpus) == 1:
            return True
        paths = gpu.paths[DeviceKind.GPU]
        own = self.system.number(gpu)
        return any(path.type == self.system.types.NVL for number, path in enumerate(paths) if number != own)


def relay(system: System, path: Path) -> GpuDevice:
    """The other GPU over which a path to a network device leads (PXN), as ncclTopoGetIntermediateRank finds it.

    BadInput if NCCL does not find it.
    """
    kind = DeviceKind.DEV if system.nodes[DeviceKind.DEV] else DeviceKind.GPU
    skipped = path.links[1:] if kind is DeviceKind.DEV else path.links
    hardware = next(link.to for link in skipped if link.to.kind is not DeviceKind.NVS)
    if hardware.kind is not kind:
        raise NcclFails(
            "NCCL fails where GPUs whose NVLinks lead to a processor would use each other's adapters; "
            "valid with NCCL_PXN_DISABLE=1"
        ).cured(Remedy("env", "1", "NCCL_PXN_DISABLE"))
    return next(gpu for gpu in system.gpus if gpu.id == hardware.id)
