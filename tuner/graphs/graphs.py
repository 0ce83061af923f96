"""Finds the graphs of a node, in the order in which NCCL searches them, and the links for sends and receives.

Before the search the system graph is prepared: paths are found, unused devices are removed, and the bandwidths that
limit a channel are set.

Source: initTransportsRank, src/init.cc; ncclNvlsInit, src/transport/nvls.cc; ncclTopoComputePaths, ncclTopoTrimSystem,
ncclTopoGetNchannels, ncclTopoPathAllNVLink, src/graph/paths.cc; getLocalNetCountByBw, src/graph/topo.cc;
ncclTopoSearchInit, src/graph/search.cc, v2.28.9-1.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import cache
from itertools import combinations, permutations

import numpy as np

from tuner import release
from tuner.base.errors import BadInput, BadTopology, NcclFails
from tuner.base.names import Pattern
from tuner.base.numerics import f32
from tuner.graphs import xml
from tuner.graphs.adapters import Adapters, LocalNets, nearest, relay
from tuner.graphs.build import LOCAL_GBS, build, nvlink_gbs
from tuner.graphs.graph_file import of_request
from tuner.graphs.loop import HOPPER, SearchLoop
from tuner.graphs.paths import Peers, near_cpu, set_paths
from tuner.graphs.request import SearchRequest, SearchResult, request_of
from tuner.graphs.system import HOST_BIT, DeviceKind, GpuDevice, PathTypes, System
from tuner.graphs.trial import Trial
from tuner.machine.adapters import AdapterAccess, PeerLinks
from tuner.machine.gpus import PeerToPeer
from tuner.machine.graphs import ENTER_THE_NETWORK, Graph, OrderedGraph
from tuner.machine.topology import Target, Topology
from tuner.machine.topology import read as read_topology
from tuner.release import Release
from tuner.release.environment import Environment
from tuner.release.search import Routing


def prepared(request: SearchRequest, nccl: Release, variables: Environment) -> System:
    """The system graph in which the request's rank searches.

    It has paths, and lacks the devices that the rank does not use.

    BadTopology if the topology is invalid, BadInput if NCCL refuses it.
    """
    system = built(request, nccl)
    complete(system, request, nccl, variables)
    return system


def built(request: SearchRequest, nccl: Release) -> System:
    """The devices and links of the request's node, without paths. BadTopology if there are several nodes but no
    adapters."""
    search = nccl.search
    topologies = {host.topology: read_topology(host.topology) for host in request.each_host}
    nets = [bool(topology.nets) for topology in topologies.values()]
    if request.several_nodes and not all(nets):
        raise BadTopology("the topology has no <net> element, which a communicator of several nodes needs")
    root = xml.of_hosts(request, topologies, search)
    groups = {text: _peer_groups(topology, request.peer_to_peer) for text, topology in topologies.items()}
    of_hosts = [groups[host.topology] for host in request.each_host]
    system = build(root, search.devices, PathTypes.of(nccl.paths.types), of_hosts)
    system.in_network = request.in_network and all(nets)  # NCCL treats a network without devices as none
    return system


def complete(system: System, request: SearchRequest, nccl: Release, variables: Environment) -> None:
    """Finds the paths, removes the devices that the rank does not use, and sets the bandwidths that limit a channel."""
    compute_paths(system, nccl, variables)
    trim(system, request, nccl)
    compute_paths(system, nccl, variables)
    bound(system, unbounded_if_one=nccl.search.loop.one_gpu_unbounded)


def _peer_groups(topology: Topology, allowed: PeerToPeer) -> dict[str, int]:
    """The groups of GPUs, by bus id, within which NVML and CUDA allow peer-to-peer."""
    sockets = {cpu.numaid: number for number, cpu in enumerate(topology.cpus)}
    return {gpu.busid: allowed.group(sockets[gpu.numaid], n) for n, gpu in enumerate(topology.gpus)}


def compute_paths(system: System, nccl: Release, variables: Environment) -> None:
    """Finds all paths anew."""
    routing = nccl.search.routing
    set_paths(system, routing, nvb=variables.number("NCCL_NVB_DISABLE", 0) == 0)
    Peers(system, routing, variables).divert_all()
    local = LocalNets(system, routing, nccl.limits.max_channels, variables)
    Adapters(system, routing, local, variables).change_all()


def trim(system: System, request: SearchRequest, nccl: Release) -> None:
    """Removes the GPUs that the request's rank reaches only over the network, and the network if all ranks are on this
    node.

    BadTopology if nothing reaches the rank's own GPU, NcclFails if NCCL crashes.
    """
    domains = list(range(len(system.gpus)))
    for gpu, node in enumerate(system.gpus):
        for peer in range(gpu):
            if node.paths[DeviceKind.GPU][peer].type < system.types.NET:
                domains[gpu] = min(domains[gpu], domains[peer])
    of_rank = {gpu.rank: domain for domain, gpu in zip(domains, system.gpus, strict=True)}
    if request.rank not in of_rank:
        raise BadTopology("the first GPU is below a device that is not a PCI switch")
    in_order = list(dict.fromkeys(of_rank[rank] for rank in sorted(of_rank)))
    if system.hosts > 1 and len(in_order) > 1 and not nccl.search.routing.domains_fall_apart:
        raise NcclFails(
            f"NCCL {nccl.name} crashes: it treats an NVLink domain of {system.hosts} hosts as several nodes, and then "
            "looks for paths to devices of other hosts (ncclTopoSearchRecNet, src/graph/search.cc)"
        )
    system.part_of_rank = tuple(in_order.index(of_rank[rank]) for rank in sorted(of_rank))
    for domain, apart in zip(domains, list(system.gpus), strict=True):
        if domain != of_rank[request.rank]:
            system.remove(apart)
    several = request.several_nodes or len(in_order) > 1
    if nccl.search.routing.nets_removed_on_one_node:
        if not several:
            for net in list(system.nets):
                system.remove(net)
        several = bool(system.nets)
    system.several_nodes = several


def bound(system: System, unbounded_if_one: bool) -> None:
    """Sets the largest bandwidth of one channel and of all channels together."""
    if not system.several_nodes and len(system.gpus) == 1:
        system.max_gbs, system.total_gbs = LOCAL_GBS, 0.0 if unbounded_if_one else LOCAL_GBS
        return
    kind = (
        DeviceKind.NET if system.several_nodes else (DeviceKind.DEV if system.nodes[DeviceKind.DEV] else DeviceKind.GPU)
    )
    for node in system.nodes[DeviceKind.DEV] or system.nodes[DeviceKind.GPU]:
        pci, nvlink = 0.0, f32(0)
        for link in node.links:
            if link.kind == "NVL":
                nvlink = nvlink + f32(link.gbs)
            elif link.kind == "PIX":
                pci = link.gbs
        best = max((path.gbs for path in node.paths.get(kind, ()) if path.hops), default=0.0)
        system.max_gbs = max(system.max_gbs, best)
        system.total_gbs = max(system.total_gbs, pci, float(nvlink))


ASK_THE_DRIVER = 2  # the default of NCCL_NVLS_ENABLE


def search(request: SearchRequest, nccl: str) -> SearchResult:
    """The graphs that NCCL release ``nccl`` finds on the request's node.

    BadTopology if the text is not a topology, BadInput if NCCL refuses it.
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
    """Every rank that reaches a network device over another rank's GPU (PXN), with that device and that rank."""
    if system.several_nodes:
        ranks = _own_ranks(system)
        for gpu in system.gpus:
            for net in system.nets:
                path = gpu.paths[DeviceKind.NET][system.number(net)]
                if path.type == system.types.PXN:
                    yield ranks.index(gpu.rank), net.id, ranks.index(relay(system, path).rank)


def _own_ranks(system: System) -> Sequence[int]:
    """The ranks of the node. If NCCL treats it as several nodes, only the ranks of the part that has the request's
    rank."""
    return sorted(gpu.rank for gpu in system.gpus)


def _net_gbs(loop: SearchLoop, request: SearchRequest, routing: Routing) -> float:
    """The bandwidth of adapters, in GB/s, that the release's tuning model uses (ncclTopoGetMinNetBw,
    src/graph/topo.cc)."""
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
    """Searches the graphs in order, and yields each with its name as soon as it is found."""
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
    """Whether NCCL searches for NVLS: its variable asks for it, or the GPUs and an NVSwitch support multicast."""
    wanted = variables.number("NCCL_NVLS_ENABLE", ASK_THE_DRIVER)
    if request.nvls_off and wanted == 1:
        raise BadInput("with NCCL_NVLS_ENABLE=1 NCCL refuses several ranks on one GPU: set 2 or 0, or remove it")
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
    """The number of a GPU combined with that of its host, in the form that NCCL uses for adapters."""
    return (gpu.host << HOST_BIT) + gpu.dev


def _orders(system: System, name: str, trial: Trial, shared: bool) -> tuple[tuple[str, ...], ...]:
    """The devices of each channel, in the order in which NCCL dumps them (ncclTopoGetXmlFromChannel,
    src/graph/search.cc)."""
    orders = []
    for order, (first, last) in zip(trial.intra[: trial.channels], trial.inter[: trial.channels], strict=True):
        ranks = [system.gpus[gpu] for gpu in (order[:1] if name == "nvls" else order)]
        gpus = [f"gpu:{_number(rank)}/{rank.rank}" if shared else f"gpu:{_number(rank)}" for rank in ranks]
        orders.append((f"net:{first}", *gpus, f"net:{last}") if system.several_nodes else tuple(gpus))
    return tuple(orders)


CHANNELS_WITHOUT_NVLINK = 2


def peer_links(request: SearchRequest, nccl: str) -> PeerLinks:
    """The links for sends and receives on the request's node. BadTopology if the topology is invalid, BadInput if NCCL
    refuses it."""
    return _peer_links(json.dumps(asdict(request), sort_keys=True), nccl)


@cache
def _peer_links(text: str, nccl: str) -> PeerLinks:
    request, loaded = request_of(text), release.load(nccl)
    variables = Environment(request.environment, non_numeric_is_default=loaded.environment.non_numeric_is_default)
    system = prepared(request, loaded, variables)
    gpus = sorted(system.gpus, key=lambda gpu: gpu.rank)
    types = [gpu.paths[DeviceKind.GPU][system.number(peer)].type for gpu, peer in permutations(gpus, 2)]
    farthest = loaded.exchange.all_nvlink == "farthest"
    decisive = max(types, default=system.types.LOC) if farthest else min(types, default=system.types.DIS)
    local = LocalNets(system, loaded.search.routing, loaded.limits.max_channels, variables)
    peers = Peers(system, loaded.search.routing, variables)
    return PeerLinks(
        all_nvlink=decisive < system.types.PIX,
        local_channels=min((_channels_between(system, loaded, *each) for each in permutations(gpus, 2)), default=None),
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


def _channels_between(system: System, nccl: Release, gpu: GpuDevice, peer: GpuDevice) -> int:
    """The number of channels for sends and receives between two GPUs of a node."""
    path, types = peer.paths[DeviceKind.GPU][system.number(gpu)], system.types
    if path.type != types.NVL and not (nccl.exchange.nvb_counts_links and path.type == types.NVB):
        return CHANNELS_WITHOUT_NVLINK
    return 2 * max(1, int(f32(path.gbs) / f32(nvlink_gbs(gpu, nccl.search.devices))))


def _adapters(system: System, gpu: GpuDevice, local: LocalNets, nccl: Release) -> tuple[int, float]:
    """The number of network devices, in NCCL's order, that together match the bandwidth between GPU and CPU; and their
    bandwidth in GB/s."""
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
