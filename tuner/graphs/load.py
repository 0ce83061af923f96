"""Keeps track of the bandwidth that is left on every link while channels are laid.

NCCL keeps float32 values and rounds them to a thousandth after each change, so that adding an amount does not exactly
undo subtracting it. Here the result of each change is looked up in a table for its amount, which is filled on first
use. Source: followPath, ncclTopoFollowPath, src/graph/search.cc, v2.28.9-1.
"""

import math
from collections.abc import Sequence
from functools import cache

from tuner.base.dataclass import dataclass
from tuner.base.numerics import f32
from tuner.graphs.system import CpuDevice, DeviceKind, GpuDevice, Link, Path, System, SystemDevice
from tuner.graphs.trial import Recorder

THOUSAND = f32(1000)
REVERSE_TRAFFIC_BELOW = 80  # compute capability below which a GPU sends back an eighth of the traffic that it receives


class Taken(dict[float, float | None]):
    """Maps a bandwidth to what is left after ``amount`` is taken from it; None if it is less than ``amount``."""

    def __init__(self, amount: float) -> None:
        self.amount = f32(amount)

    def __missing__(self, have: float) -> float | None:
        left = None if have < self.amount else _rounded(f32(have) - self.amount)
        self[have] = left
        return left


class Less(dict[float, float]):
    """Maps a bandwidth to what is left after ``amount`` is subtracted from it.

    The result is only rounded to float32, not to a thousandth, as NCCL does it for adapters.
    """

    def __init__(self, amount: float) -> None:
        self.amount = f32(amount)

    def __missing__(self, have: float) -> float:
        rest = float(f32(have) - self.amount)
        self[have] = rest
        return rest


class GivenBack(dict[float, float]):
    """Maps a bandwidth to what it is after ``amount`` is given back."""

    def __init__(self, amount: float) -> None:
        self.amount = f32(amount)

    def __missing__(self, have: float) -> float:
        sum_ = _rounded(f32(have) + self.amount)
        self[have] = sum_
        return sum_


# the tables, by amount
less_by, taken_by, given_by = cache(Less), cache(Taken), cache(GivenBack)


def _rounded(value: f32) -> float:
    thousandths = float(value * THOUSAND)
    whole = math.floor(abs(thousandths) + 0.5)  # rounds half away from zero, as roundf does
    return float(f32(math.copysign(whole, thousandths)) / THOUSAND)


@cache
def in_thousandths(gbs: float) -> bool:
    """Whether a bandwidth is a whole number of thousandths, and small enough for float32 to add and subtract it
    exactly."""
    return 0 <= gbs < 1000 and abs(1000 * gbs - round(1000 * gbs)) < 0.1


Step = tuple[int, Taken, GivenBack]


@dataclass(slots=True, eq=False)
class Route:
    """A path, with the bandwidth that a channel on it takes from each link.

    ``back`` has what the route takes from the links' other directions; it is empty if the route takes nothing there.

    ``short`` is the step over the link that had too little left when the route was last refused.
    """

    steps: tuple[Step, ...]
    hops: int
    part: float = 0.0  # the part of a hop that counts, if the route takes a part of a path's bandwidth
    back: tuple[Step | None, ...] = ()
    short: Step | None = None


class Load:
    """The bandwidth left on each link, by the link's number."""

    def __init__(self, system: System, reverse_needs_type: bool, power_only: bool) -> None:
        self.system = system
        self.reverse_needs_type = reverse_needs_type
        self.power_only = power_only  # CPUs other than POWER take nothing for NVLinks
        self.left: list[float] = []
        self.links: list[Link] = []
        self._numbers: dict[int, int] = {}
        self._owners: dict[int, SystemDevice] = {}
        for node in system.everything():
            for link in node.links:
                self._numbers[id(link)] = len(self.left)
                self._owners[id(link)] = node
                self.left.append(link.gbs)
                self.links.append(link)
        self.recorder: Recorder | None = None
        self.begin()

    def begin(self) -> None:
        """Starts the next search with the bandwidths that are left now."""
        self.exact = True  # giving back what was taken for a route restores each link exactly
        self._before = tuple(self.left)

    def number(self, link: Link) -> int:
        """The number of a link in ``left``."""
        return self._numbers[id(link)]

    def _step(self, link: Link, amount: float) -> Step:
        number = self._numbers[id(link)]
        key = self._before[number], amount
        self.exact = self.exact and all(map(in_thousandths, key)) and _rounded(f32(key[0])) == key[0]
        return number, taken_by(amount), given_by(amount)

    def route(self, start: SystemDevice, path: Path, gbs: float, hops: int) -> Route:
        """The route of a path from a device; it takes ``gbs`` from each link."""
        pci_gbs = float(f32(gbs) * f32(6) / f32(5)) if self.has_pci_overhead(start, path) else gbs
        steps, back = list[Step](), list[Step | None]()
        for link in path.links:
            amount = pci_gbs if link.kind == "PIX" else gbs
            steps.append(self._step(link, amount))
            reverse = self.reverse_gbs(link, start, amount)
            back.append(None if reverse == 0 else self._step(self.way_back(link), reverse))
        return Route(tuple(steps), hops, back=tuple(back) if any(back) else ())

    def has_pci_overhead(self, start: SystemDevice, path: Path) -> bool:
        """Whether a path takes more bandwidth from PCI links than from others. A path from a GPU through an Intel CPU
        does."""
        through_cpu = path.type == self.system.types.PHB and start.kind is DeviceKind.GPU
        return through_cpu and any(
            isinstance(link.to, CpuDevice) and link.to.vendor == "GenuineIntel" for link in path.links
        )

    def reverse_gbs(self, link: Link, start: SystemDevice, gbs: float) -> float:
        """How much bandwidth ``gbs`` of traffic on a link takes from the link's other direction."""
        far, amount = link.to, 0.0
        hardware = DeviceKind.DEV if self.system.nodes[DeviceKind.DEV] else DeviceKind.GPU
        if far.kind is hardware and isinstance(far, GpuDevice) and start.kind is not DeviceKind.GPU:
            amount += gbs / 8 if far.compute_capability < REVERSE_TRAFFIC_BELOW else 0.0
        if isinstance(far, CpuDevice) and link.kind == "NVL" and (far.arch == "ppc64" or not self.power_only):
            amount += gbs
        return amount

    def way_back(self, link: Link) -> Link:
        """The other direction of a link."""
        owner = self._owners[id(link)]
        return next(
            back
            for back in link.to.links
            if back.to is owner and (back.kind == link.kind or not self.reverse_needs_type)
        )

    def take(self, route: Route) -> bool:
        """Takes the bandwidth that a route needs.

        If some link has too little, returns False; the links then have what they have in NCCL after such a refusal.
        """
        if route.back:
            return self._take_both_ways(route)
        left, steps, short = self.left, route.steps, route.short
        # A route is refused if one of its links has too little, whatever the links before it have left.
        if short is not None and self.exact and short[1][left[short[0]]] is None:
            return False
        for step in steps:
            link, taken, _ = step
            rest = taken[left[link]]
            if rest is None:
                self._refuse(steps, step)
                if self.recorder is None:
                    route.short = step
                return False
            left[link] = rest
        return True

    def _refuse(self, steps: Sequence[Step], short: Step) -> None:
        """Gives back what was taken from the links before the one that has too little left."""
        left = self.left
        for step in steps:
            link, taken, given = step
            if step is short:
                if self.recorder is not None:
                    self.recorder.link(link, left[link], float(taken.amount))
                return
            left[link] = given[left[link]]

    def _take_both_ways(self, route: Route) -> bool:
        left = self.left
        for at, ((link, taken, _), back) in enumerate(zip(route.steps, route.back, strict=True)):
            rest = taken[left[link]]
            if rest is None or (back is not None and back[1][left[back[0]]] is None):
                if self.recorder is not None:
                    short = link, taken
                    if rest is not None and back is not None:
                        short = back[:2]
                    self.recorder.link(short[0], left[short[0]], float(short[1].amount))
                self._give_both_ways(route.steps[:at], route.back[:at])
                return False
            left[link] = rest
            if back is not None:
                there = back[1][left[back[0]]]
                assert there is not None
                left[back[0]] = there
        return True

    def give(self, route: Route) -> None:
        """Gives the links back what a route had taken."""
        if route.back:
            self._give_both_ways(route.steps, route.back)
            return
        left = self.left
        for link, _, given in route.steps:
            left[link] = given[left[link]]

    def _give_both_ways(self, steps: Sequence[Step], backs: Sequence[Step | None]) -> None:
        left = self.left
        for (link, _, given), back in zip(steps, backs, strict=True):
            left[link] = given[left[link]]
            if back is not None:
                left[back[0]] = back[2][left[back[0]]]
