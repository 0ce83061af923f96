"""Finds the paths between devices, breadth first from each device, and leads some of them over a third device, as NCCL
does.

Source: ncclTopoSetPaths, addInterStep and ncclGetLocalCpu, src/graph/paths.cc, v2.28.9-1.
"""

from tuner.base.errors import BadInput, BadTopology, NcclFails
from tuner.base.numerics import parse_long
from tuner.graphs.build import LOCAL_GBS
from tuner.graphs.system import DeviceKind, GpuDevice, Link, Path, PathTypes, System, SystemDevice
from tuner.release.environment import Environment
from tuner.release.search import Routing


def set_paths(system: System, routing: Routing, nvb: bool) -> None:
    """Finds the paths to all CPUs, GPUs, network devices and NVSwitches.

    If ``nvb`` is true, a path between two GPUs may lead over the NVLinks of a third GPU.
    """
    for node in system.everything():
        node.paths.clear()
    for kind in (DeviceKind.CPU, DeviceKind.DEV, DeviceKind.GPU, DeviceKind.NET, DeviceKind.NVS):
        for base in system.nodes[kind]:
            _Spread(base, system, routing, nvb).spread()


class _Spread:
    """Finds the paths to one device, level by level outwards from it."""

    def __init__(self, base: SystemDevice, system: System, routing: Routing, nvb: bool) -> None:
        self.base, self.system, self.routing, self.nvb = base, system, routing, nvb
        self.kind, self.number, self.types = base.kind, system.number(base), system.types
        apart = bool(system.nodes[DeviceKind.DEV])
        from_rank = apart and base.kind is DeviceKind.GPU
        # The kind of device that passes traffic on over NVLink
        self.relay = DeviceKind.DEV if apart else DeviceKind.GPU
        self.through = 2 if from_rank else 1  # the number of links after which it does so
        self.own = base.links[0].to if from_rank else base

    def path_of(self, node: SystemDevice) -> Path:
        """The path from a device; empty at first."""
        if self.kind not in node.paths:
            unreached = self.routing.unreached
            gone = unreached == "disconnected" or (unreached == "disconnected_for_others" and node is not self.base)
            type_ = self.types.DIS if gone else self.types.LOC
            node.paths[self.kind] = [Path(type_) for _ in self.system.nodes[self.kind]]
        return node.paths[self.kind][self.number]

    def spread(self) -> None:
        """Finds paths level by level, in the order in which devices are reached."""
        start = self.path_of(self.base)
        start.links, start.gbs, start.type = (), LOCAL_GBS, self.types.LOC
        level = [self.base]
        while level:
            following: list[SystemDevice] = []
            for node in level:
                for link in node.links:
                    if self.lead(node, link) and link.to not in following:
                        following.append(link.to)
            level = following

    def lead(self, node: SystemDevice, link: Link) -> bool:
        """Extends a path over a link to the device at the link's far end, if that is better than the best path known so
        far."""
        path, at_far = self.path_of(node), self.path_of(link.to)
        if not self.passes(node, link, path):
            return False
        gbs, type_ = min(path.gbs, link.gbs), self.type_over(node, link, path)
        if not self.better(at_far, path, gbs, type_):
            return False
        at_far.links = (_back(link.to, node, link, self.routing), *path.links)
        at_far.gbs, at_far.type = gbs, type_
        return True

    def passes(self, node: SystemDevice, link: Link, path: Path) -> bool:
        """Whether paths may lead through a device. A path may pass a GPU only over NVLink and only on the way to
        another GPU, and it may pass only one GPU."""
        if node is self.own or node is self.base or node.kind is not self.relay:
            return True
        if link.kind == "LOC" and link.to.kind is DeviceKind.GPU:
            return True
        return self.nvb and link.kind == "NVL" and link.to.kind is self.relay and path.hops <= self.through

    def better(self, at_far: Path, path: Path, gbs: float, type_: int) -> bool:
        """Whether ``path``, extended by one link, is better than ``at_far``, the path known so far to the same device.

        ``gbs`` and ``type_`` are the bandwidth and the type of the extended path.
        """
        if self.routing.prefer == "wider":
            return (at_far.gbs == 0 or at_far.hops > path.hops) and at_far.gbs < gbs
        if type_ != at_far.type:
            return type_ < at_far.type
        return at_far.gbs < gbs or (at_far.gbs == gbs and at_far.hops > path.hops + 1)

    def type_over(self, node: SystemDevice, link: Link, path: Path) -> int:
        """The type of a path after a link is added to it."""
        types, far = self.types, link.to
        new = types.LOC if link.kind == "NET" else types.names.index(link.kind)
        if node.kind is DeviceKind.PCI and far.kind is DeviceKind.PCI:
            new = types.PXB
        if link.kind == "PIX" and DeviceKind.CPU in (node.kind, far.kind):
            new = types.PHB
        if node.kind is self.relay and path.type == types.NVL and new == types.NVL and path.hops >= self.through:
            new = types.NVB
        return max(path.type, new)


def _back(far: SystemDevice, node: SystemDevice, link: Link, routing: Routing) -> Link:
    found = (back for back in far.links if back.to is node and (routing.reverse_of_any_type or back.kind == link.kind))
    back = next(found, None)
    if back is None:
        raise BadTopology(f"{node.kind.name} {node.id:x} reaches {far.kind.name} {far.id:x}, which has no link back")
    return back


def near_cpu(system: System, gpu: SystemDevice, routing: Routing) -> int:
    """The number of the CPU nearest to a GPU. BadTopology if the GPU reaches none."""
    paths = gpu.paths[DeviceKind.CPU]
    if routing.cpu_of_gpu == "widest":
        widest = max(path.gbs for path in paths)
        type_ = min(path.type for path in paths if path.gbs == widest)
        wide = [number for number, path in enumerate(paths) if path.gbs == widest and path.type == type_]
        return min(wide, key=lambda number: paths[number].hops)
    least, found = 0, -1
    for number, path in enumerate(paths):
        unreached = path.hops == 0 and routing.cpu_of_gpu == "fewest_hops"
        if not unreached and (least == 0 or path.hops < least):
            least, found = path.hops, number
    if found < 0:
        raise BadTopology(f"GPU {gpu.id:x} reaches no CPU")
    return found


def divert(system: System, source: SystemDevice, over: SystemDevice, target: SystemDevice, routing: Routing) -> None:
    """Replaces the path from ``source`` to ``target`` by the path to ``over`` and the path from there to ``target``."""
    types = system.types
    first = source.paths[over.kind][system.number(over)]
    then = over.paths[target.kind][system.number(target)]
    path = source.paths[target.kind][system.number(target)]
    path.links = (*first.links, *then.links)
    path.gbs = min(first.gbs, then.gbs)
    path.type = types.PXN if over.kind is DeviceKind.GPU else joined(system, first.type, then.type, routing)


def joined(system: System, first: int, then: int, routing: Routing) -> int:
    """The type of two paths that follow each other."""
    types = system.types
    if routing.joined_p2c and {first, then} == {types.PHB, types.C2C}:
        return types.P2C
    return max(first, then)


# Old releases allow numbers instead of the names of levels.
OLD_LEVELS = ("LOC", "PIX", "PXB", "PHB", "SYS", "SYS")
IGNORE_AND_DO_NOT_ASK = 2  # value of NCCL_IGNORE_DISABLED_P2P
FEW_GPUS_ON_AMD = 2


def level(types: PathTypes, variables: Environment, disable: str | None, name: str) -> int | None:
    """The path type that a variable sets as a limit; None if it sets none (ncclGetLevel)."""
    disabled = variables.text(disable) if disable else None
    if disabled is not None and parse_long(disabled) == 1:
        return types.LOC
    text = variables.text(name)
    if text is None:
        return None
    if text in types.names[: types.SYS + 1]:
        return types.names.index(text)
    if text[:1].isdigit():
        return types.names.index(OLD_LEVELS[min(parse_long(text), len(OLD_LEVELS) - 1)])
    return None


class Peers:
    """Answers questions about pairs of GPUs while the paths are made."""

    def __init__(self, system: System, routing: Routing, variables: Environment) -> None:
        self.system = system
        self.routing = routing
        self.ignore_disabled = variables.c_int("NCCL_IGNORE_DISABLED_P2P", 0)
        self.no_shared_memory = variables.c_int("NCCL_SHM_DISABLE", 0) == 1
        self.network_is_no_choice = variables.c_int("NCCL_NET_DISABLE_INTRA", 0) == 1
        set_level = level(system.types, variables, "NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL")
        self.level = self._default_level() if set_level is None else set_level

    def _default_level(self) -> int:
        types, cpu = self.system.types, self.system.cpus[0]
        if self.routing.p2p_level == "PXB_but_two_on_amd":
            few = len(self.system.nodes[DeviceKind.DEV] or self.system.gpus) <= FEW_GPUS_ON_AMD
            return types.SYS if (cpu.arch == "x86_64" and cpu.vendor == "AuthenticAMD") and few else types.PXB
        x86 = cpu.arch == "x86_64" and cpu.vendor in ("GenuineIntel", "CentaurHauls", "  Shanghai  ")
        return types.PXB if x86 or cpu.arch == "arm64" else types.SYS

    def divert_all(self) -> None:
        """Changes the paths between GPUs that do not use peer-to-peer.

        The paths lead through a CPU. If only the network joins two GPUs, the path between them gets the type NET.
        """
        system = self.system
        for target in system.gpus:
            for source in system.gpus:
                if not self.peer_to_peer(source, target):
                    cpu = system.cpus[near_cpu(system, target, self.routing)]
                    divert(system, source, cpu, target, self.routing)
            for source in system.gpus:
                if source is not target and not self.connected(source, target):
                    self._path(source, target).type = system.types.NET

    def _path(self, source: GpuDevice, target: GpuDevice) -> Path:
        return source.paths[DeviceKind.GPU][self.system.number(target)]

    def relay(self, source: GpuDevice, target: GpuDevice) -> GpuDevice | None:
        """The GPU that a path goes through, if any. NcclFails if that GPU was removed from the system, because NCCL
        then refuses the system."""
        links = self._path(source, target).links
        kind, hops = (DeviceKind.DEV, 4) if self.system.nodes[DeviceKind.DEV] else (DeviceKind.GPU, 2)
        between = links[hops // 2 - 1].to if len(links) == hops else None
        if not isinstance(between, GpuDevice) or between.kind is not kind:
            return None
        if kind is DeviceKind.DEV and all(gpu.links[0].to is not between for gpu in self.system.gpus):
            raise NcclFails(
                f"NCCL refuses GPUs {source.dev} and {target.dev}: NVLinks join them over GPU {between.dev}, which "
                "only the network joins to the first GPU"
            )
        return between

    def peer_to_peer(self, source: GpuDevice, target: GpuDevice) -> bool:
        """Whether NCCL uses peer-to-peer between two GPUs of the node. BadInput if NVLinks join the GPUs but NVML
        denies peer-to-peer."""
        path = self._path(source, target)
        # NCCL looks for the GPU in between first, and may refuse it whatever the level is
        relay = self.relay(source, target)
        if path.type > self.level:
            return False
        if source is target or self.ignore_disabled == IGNORE_AND_DO_NOT_ASK or source.host != target.host:
            return True
        groups = {gpu.peer_group for gpu in (source, relay, target) if gpu is not None}
        if len(groups) == 1:
            return True
        if not self.ignore_disabled and path.type <= self.system.types.NVB:
            raise BadInput(
                f"NVML denies peer-to-peer between GPUs {source.dev} and {target.dev}, although NVLinks join them"
            )
        return not (self.ignore_disabled or self.routing.disabled_p2p_is_diverted)

    def cuda_allows(self, source: GpuDevice, target: GpuDevice) -> bool:
        """Whether CUDA allows peer-to-peer between two GPUs, at any distance."""
        asked = self.ignore_disabled != IGNORE_AND_DO_NOT_ASK and source.host == target.host
        return not asked or source.peer_group == target.peer_group

    def connected(self, source: GpuDevice, target: GpuDevice) -> bool:
        """Whether NCCL connects two GPUs by peer-to-peer or shared memory, and not over the network."""
        if source.host != target.host and self.routing.hosts_joined == "always":
            return True
        if self.connected_by_memory(source, target):
            return True
        network = self.network_is_better(source, target)
        return not self.no_shared_memory and not network and source.host == target.host

    def connected_by_memory(self, source: GpuDevice, target: GpuDevice) -> bool:
        """Whether peer-to-peer joins two GPUs, perhaps over a GPU in between, and the network is not better."""
        if not self.peer_to_peer(source, target):
            return False
        if self.relay(source, target) is not None:
            return True
        reached = source.host != target.host or source.peer_group == target.peer_group
        return reached and not self.network_is_better(source, target)

    def network_is_better(self, source: GpuDevice, target: GpuDevice) -> bool:
        """Whether both GPUs reach an adapter nearby with more bandwidth than each other."""
        if self.network_is_no_choice:
            return False
        gbs, near = self._path(source, target).gbs, self.system.types.PXB

        def fastest(gpu: GpuDevice) -> float:
            return max((path.gbs for path in gpu.paths.get(DeviceKind.NET, ()) if path.type <= near), default=0.0)

        return fastest(source) > gbs and fastest(target) > gbs
