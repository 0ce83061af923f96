"""A system graph ready to be searched: paths, what is cut off, and the bandwidths that bound a channel.

Source: initTransportsRank, src/init.cc; ncclTopoComputePaths, ncclTopoTrimSystem, src/graph/paths.cc;
ncclTopoSearchInit, src/graph/search.cc, v2.28.9-1.
"""

from tuner.base.errors import BadInput, BadTopology
from tuner.base.numerics import f32
from tuner.graphs import xml
from tuner.graphs.adapters import Adapters, LocalNets
from tuner.graphs.build import LOCAL_GBS, build
from tuner.graphs.paths import Peers, set_paths
from tuner.graphs.request import SearchRequest
from tuner.graphs.system import DeviceKind, PathTypes, System
from tuner.machine.topology import Topology
from tuner.machine.topology import read as read_topology
from tuner.release import Release
from tuner.release.environment import Environment


def prepared(request: SearchRequest, nccl: Release, variables: Environment) -> System:
    """The system that the request's rank searches. Errors: BadTopology, BadInput for what NCCL cannot work with."""
    system = built(request, nccl)
    complete(system, request, nccl, variables)
    return system


def built(request: SearchRequest, nccl: Release) -> System:
    """Its devices and links, without paths. BadTopology where several nodes have no adapters."""
    search = nccl.search
    topologies = {host.topology: read_topology(host.topology) for host in request.each_host}
    nets = [bool(topology.nets) for topology in topologies.values()]
    if request.several_nodes and not all(nets):
        raise BadTopology("topology has no <net> element, which a communicator of several nodes needs")
    root = xml.of_hosts(request, topologies, search)
    across = request.peer_to_peer_across_sockets
    groups = {text: _peer_groups(topology, across) for text, topology in topologies.items()}
    of_hosts = [groups[host.topology] for host in request.each_host]
    system = build(root, search.devices, PathTypes.of(nccl.paths.types), of_hosts)
    system.in_network = request.in_network and all(nets)  # a network without devices is none to NCCL
    return system


def complete(system: System, request: SearchRequest, nccl: Release, variables: Environment) -> None:
    """Finds the paths, cuts off what the rank does not use, and sets what bounds a channel."""
    compute_paths(system, nccl, variables)
    trim(system, request, nccl)
    compute_paths(system, nccl, variables)
    bound(system, unbounded_if_one=nccl.search.loop.one_gpu_unbounded)


def _peer_groups(topology: Topology, across: bool) -> dict[str, int]:
    """GPUs by bus id that NVML and CUDA allow peer-to-peer between."""
    sockets = {cpu.numaid: number for number, cpu in enumerate(topology.cpus)}
    return {gpu.busid: 0 if across else sockets[gpu.numaid] for gpu in topology.gpus}


def compute_paths(system: System, nccl: Release, variables: Environment) -> None:
    """Finds all paths anew."""
    routing = nccl.search.routing
    set_paths(system, routing, nvb=variables.number("NCCL_NVB_DISABLE", 0) == 0)
    Peers(system, routing, variables).divert_all()
    local = LocalNets(system, routing, nccl.limits.max_channels, variables)
    Adapters(system, routing, local, variables).change_all()


def trim(system: System, request: SearchRequest, nccl: Release) -> None:
    """Cuts off the GPUs that the request's rank only reaches over the network, and the network if nobody else is there.

    BadTopology where the rank's own GPU is reached by none, BadInput where NCCL crashes.
    """
    domains = list(range(len(system.gpus)))
    for gpu, node in enumerate(system.gpus):
        for peer in range(gpu):
            if node.paths[DeviceKind.GPU][peer].type < system.types.NET:
                domains[gpu] = min(domains[gpu], domains[peer])
    of_rank = {gpu.rank: domain for domain, gpu in zip(domains, system.gpus, strict=True)}
    if request.rank not in of_rank:
        raise BadTopology("the first GPU is below a device that is no PCI switch")
    in_order = list(dict.fromkeys(of_rank[rank] for rank in sorted(of_rank)))
    if system.hosts > 1 and len(in_order) > 1 and not nccl.search.routing.domains_fall_apart:
        raise BadInput(
            f"NCCL {nccl.name} crashes: it takes a NVLink domain of {system.hosts} hosts for several nodes, and then "
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
    """Sets the most bandwidth that a channel, and that all channels together may have."""
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
