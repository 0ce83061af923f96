"""GPUs that reach each other directly: peer-to-peer, shared memory, or neither because the network is faster.

Source: ncclTopoCheckP2p, ncclTopoCheckNet and the loop over GPUs in ncclTopoComputePaths, src/graph/paths.cc;
p2pCanConnect, src/transport/p2p.cc; shmCanConnect, src/transport/shm.cc, v2.28.9-1.
"""

from tuner.base.errors import BadInput
from tuner.base.numerics import parse_long
from tuner.graphs.paths import divert, near_cpu
from tuner.graphs.system import Cpu, Gpu, Kind, Path, PathTypes, System
from tuner.release.environment import Environment
from tuner.release.search import Routing

# Numbers in place of names: levels of releases long ago.
OLD_LEVELS = ("LOC", "PIX", "PXB", "PHB", "SYS", "SYS")
IGNORE_AND_DO_NOT_ASK = 2  # of NCCL_IGNORE_DISABLED_P2P
FEW_GPUS_ON_AMD = 2


def level(types: PathTypes, variables: Environment, disable: str | None, name: str) -> int | None:
    """The path type that a variable sets as a limit; None where it sets none (ncclGetLevel)."""
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
    """What is asked of each pair of GPUs while the paths are made."""

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
            few = len(self.system.nodes[Kind.DEV] or self.system.gpus) <= FEW_GPUS_ON_AMD
            return types.SYS if _is_amd(cpu) and few else types.PXB
        x86 = cpu.arch == "x86_64" and cpu.vendor in ("GenuineIntel", "CentaurHauls", "  Shanghai  ")
        return types.PXB if x86 or cpu.arch == "arm64" else types.SYS

    def divert_all(self) -> None:
        """Leads pairs without peer-to-peer through a CPU, and marks pairs that only the network joins."""
        system = self.system
        for target in system.gpus:
            for source in system.gpus:
                if not self.peer_to_peer(source, target):
                    cpu = system.cpus[near_cpu(system, target, self.routing)]
                    divert(system, source, cpu, target, self.routing)
            for source in system.gpus:
                if source is not target and not self.connected(source, target):
                    self._path(source, target).type = system.types.NET

    def _path(self, source: Gpu, target: Gpu) -> Path:
        return source.paths[Kind.GPU][self.system.number(target)]

    def relay(self, source: Gpu, target: Gpu) -> Gpu | None:
        """The GPU in between, where the path goes over one. BadInput where that was cut off, which NCCL refuses."""
        links = self._path(source, target).links
        kind, hops = (Kind.DEV, 4) if self.system.nodes[Kind.DEV] else (Kind.GPU, 2)
        between = links[hops // 2 - 1].to if len(links) == hops else None
        if not isinstance(between, Gpu) or between.kind is not kind:
            return None
        if kind is Kind.DEV and all(gpu.links[0].to is not between for gpu in self.system.gpus):
            raise BadInput(
                f"NCCL refuses GPUs {source.dev} and {target.dev}: NVLinks join them over GPU {between.dev}, which "
                "only the network joins to the first GPU"
            )
        return between

    def peer_to_peer(self, source: Gpu, target: Gpu) -> bool:
        """Whether NCCL uses peer-to-peer between two GPUs of the node. BadInput where NVML denies it over NVLinks."""
        path = self._path(source, target)
        relay = self.relay(source, target)  # NCCL looks for it first, and may refuse it, whatever the level
        if path.type > self.level:
            return False
        if source is target or self.ignore_disabled == IGNORE_AND_DO_NOT_ASK or source.host != target.host:
            return True
        groups = {gpu.peer_group for gpu in (source, relay, target) if gpu is not None}
        if len(groups) == 1:
            return True
        if not self.ignore_disabled and path.type <= self.system.types.NVB:
            raise BadInput(
                f"NVML denies peer-to-peer between GPUs {source.dev} and {target.dev}, and NVLinks join them"
            )
        return not (self.ignore_disabled or self.routing.disabled_p2p_is_diverted)

    def cuda_allows(self, source: Gpu, target: Gpu) -> bool:
        """Whether CUDA allows peer-to-peer between two GPUs, however far apart they are and whatever the level."""
        asked = self.ignore_disabled != IGNORE_AND_DO_NOT_ASK and source.host == target.host
        return not asked or source.peer_group == target.peer_group

    def connected(self, source: Gpu, target: Gpu) -> bool:
        """Whether peer-to-peer or shared memory joins two GPUs, and the network is no better."""
        if source.host != target.host and self.routing.hosts_joined == "always":
            return True
        if self.connected_by_memory(source, target):
            return True
        network = self.network_is_better(source, target)
        return not self.no_shared_memory and not network and source.host == target.host

    def connected_by_memory(self, source: Gpu, target: Gpu) -> bool:
        """Whether peer-to-peer joins two GPUs, perhaps over one in between, and the network is no better."""
        if not self.peer_to_peer(source, target):
            return False
        if self.relay(source, target) is not None:
            return True
        reached = source.host != target.host or source.peer_group == target.peer_group
        return reached and not self.network_is_better(source, target)

    def network_is_better(self, source: Gpu, target: Gpu) -> bool:
        """Whether both GPUs reach an adapter nearby faster than each other."""
        if self.network_is_no_choice:
            return False
        gbs, near = self._path(source, target).gbs, self.system.types.PXB

        def fastest(gpu: Gpu) -> float:
            return max((path.gbs for path in gpu.paths.get(Kind.NET, ()) if path.type <= near), default=0.0)

        return fastest(source) > gbs and fastest(target) > gbs


def _is_amd(cpu: Cpu) -> bool:
    return cpu.arch == "x86_64" and cpu.vendor == "AuthenticAMD"
