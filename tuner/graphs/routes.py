"""Paths, each with the bandwidth that a channel of the current graph takes from the path's links.

Source: ncclTopoFollowPath, src/graph/search.cc, v2.28.9-1.
"""

from dataclasses import replace
from typing import Final

from tuner.base.errors import NcclFails, Remedy
from tuner.base.numerics import f32
from tuner.graphs.load import Load, Route
from tuner.graphs.system import DeviceKind, GpuDevice, Path, System, SystemDevice
from tuner.graphs.trial import Trial
from tuner.release.search import ChannelRules

# Two devices, each by its kind and number: where a path starts and where it ends
Ends = tuple[DeviceKind, int, DeviceKind, int]
Parts = list[tuple[Ends, float]]  # paths, and the share of a channel's bandwidth that each takes
UNKNOWN: Final = Route((), 0)


class Routes:
    """All routes of one search; each is computed when it is first needed."""

    def __init__(self, system: System, load: Load, rules: ChannelRules, trial: Trial) -> None:
        self.system, self.load, self.rules, self.trial = system, load, rules, trial
        gpus = len(system.gpus)
        # from each GPU to each other GPU; UNKNOWN: not computed yet
        self.between: list[list[Route | None]] = [[UNKNOWN] * gpus for _ in range(gpus)]
        # From each GPU to each network device, and from each network device to the GPUs at which a channel may begin,
        # in the order in which they are tried. A head may have a number that belongs to no GPU, the one after the last.
        heads = max(gpus + 1, len(system.nets))
        self.leaving: list[list[Route | None]] = [[UNKNOWN] * len(system.nets) for _ in range(heads)]
        self.entering: list[list[Route | None]] = [[] for _ in system.nets]
        self._made: dict[tuple[Ends, float, float | None], Route | None] = {}

    def route(self, ends: Ends, share: float = 1, gbs: float | None = None) -> Route | None:
        """The route of a path that takes ``share`` of a channel's bandwidth; None if the path is not allowed."""
        key = ends, share, gbs
        if key not in self._made:
            self._made[key] = self._new(ends, share, gbs)
        return self._made[key]

    def new_between(self, gpu: int, peer: int) -> Route | None:
        """The route between two GPUs, which is then kept in ``between``."""
        route = self.between[gpu][peer] = self._new((DeviceKind.GPU, gpu, DeviceKind.GPU, peer), 1, None)
        return route

    def _new(self, ends: Ends, share: float, gbs: float | None) -> Route | None:
        kind, number, to_kind, to = ends
        trial, types, rules = self.trial, self.system.types, self.rules
        start, end = self.system.nodes[kind][number], self.system.nodes[to_kind][to]
        path = path_between(self.system, ends)
        intra = DeviceKind.NET not in (kind, to_kind)
        farthest = trial.type_intra if intra else trial.type_inter
        if rules.no_hops_succeed and not path.hops:
            return self.load.route(start, path, 0.0, 0)
        if rules.disconnected != "followed" and path.type >= types.DIS:
            if rules.disconnected == "refused" and DeviceKind.NVS in (kind, to_kind):
                joined = f"{_called(start, number)} and {_called(end, to)}"
                raise NcclFails(
                    f"this release of NCCL refuses a node where nothing joins {joined}; valid with NCCL_NVLS_ENABLE=0"
                ).cured(Remedy("env", "0", "NCCL_NVLS_ENABLE"))
            return None
        if share == 1 and path.type > farthest:
            if self.load.recorder is not None:
                self.load.recorder.path(path.type)
            return None
        if share == 1 and rules.trees_need_way_back and trial.is_tree and way_back_type(self.system, ends) > farthest:
            return None
        if gbs is None:
            gbs = trial.bw_intra if intra else trial.bw_inter
        amount = float(f32(gbs) * f32(share))
        if share != int(share):
            return replace(self.load.route(start, path, amount, 0), part=float(f32(share) * f32(path.hops)))
        return self.load.route(start, path, amount, path.hops * int(share))

    def take(self, route: Route) -> bool:
        """Takes the bandwidth that a route needs and counts its hops. Returns False if there is too little."""
        if not self.load.take(route):
            return False
        self._count(route, 1)
        return True

    def give(self, route: Route) -> None:
        """Gives back the bandwidth that a route took."""
        self.load.give(route)
        self._count(route, -1)

    def _count(self, route: Route, sign: int) -> None:
        """Counts hops as NCCL does: in a C int, to which parts of a hop are added as a float."""
        if not route.part:
            self.trial.hops += sign * route.hops
        else:
            self.trial.hops = int(f32(self.trial.hops) + f32(sign * route.part))

    def take_parts(self, parts: Parts) -> list[Route]:
        """Takes the bandwidth of one route of ``parts`` after the other, until a link has too little left.

        Returns the routes whose bandwidth was taken.
        """
        taken = list[Route]()
        for ends, share in parts:
            route = self.route(ends, share)
            if route is None or not self.take(route):
                break
            taken.append(route)
        return taken

    def give_parts(self, parts: Parts, taken: list[Route]) -> None:
        """Gives the parts back in NCCL's order: each half beginning at its end."""
        half = len(parts) // 2
        for route in [*reversed(taken[half:]), *reversed(taken[:half])]:
            self.give(route)


def path_between(system: System, ends: Ends) -> Path:
    """The path from one device to another. NcclFails if the first has no path to any device of that kind."""
    kind, number, to_kind, to = ends
    start = system.nodes[kind][number]
    if to_kind not in start.paths:
        raise NcclFails(f"NCCL refuses a node where {_called(start, number)} reaches no {to_kind.name} at all")
    return start.paths[to_kind][to]


def way_back_type(system: System, ends: Ends) -> int:
    """The type of the path from the second device to the first.

    NcclFails if the second has no path to any device of the first's kind: libnccl then dereferences a null pointer.
    """
    kind, number, to_kind, to = ends
    end = system.nodes[to_kind][to]
    if kind not in end.paths:
        raise NcclFails(
            f"this release of libnccl crashes: it treats the hosts of an NVLink domain as several nodes, and a tree "
            f"leaves by {_called(end, to)} of another host, which reaches no {kind.name} of this one "
            "(ncclTopoFollowPath, src/graph/search.cc)"
        )
    return end.paths[kind][number].type


def _called(node: SystemDevice, number: int) -> str:
    """The name of a device in an error: a GPU's number on the host (this system may be a part of it), or another
    device's number in the system."""
    return f"GPU {node.dev}" if isinstance(node, GpuDevice) else f"{node.kind.name} {number}"


def through_switch(gpus: int, head: int) -> Parts:
    """The paths of an NVLS channel: the whole bandwidth between every GPU and the NVSwitch, and twice that at the
    head."""
    parts: Parts = [((DeviceKind.NVS, 0, DeviceKind.GPU, gpu), 2 if gpu == head else 1) for gpu in range(gpus)]
    return parts + [((DeviceKind.GPU, gpu, DeviceKind.NVS, 0), 2 if gpu == head else 1) for gpu in range(gpus)]


def all_to_all(gpus: int, head: int) -> Parts:
    """The paths of a CollNet direct channel: from its head to every GPU, and from every GPU to the head.

    Each takes 1 / (number of GPUs - 1) of the channel's bandwidth.
    """
    part = float(f32(1.0) / f32(gpus - 1))
    parts: Parts = [((DeviceKind.GPU, head, DeviceKind.GPU, gpu), part) for gpu in range(gpus)]
    return parts + [((DeviceKind.GPU, gpu, DeviceKind.GPU, head), part) for gpu in range(gpus)]
