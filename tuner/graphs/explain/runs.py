"""Makes the searches for one graph and records what they tried, either as NCCL makes them or without something that may
limit the graph.

The module also finds out why NCCL treats a host as several nodes, and why traffic goes over the CPU or another GPU
(PXN): ncclTopoCheckP2p, ncclTopoCheckNet, ncclTopoCheckGdr, ncclTopoComputePaths, src/graph/paths.cc, v2.28.9-1.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import combinations, pairwise

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, one_of
from tuner.base.names import Pattern
from tuner.base.sizes import plural
from tuner.graphs.adapters import Adapters, LocalNets, relay
from tuner.graphs.explain.links import LinkClass, class_of, gbs, phrase
from tuner.graphs.explain.records import Found, Reason
from tuner.graphs.graph_file import of_request
from tuner.graphs.graphs import built, complete, in_order
from tuner.graphs.loop import SearchLoop
from tuner.graphs.paths import Peers, set_paths
from tuner.graphs.request import SearchRequest
from tuner.graphs.routes import Ends, Parts, all_to_all, through_switch
from tuner.graphs.system import AdapterDevice, DeviceKind, GpuDevice, Link, Path, System, SystemDevice
from tuner.graphs.trial import Attempt, Trial
from tuner.release import Release
from tuner.release.environment import Environment

FIRST = "ring"  # the first graph that NCCL searches


@dataclass(frozen=True, slots=True)
class Relaxation:
    """Which rules or links are relaxed in a search, to see whether they limit the graph."""

    links: frozenset[LinkClass] = frozenset()  # these links have twice their bandwidth
    steps_gbs: tuple[float, ...] = ()  # further bandwidths that are tried for a channel
    tries: int = 1  # factor for the number of tries
    any_path: bool = False  # the farthest path types are allowed from the first search on
    channels: int = 1  # factor for the number of channels
    count_of_ring: bool = False  # a tree may have another number of channels than the ring


def both(first: Relaxation, second: Relaxation) -> Relaxation:
    """A relaxation that ignores everything that one of the two ignores."""
    return Relaxation(
        links=first.links | second.links,
        steps_gbs=(*first.steps_gbs, *second.steps_gbs),
        tries=first.tries * second.tries,
        any_path=first.any_path or second.any_path,
        channels=first.channels * second.channels,
        count_of_ring=first.count_of_ring or second.count_of_ring,
    )


@dataclass(frozen=True, eq=False)
class SearchRun:
    """The search for one graph, with its request, its attempts and its result."""

    request: SearchRequest
    nccl: Release
    variables: Environment
    graph: str
    system: System
    loop: SearchLoop
    trial: Trial
    ring: Trial
    attempts: Sequence[Attempt]
    # Bandwidth of each link when nothing uses it, by the link's number
    bare_gbs: Sequence[float]

    @cached_property
    def _owners(self) -> Mapping[int, SystemDevice]:
        return {id(link): node for node in self.system.everything() for link in node.links}

    def owner(self, link: Link) -> SystemDevice:
        """The device at which a link starts."""
        return self._owners[id(link)]


def summary(system: System, trial: Trial) -> Found:
    """The numbers of a graph."""
    names, intra, inter = system.types.names, trial.channels * trial.bw_intra, trial.channels * trial.bw_inter
    types = names[trial.type_intra], names[trial.type_inter]
    return Found(trial.channels, trial.bw_intra, trial.bw_inter, intra, inter, *types, trial.cross_nic)


def run(request: SearchRequest, nccl: Release, graph: str) -> SearchRun:
    """Makes the searches up to the named graph. BadInput if NCCL does not search that graph or refuses the request,
    BadTopology if the topology is invalid."""
    loop, searched = begun(request, nccl, Relaxation())
    bare_gbs, names = list(loop.channels.load.left), list[str]()
    recorder = loop.channels.record() if graph == FIRST else None
    ring: Trial | None = None
    for name, trial in searched:
        ring = ring or trial
        if name == graph:
            loop.channels.stop_recording()
            attempts = recorder.attempts if recorder else ()
            return SearchRun(request, nccl, loop.variables, graph, loop.system, loop, trial, ring, attempts, bare_gbs)
        names.append(name)
        recorder = loop.channels.record()
    raise not_searched(graph, names)


def not_searched(graph: str, names: Sequence[str]) -> BadInput:
    """The error for a graph that NCCL does not search for this request."""
    return BadInput(f"graphs: NCCL searches no {graph} there; {one_of(names)}")


def begun(request: SearchRequest, nccl: Release, freed: Relaxation) -> tuple[SearchLoop, Iterator[tuple[str, Trial]]]:
    """Starts the searches under a relaxation, and yields each graph's name when it is found. Raises what the search
    raises."""
    nccl = _freed(nccl, freed)
    variables = Environment(request.environment, non_numeric_is_default=nccl.environment.non_numeric_is_default)
    system = built(request, nccl)
    _widen(system, freed.links)
    complete(system, request, nccl, variables)
    loop = SearchLoop(system, nccl, variables, of_request(request, nccl.search.dump))
    if freed.any_path:
        loop.bounds.near_intra, loop.bounds.near_inter = loop.bounds.far_intra, loop.bounds.far_inter
    return loop, in_order(loop, request, nccl, variables)


def _freed(nccl: Release, freed: Relaxation) -> Release:
    search, tries, factor = nccl.search, nccl.search.tries, freed.tries
    if factor != 1:
        tries = replace(
            tries, all=tries.all * factor, one=tries.one * factor, same_channels=tries.same_channels * factor
        )
    intra, inter = (
        {row: tuple(sorted({*steps, *freed.steps_gbs}, reverse=True)) for row, steps in each.items() if steps}
        for each in (search.intra_gbs, search.inter_gbs)
    )
    limits = replace(nccl.limits, max_channels=nccl.limits.max_channels * freed.channels)
    return replace(nccl, limits=limits, search=replace(search, tries=tries, intra_gbs=intra, inter_gbs=inter))


def _widen(system: System, classes: frozenset[LinkClass]) -> None:
    for node in system.everything():
        for link in node.links:
            if class_of(node, link) in classes:
                link.gbs *= 2
                if link.kind == "NET" and isinstance(node, AdapterDevice):
                    node.gbs *= 2


PATHS = {
    "LOC": "within the GPU",
    "NVL": "over NVLink",
    "NVB": "over NVLinks of another GPU",
    "C2C": "over C2C",
    "PIX": "over one PCIe switch",
    "PXB": "over several PCIe switches",
    "P2C": "over C2C and the CPU's PCIe",
    "PXN": "over the NVLink of the GPU beside the adapter",
    "PHB": "over the CPU",
    "SYS": "over the link between sockets",
    "NET": "over the network",
    "DIS": "by no path",
}


def sentence(text: str) -> str:
    """The text with its first letter as a capital."""
    return text[:1].upper() + text[1:]


def of_found(found: Found, several: bool) -> str:
    """A graph in words, such as ``2 channels of 12 GB/s (24 GB/s together)``."""
    intra, inter = found.bw_intra_gbs, found.bw_inter_gbs
    count = plural(found.channels, "channel")
    if not several or intra == inter:
        return f"{count} of {gbs(intra)} ({gbs(found.total_intra_gbs)} together)"
    together = f"{found.total_intra_gbs:.4g} and {gbs(found.total_inter_gbs)} together"
    return f"{count} of {intra:.4g} GB/s within a node and {inter:.4g} between nodes ({together})"


def of_link(ends: tuple[SystemDevice, Link], has_gbs: float, alike: int, carried: Mapping[int, float]) -> str:
    """A sentence about a link: its bandwidth, and what the channels take from it."""
    used = f"{gbs(sum(carried.values()))} for {plural(len(carried), 'channel')}" if carried else "nothing"
    kind = "" if alike == 1 else f" (one of {alike} alike)"
    return sentence(f"{phrase(*ends)}{kind} has {gbs(has_gbs)} and carries {used}.")


def of_rule(kind: str, found: SearchRun) -> str:
    """A sentence about a rule of the search that limits the graph."""
    trial, bounds, tries = found.trial, found.loop.bounds, found.nccl.search.tries
    if kind == "steps":
        at = next((n for n, step in enumerate(bounds.steps) if step <= trial.bw_inter), len(bounds.steps) - 1)
        near = bounds.steps[max(0, at - 2) : at + 2]
        shown = ", ".join(f"{step:.4g}" for step in near)
        return f"NCCL tries only bandwidths of a list for a channel, here ... {shown} ...; those in between would fit."
    if kind == "paths":
        names = found.system.types.names
        return (
            f"NCCL stops at the nearest types of paths with which it finds channels, here {names[trial.type_intra]} "
            f"between GPUs and {names[trial.type_inter]} to adapters; farther ones would carry more."
        )
    if kind == "ring":
        return f"A tree gets exactly as many channels as the ring has, {found.ring.channels}; other numbers would fit."
    if kind == "channels":
        return f"NCCL searches at most {trial.max_channels} channels for this graph."
    return (
        f"A search ended as NCCL allows only {tries.one} tries of a GPU ({tries.same_channels} where all channels are "
        f"alike), and {tries.all} for all searches of a graph. With 4 times as many it would go on."
    )


Loads = dict[int, dict[int, float]]  # bandwidth by a link's number and a channel's; 1e9 bytes per second


def loads(found: SearchRun) -> Loads:
    """The bandwidth that each channel takes from each link."""
    taken: Loads = {}
    load, system, trial = found.loop.channels.load, found.system, found.trial
    for channel in range(trial.channels):
        for (kind, number, to_kind, to), load_gbs in ways(found, channel):
            start = system.nodes[kind][number]
            path = start.paths.get(to_kind, [])
            if to >= len(path):
                continue
            route = load.route(start, path[to], load_gbs, 0)
            for step in (*route.steps, *(back for back in route.back if back is not None)):
                of_link = taken.setdefault(step[0], {})
                of_link[channel] = of_link.get(channel, 0.0) + float(step[1].amount)
    return taken


def ways(found: SearchRun, channel: int) -> Iterator[tuple[Ends, float]]:
    """Yields the ends of each path that a channel uses, with the bandwidth in GB/s that the channel sends over it."""
    trial = found.trial
    order, gpus = trial.intra[channel], len(found.system.gpus)
    if found.system.several_nodes:
        yield from _to_network(found, trial, channel)
    if trial.heads_only:
        parts: Parts = through_switch(gpus, order[0]) if trial.pattern is Pattern.NVLS else all_to_all(gpus, order[0])
        yield from ((ends, share * trial.bw_intra) for ends, share in parts)
        return
    for gpu, peer in pairwise(order):
        yield (DeviceKind.GPU, gpu, DeviceKind.GPU, peer), trial.bw_intra
    if trial.pattern is Pattern.Ring and not found.system.several_nodes and gpus > 1:
        yield (DeviceKind.GPU, order[-1], DeviceKind.GPU, order[0]), trial.bw_intra


def _to_network(found: SearchRun, trial: Trial, channel: int) -> Iterator[tuple[Ends, float]]:
    order, numbers = trial.intra[channel], found.loop.channels.nets.number_of
    first, last = (numbers.get(net) for net in trial.inter[channel])
    if first is None or last is None:
        return
    yield (DeviceKind.NET, first, DeviceKind.GPU, order[0]), trial.bw_inter
    if trial.pattern is Pattern.BalancedTree:
        for gpu in order[:2]:
            yield (DeviceKind.GPU, gpu, DeviceKind.NET, last), trial.bw_inter / len(order[:2])
        return
    step = {Pattern.Ring: len(order) - 1, Pattern.SplitTree: min(1, len(order) - 1)}.get(trial.pattern, 0)
    yield (DeviceKind.GPU, order[step], DeviceKind.NET, last), trial.bw_inter


class Detours:
    """Finds the paths that NCCL changed, by comparing the system after the search with a newly built, unchanged one."""

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
        """Every reason that applies to this graph."""
        if max(self.found.system.part_of_rank) > 0:
            yield self._parts()
        if self.apart:
            yield self._over_cpus()
        yield from self._to_adapters()

    def _parts(self) -> Reason:
        parts, names = 1 + max(self.found.system.part_of_rank), self.system.types.names
        hosts = self.found.system.hosts
        taken = "host" if hosts == 1 else f"NVLink domain of {hosts} hosts"
        start = f"NCCL treats this {taken} as {parts} nodes: "
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
        """The reason about pairs of GPUs without peer-to-peer access, whose traffic goes over a CPU."""
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
        """Reasons about the paths between the ends of channels and their adapters; at most one reason of each kind."""
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
        """The pairs of GPU and adapter between which channels run."""
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
