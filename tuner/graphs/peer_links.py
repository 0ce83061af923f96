"""The links that sends and receives go by, from the paths of a node.

Source: ncclTopoGetNchannels, ncclTopoPathAllNVLink, src/graph/paths.cc; getLocalNetCountByBw, src/graph/topo.cc,
v2.28.9-1.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from itertools import combinations, permutations

from tuner import release
from tuner.base.numerics import f32
from tuner.graphs.adapters import Adapters, LocalNets, nearest
from tuner.graphs.build import nvlink_gbs
from tuner.graphs.cached import request_of
from tuner.graphs.paths import Peers, near_cpu
from tuner.graphs.prepare import prepared
from tuner.graphs.request import SearchRequest
from tuner.graphs.system import DeviceKind, GpuDevice, System
from tuner.machine.peer_links import AdapterAccess, PeerLinks
from tuner.release import Release
from tuner.release.environment import Environment

CHANNELS_WITHOUT_NVLINK = 2


def peer_links(request: SearchRequest, nccl: str) -> PeerLinks:
    """Links of the request's node. Errors: BadTopology, BadInput for what NCCL cannot work with."""
    return _peer_links(json.dumps(asdict(request), sort_keys=True), nccl)


@cache
def _peer_links(text: str, nccl: str) -> PeerLinks:
    request, loaded = request_of(text), release.load(nccl)
    variables = Environment(request.environment, non_numeric_is_default=loaded.environment.non_numeric_is_default)
    system = prepared(request, loaded, variables)
    gpus = sorted(system.gpus, key=lambda gpu: gpu.rank)
    types = [gpu.paths[DeviceKind.GPU][system.number(peer)].type for gpu, peer in permutations(gpus, 2)]
    pairs = _Pairs(system, loaded)
    farthest = loaded.exchange.all_nvlink == "farthest"
    decisive = max(types, default=system.types.LOC) if farthest else min(types, default=system.types.DIS)
    local = LocalNets(system, loaded.search.routing, loaded.limits.max_channels, variables)
    peers = Peers(system, loaded.search.routing, variables)
    return PeerLinks(
        all_nvlink=decisive < system.types.PIX,
        local_channels=min((pairs.between(*each) for each in permutations(gpus, 2)), default=None),
        adapters=tuple(_adapters(system, gpu, local, loaded) for gpu in gpus) if system.several_nodes else (),
        all_peer_to_peer=all(
            peers.peer_to_peer(*each) and peers.relay(*each) is None for each in permutations(gpus, 2)
        ),
        cuda_joins_all=all(peers.cuda_allows(*each) for each in combinations(gpus, 2)),
        joined_by_network=frozenset(
            (own, other)
            for (own, gpu), (other, peer) in permutations(enumerate(gpus), 2)
            if not peers.connected(gpu, peer)
        ),
        all_connected_by_memory=all(peers.connected_by_memory(*each) for each in combinations(gpus, 2)),
        access=_access(system, gpus, Adapters(system, loaded.search.routing, local, variables)),
    )


def _access(system: System, gpus: Sequence[GpuDevice], adapters: Adapters) -> tuple[tuple[AdapterAccess, ...], ...]:
    if not system.several_nodes:
        return ()
    return tuple(
        tuple(
            AdapterAccess(
                net.id,
                system.types.names[path.type],
                adapters.gpu_direct(gpu, net, read=True),
                adapters.gpu_direct(gpu, net, read=False),
            )
            for net, path in zip(system.nets, gpu.paths[DeviceKind.NET], strict=True)
        )
        for gpu in gpus
    )


@dataclass(frozen=True, slots=True)
class _Pairs:
    """The channels between GPUs of a node."""

    system: System
    nccl: Release

    def between(self, gpu: GpuDevice, peer: GpuDevice) -> int:
        path, types = peer.paths[DeviceKind.GPU][self.system.number(gpu)], self.system.types
        if path.type != types.NVL and not (self.nccl.exchange.nvb_counts_links and path.type == types.NVB):
            return CHANNELS_WITHOUT_NVLINK
        return 2 * max(1, int(f32(path.gbs) / f32(nvlink_gbs(gpu, self.nccl.search.devices))))


def _adapters(system: System, gpu: GpuDevice, local: LocalNets, nccl: Release) -> tuple[int, float]:
    """Number of network devices that have the bandwidth between the GPU and its CPU, in NCCL's order, and what they
    have.
    """
    paths = gpu.paths[DeviceKind.NET]
    if nccl.exchange.net_channels == "by_bandwidth":
        nets = local.of_gpu(gpu)
        gpu_gbs = f32(gpu.paths[DeviceKind.CPU][near_cpu(system, gpu, nccl.search.routing)].gbs)
        at_least = 1
    else:
        nets, _ = nearest(system, gpu, DeviceKind.NET)
        gpu_gbs = f32(next((link.gbs for link in reversed(gpu.links) if link.to.kind is DeviceKind.CPU), 0.0))
        at_least = 0
    count, gbs = 0, f32(0)
    while count < len(nets) and (count < at_least or gbs < gpu_gbs):
        gbs = gbs + f32(paths[nets[count]].gbs)
        count += 1
    return count, float(gbs)
