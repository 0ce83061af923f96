"""The graphs of a node, in the order in which NCCL searches them, as records.

Source: initTransportsRank, src/init.cc; ncclNvlsInit, src/transport/nvls.cc, v2.28.9-1.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from tuner import release
from tuner.base.errors import BadInput
from tuner.base.names import Pattern
from tuner.graphs.adapters import relay
from tuner.graphs.graph_file import of_request
from tuner.graphs.loop import HOPPER, SearchLoop
from tuner.graphs.prepare import prepared
from tuner.graphs.request import SearchRequest, SearchResult
from tuner.graphs.system import HOST_BIT, DeviceKind, GpuDevice, System
from tuner.graphs.trial import Trial
from tuner.machine.graphs import ENTER_THE_NETWORK, Graph, OrderedGraph
from tuner.machine.topology import Target
from tuner.machine.topology import read as read_topology
from tuner.release import Release
from tuner.release.environment import Environment
from tuner.release.search import Routing

ASK_THE_DRIVER = 2  # default of NCCL_NVLS_ENABLE


def search(request: SearchRequest, nccl: str) -> SearchResult:
    """What NCCL ``nccl`` finds on the request's node.

    Errors: BadTopology for a topology that is none, BadInput for what NCCL refuses.
    """
    loaded = release.load(nccl)
    variables = Environment(request.environment, non_numeric_is_default=loaded.environment.non_numeric_is_default)
    system = prepared(request, loaded, variables)
    loop = SearchLoop(system, loaded, variables, of_request(request, loaded.search.dump))
    if system.several_nodes:
        loop.channels.nets.local.check_relays(variables)
    graphs = {
        name: OrderedGraph(_record(system, name, trial), _orders(system, name, trial, bool(request.gpu_of_rank)))
        for name, trial in in_order(loop, request, loaded, variables)
    }
    return SearchResult(
        graphs, _net_gbs(loop, request, loaded.search.routing), system.part_of_rank, tuple(_relays(system))
    )


def _relays(system: System) -> Iterator[tuple[int, int, int]]:
    """Every rank that reaches a network device over another rank's GPU (PXN), the device and that rank."""
    if system.several_nodes:
        ranks = _own_ranks(system)
        for gpu in system.gpus:
            for net in system.nets:
                path = gpu.paths[DeviceKind.NET][system.number(net)]
                if path.type == system.types.PXN:
                    yield ranks.index(gpu.rank), net.id, ranks.index(relay(system, path).rank)


def _own_ranks(system: System) -> Sequence[int]:
    """The ranks of the node; of its part, where NCCL takes it for several nodes."""
    return sorted(gpu.rank for gpu in system.gpus)


def _net_gbs(loop: SearchLoop, request: SearchRequest, routing: Routing) -> float:
    """What the release's tuning knows of the adapters (ncclTopoGetMinNetBw, src/graph/topo.cc)."""
    system, nets = loop.system, loop.channels.nets
    if routing.net_gbs == "slowest_adapter":
        alone = request.gpus == 1 and not system.several_nodes
        return 0.0 if alone else min(loop.channels.net_left, default=float(np.finfo(np.float32).max))
    if routing.net_gbs == "slowest_path_to_own":
        return min(gpu.paths[DeviceKind.NET][net].gbs for gpu in system.gpus for net in nets.local.of_gpu(gpu))
    return 0.0


def in_order(
    loop: SearchLoop, request: SearchRequest, nccl: Release, variables: Environment
) -> Iterator[tuple[str, Trial]]:
    """Each graph by name, once it is searched."""
    system, most, form = loop.system, nccl.limits.max_channels, nccl.search.dump
    ids = dict(zip(form.graphs, form.ids, strict=True))
    ring = Trial(Pattern.Ring, False, 1, most // 2)
    loop.compute(ring, ids["ring"])
    yield "ring", ring
    tree = Trial(Pattern.BalancedTree, False, ring.channels, ring.channels)
    loop.compute(tree, ids["tree"])
    yield "tree", tree
    if system.in_network:
        chain = Trial(Pattern.Tree, True, ring.channels, ring.channels)
        loop.compute(chain, ids["collnet_chain"])
        yield "collnet_chain", chain
        direct = chain
        if nccl.search.loop.direct_graph:
            direct = Trial(Pattern.CollNetDirect, True, 1, most)
            loop.compute(direct, ids["collnet_direct"])
        yield "collnet_direct", direct
    if _multicast(system, request, nccl, variables):
        nvls = Trial(Pattern.NVLS, False, 1, most)
        loop.compute(nvls, ids["nvls"])
        yield "nvls", nvls


def _multicast(system: System, request: SearchRequest, nccl: Release, variables: Environment) -> bool:
    """Whether NCCL searches for NVLS: as its variable says, or where the GPUs and an NVSwitch do multicast."""
    wanted = variables.number("NCCL_NVLS_ENABLE", ASK_THE_DRIVER)
    if request.nvls_off and wanted == 1:
        raise BadInput("NCCL_NVLS_ENABLE=1: NCCL then refuses several ranks on one GPU; valid: 2, 0, or not set")
    loop = nccl.search.loop
    gpus = len(system.part_of_rank) if request.in_domain and loop.nvls_counts_domain else len(system.gpus)
    if not wanted or request.nvls_off or gpus <= loop.gpus_without_nvls:
        return False
    topology = read_topology(request.topology)
    switched = any(gpu.count_nvlinks(kind) for gpu in topology.gpus for kind in (Target.SWITCH, Target.CPU))
    return wanted != ASK_THE_DRIVER or (switched and min(topology.compute_capabilities(request.gpus)) >= HOPPER)


def _record(system: System, name: str, trial: Trial) -> Graph:
    names = system.types.names
    ranks = _own_ranks(system)
    heads = tuple(sorted({ranks.index(system.gpus[order[0]].rank) for order in trial.intra[: trial.channels]}))
    enters = name in ENTER_THE_NETWORK and 0 < len(heads) < len(system.gpus)
    return Graph(
        pattern=trial.pattern,
        channels=trial.channels,
        same_channels=trial.same_channels,
        bw_intra_gbs=trial.bw_intra,
        bw_inter_gbs=trial.bw_inter,
        latency_inter_us=trial.latency_us,
        type_intra=names[trial.type_intra],
        type_inter=names[trial.type_inter],
        cross_nic=trial.cross_nic,
        heads=heads if enters else None,
    )


def _number(gpu: GpuDevice) -> int:
    """NCCL's number of a GPU and its host in one, as that of an adapter."""
    return (gpu.host << HOST_BIT) + gpu.dev


def _orders(system: System, name: str, trial: Trial, shared: bool) -> tuple[tuple[str, ...], ...]:
    """Each channel as NCCL dumps it (ncclTopoGetXmlFromChannel, src/graph/search.cc)."""
    orders = []
    for order, (first, last) in zip(trial.intra[: trial.channels], trial.inter[: trial.channels], strict=True):
        ranks = [system.gpus[gpu] for gpu in (order[:1] if name == "nvls" else order)]
        gpus = [f"gpu:{_number(rank)}/{rank.rank}" if shared else f"gpu:{_number(rank)}" for rank in ranks]
        orders.append((f"net:{first}", *gpus, f"net:{last}") if system.several_nodes else tuple(gpus))
    return tuple(orders)
