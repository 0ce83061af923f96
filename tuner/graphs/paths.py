"""The paths between devices: breadth first from each, and over a third one where NCCL diverts them.

Source: ncclTopoSetPaths, addInterStep and ncclGetLocalCpu, src/graph/paths.cc, v2.28.9-1.
"""

from tuner.base.errors import BadTopology
from tuner.graphs.bandwidths import LOCAL_GBS
from tuner.graphs.system import Kind, Link, Node, Path, System
from tuner.release.search import Routing


def set_paths(system: System, routing: Routing, nvb: bool) -> None:
    """Finds the paths to all CPUs, GPUs, network devices and NVSwitches; ``nvb``: over one GPU's NVLinks, too."""
    for node in system.everything():
        node.paths.clear()
    for kind in (Kind.CPU, Kind.DEV, Kind.GPU, Kind.NET, Kind.NVS):
        for base in system.nodes[kind]:
            _Spread(base, system, routing, nvb).spread()


class _Spread:
    """The paths to one device, which spread from it."""

    def __init__(self, base: Node, system: System, routing: Routing, nvb: bool) -> None:
        self.base, self.system, self.routing, self.nvb = base, system, routing, nvb
        self.kind, self.number, self.types = base.kind, system.number(base), system.types
        apart = bool(system.nodes[Kind.DEV])
        from_rank = apart and base.kind is Kind.GPU
        self.relay = Kind.DEV if apart else Kind.GPU  # what passes on over NVLink
        self.through = 2 if from_rank else 1  # and after how many links
        self.own = base.links[0].to if from_rank else base

    def path_of(self, node: Node) -> Path:
        """The path from a device, which at first is none."""
        if self.kind not in node.paths:
            unreached = self.routing.unreached
            gone = unreached == "disconnected" or (unreached == "disconnected_for_others" and node is not self.base)
            type_ = self.types.DIS if gone else self.types.LOC
            node.paths[self.kind] = [Path(type_) for _ in self.system.nodes[self.kind]]
        return node.paths[self.kind][self.number]

    def spread(self) -> None:
        """Level by level, in the order in which devices are reached."""
        start = self.path_of(self.base)
        start.links, start.gbs, start.type = (), LOCAL_GBS, self.types.LOC
        level = [self.base]
        while level:
            following: list[Node] = []
            for node in level:
                for link in node.links:
                    if self.lead(node, link) and link.to not in following:
                        following.append(link.to)
            level = following

    def lead(self, node: Node, link: Link) -> bool:
        """Leads the far end of a link over it, where that is better than its path so far."""
        path, at_far = self.path_of(node), self.path_of(link.to)
        if not self.passes(node, link, path):
            return False
        gbs, type_ = min(path.gbs, link.gbs), self.type_over(node, link, path)
        if not self.better(at_far, path, gbs, type_):
            return False
        at_far.links = (_back(link.to, node, link, self.routing), *path.links)
        at_far.gbs, at_far.type = gbs, type_
        return True

    def passes(self, node: Node, link: Link, path: Path) -> bool:
        """Whether a device passes on: a GPU only does over NVLink, to a GPU, and as the only one."""
        if node is self.own or node is self.base or node.kind is not self.relay:
            return True
        if link.kind == "LOC" and link.to.kind is Kind.GPU:
            return True
        return self.nvb and link.kind == "NVL" and link.to.kind is self.relay and path.hops <= self.through

    def better(self, at_far: Path, path: Path, gbs: float, type_: int) -> bool:
        """Whether a path over ``path`` and one more link is better than ``at_far``."""
        if self.routing.prefer == "wider":
            return (at_far.gbs == 0 or at_far.hops > path.hops) and at_far.gbs < gbs
        if type_ != at_far.type:
            return type_ < at_far.type
        return at_far.gbs < gbs or (at_far.gbs == gbs and at_far.hops > path.hops + 1)

    def type_over(self, node: Node, link: Link, path: Path) -> int:
        """The type of a path that a link makes longer."""
        types, far = self.types, link.to
        new = types.LOC if link.kind == "NET" else types.names.index(link.kind)
        if node.kind is Kind.PCI and far.kind is Kind.PCI:
            new = types.PXB
        if link.kind == "PIX" and Kind.CPU in (node.kind, far.kind):
            new = types.PHB
        if node.kind is self.relay and path.type == types.NVL and new == types.NVL and path.hops >= self.through:
            new = types.NVB
        return max(path.type, new)


def _back(far: Node, node: Node, link: Link, routing: Routing) -> Link:
    found = (back for back in far.links if back.to is node and (routing.reverse_of_any_type or back.kind == link.kind))
    back = next(found, None)
    if back is None:
        raise BadTopology(f"{node.kind.name} {node.id:x} reaches {far.kind.name} {far.id:x}, which has no link back")
    return back


def near_cpu(system: System, gpu: Node, routing: Routing) -> int:
    """The number of the CPU that is nearest to a GPU. BadTopology for one that reaches none."""
    paths = gpu.paths[Kind.CPU]
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


def divert(system: System, source: Node, over: Node, target: Node, routing: Routing) -> None:
    """Makes a path the one to a device and the one from there on."""
    types = system.types
    first = source.paths[over.kind][system.number(over)]
    then = over.paths[target.kind][system.number(target)]
    path = source.paths[target.kind][system.number(target)]
    path.links = (*first.links, *then.links)
    path.gbs = min(first.gbs, then.gbs)
    path.type = types.PXN if over.kind is Kind.GPU else joined(system, first.type, then.type, routing)


def joined(system: System, first: int, then: int, routing: Routing) -> int:
    """The type of two paths one after the other."""
    types = system.types
    if routing.joined_p2c and {first, then} == {types.PHB, types.C2C}:
        return types.P2C
    return max(first, then)
