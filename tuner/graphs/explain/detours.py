"""Why a host counts as several nodes, and why traffic goes over the CPU or another GPU (PXN).

Source: ncclTopoCheckP2p, ncclTopoCheckNet, ncclTopoCheckGdr, ncclTopoComputePaths, src/graph/paths.cc, v2.28.9-1.
"""

from collections.abc import Iterator
from itertools import combinations

from tuner.base.sizes import plural
from tuner.graphs.adapters import Adapters, LocalNets, relay
from tuner.graphs.explain.links import gbs
from tuner.graphs.explain.records import Reason
from tuner.graphs.explain.runs import PATHS, SearchRun, ways
from tuner.graphs.paths import Peers, set_paths
from tuner.graphs.prepare import built
from tuner.graphs.system import AdapterDevice, DeviceKind, GpuDevice, Path


class Detours:
    """What NCCL changed of the paths, seen on the same system without these changes."""

    def __init__(self, found: SearchRun) -> None:
        self.found, variables, routing = found, found.variables, found.nccl.search.routing
        self.system = built(found.request, found.nccl)
        set_paths(self.system, routing, nvb=variables.number("NCCL_NVB_DISABLE", 0) == 0)
        self.peers = Peers(self.system, routing, variables)
        self.plain = {
            (source.rank, target.rank): self._of(source, target).type
            for source in self.system.gpus
            for target in self.system.gpus
        }
        self.to_nets = {
            (gpu.rank, net.id): path.type
            for gpu in self.system.gpus
            for net, path in zip(self.system.nets, gpu.paths.get(DeviceKind.NET, ()), strict=False)
        }
        self.apart = [
            (source, target)
            for source, target in combinations(self.system.gpus, 2)
            if not self.peers.peer_to_peer(source, target)
        ]
        self.peers.divert_all()

    def _of(self, source: GpuDevice, target: GpuDevice) -> Path:
        return source.paths[DeviceKind.GPU][self.system.number(target)]

    def all(self) -> Iterator[Reason]:
        """Every reason that holds for this graph."""
        if max(self.found.system.part_of_rank) > 0:
            yield self._parts()
        if self.apart:
            yield self._over_cpus()
        yield from self._to_adapters()

    def _parts(self) -> Reason:
        parts, names = 1 + max(self.found.system.part_of_rank), self.system.types.names
        hosts = self.found.system.hosts
        taken = "host" if hosts == 1 else f"NVLink domain of {hosts} hosts"
        start = f"NCCL takes this {taken} for {parts} nodes: "
        pairs = [
            (source, target)
            for source, target in combinations(self.system.gpus, 2)
            if self._of(source, target).type == self.system.types.NET
        ]
        for source, target in pairs:
            if self.peers.network_is_better(source, target):
                fast = [self._fastest(gpu) for gpu in (source, target)]
                own = self._of(source, target).gbs
                says = (
                    f"GPU {source.dev} and GPU {target.dev} have {gbs(own)} between them over the CPU, and each "
                    f"reaches an adapter nearby with more: {gbs(fast[0][1])} to adapter {fast[0][0].dev} "
                    f"({names[fast[0][2]]}) and {gbs(fast[1][1])} to adapter {fast[1][0].dev} ({names[fast[1][2]]}). "
                    "NCCL then sends between them over the network. NCCL_NET_DISABLE_INTRA=1 forbids that."
                )
                return Reason("parts", start + says)
        source, target = pairs[0]
        if source.host != target.host:
            why = "peer-to-peer is off, and hosts share no memory otherwise"
            of_hosts = f"GPU {source.dev} of host {source.host} and GPU {target.dev} of host {target.host}"
            return Reason("parts", f"{start}between {of_hosts} {why}.")
        why = "peer-to-peer is off, and NCCL_SHM_DISABLE=1 forbids shared memory"
        return Reason("parts", f"{start}between GPU {source.dev} and GPU {target.dev} {why}.")

    def _fastest(self, gpu: GpuDevice) -> tuple[AdapterDevice, float, int]:
        near = self.system.types.PXB
        reached = [
            (path.gbs, -path.type, net)
            for net, path in enumerate(gpu.paths.get(DeviceKind.NET, ()))
            if path.type <= near
        ]
        best, type_, net = max(reached)
        return self.system.nets[net], best, -type_

    def _over_cpus(self) -> Reason:
        """Pairs without peer-to-peer."""
        source, target = self.apart[0]
        names, variables = self.system.types.names, self.found.variables
        pairs = len(self.system.gpus) * (len(self.system.gpus) - 1) // 2
        type_ = self.plain[source.rank, target.rank]
        start = (
            f"{len(self.apart)} of {plural(pairs, 'pair')} of GPUs exchange through memory of a CPU instead of "
            f"peer-to-peer, such as GPUs {source.dev} and {target.dev}: "
        )
        if type_ <= self.peers.level:
            return Reason("cpu", start + "the driver (NVML) says that they cannot reach each other.")
        if variables.text("NCCL_P2P_DISABLE") == "1":
            why = "NCCL_P2P_DISABLE=1 is set"
        elif variables.text("NCCL_P2P_LEVEL") is not None:
            why = f"NCCL_P2P_LEVEL={variables.text('NCCL_P2P_LEVEL')} allows paths up to {names[self.peers.level]}"
        else:
            why = f"by default NCCL_P2P_LEVEL is {names[self.peers.level]} here"
        return Reason("cpu", f"{start}{why}, and their path goes {PATHS[names[type_]]} ({names[type_]}).")

    def _to_adapters(self) -> Iterator[Reason]:
        """Ways between the channels' ends and their adapters; one reason of each kind."""
        types, names = self.found.system.types, self.found.system.types.names
        said = set[str]()
        for gpu, net in self._used():
            path = gpu.paths[DeviceKind.NET][self.found.system.number(net)]
            plain = self.to_nets.get((gpu.rank, net.id), path.type)
            if path.type == types.PXN:
                kind, says = "pxn", self._pxn(gpu, net, path, plain)
            elif types.PHB <= path.type < types.NET and plain < types.PHB:
                kind, says = "gpu_direct", self._not_direct(gpu, net, plain)
            elif types.PHB <= path.type < types.NET:
                kind = "far_adapter"
                says = (
                    f"GPU {gpu.dev} and adapter {net.dev} are joined {PATHS[names[path.type]]} ({names[path.type]}), "
                    f"as no PCIe switch is above both."
                )
            else:
                continue
            if kind not in said:
                said.add(kind)
                yield Reason(kind, says)

    def _used(self) -> Iterator[tuple[GpuDevice, AdapterDevice]]:
        """The GPUs and adapters between which channels go."""
        system = self.found.system
        for channel in range(self.found.trial.channels):
            for (kind, number, to_kind, to), _ in ways(self.found, channel):
                if to_kind is DeviceKind.NET:
                    yield system.gpus[number], system.nets[to]
                elif kind is DeviceKind.NET:
                    yield system.gpus[to], system.nets[number]

    def _pxn(self, gpu: GpuDevice, net: AdapterDevice, path: Path, plain: int) -> str:
        system = self.found.system
        names, over = system.types.names, relay(system, path)
        there = self._number(over, net)
        return (
            f"GPU {gpu.dev} sends to adapter {net.dev} over GPU {over.dev} (PXN): the adapter is that GPU's own, "
            f"whose path to it is nearer or faster ({names[there.type]}, {gbs(there.gbs)}; the direct way would be "
            f"{names[plain]}), and NVLink joins both GPUs. NCCL_PXN_DISABLE=1 forbids that."
        )

    def _number(self, gpu: GpuDevice, net: AdapterDevice) -> Path:
        return gpu.paths[DeviceKind.NET][self.found.system.number(net)]

    def _adapters(self) -> Adapters:
        found = self.found
        routing = found.nccl.search.routing
        local = LocalNets(found.system, routing, found.nccl.limits.max_channels, found.variables)
        return Adapters(found.system, routing, local, found.variables)

    def _not_direct(self, gpu: GpuDevice, net: AdapterDevice, plain: int) -> str:
        names, level = self.found.system.types.names, self._adapters().level
        start = f"GPU {gpu.dev} and adapter {net.dev} exchange through memory of the CPU, without GPUDirect RDMA: "
        off = [what for what, on in (("GPU", gpu.gpu_direct), ("adapter", net.gpu_direct)) if not on]
        if off:
            return f"{start}the {' and the '.join(off)} cannot do it (gdr in the topology)."
        text = self.found.variables.text("NCCL_NET_GDR_LEVEL")
        setting = f"NCCL_NET_GDR_LEVEL={text}" if text is not None else f"its default level, {names[level]},"
        return f"{start}{setting} does not reach their path {PATHS[names[plain]]} ({names[plain]})."
