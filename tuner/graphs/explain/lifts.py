"""Finds what limits a graph, and which changes of the machine or of variables lift the limits, by searching again.

The limits are the links that have no room for one more channel, and the rules that stopped the search. They are lifted
one by one. If none of them helps alone, all are lifted together, and those that turn out not to matter are restored.
"""

import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import reduce

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, TunerError
from tuner.base.expressions import expression
from tuner.graphs.build import bus_id
from tuner.graphs.explain.links import KINDS, LinkClass, between, class_of, listed
from tuner.graphs.explain.records import Found, Lift, Limit, Reason
from tuner.graphs.explain.runs import Loads, Relaxation, SearchRun, both, of_link, of_rule, summary
from tuner.graphs.network_channels import DONE
from tuner.graphs.request import SearchRequest
from tuner.graphs.system import DeviceKind, SystemDevice
from tuner.graphs.trial import Attempt
from tuner.machine.gpus import most_nvlinks
from tuner.machine.topology.edit import edited
from tuner.machine.topology.edit_devices import PCIE_LANES, PCIE_SPEEDS, in_order, number

MOST_CLASSES = 4
MORE_TRIES = 4
NEW_STEP = 1.01  # the factor by which a bandwidth has to differ from those that NCCL tries
MORE = 1.001  # a smaller factor is only rounding


@dataclass(frozen=True, slots=True)
class Factor:
    """Something that may limit a graph: a class of equal links, or a rule of the search.

    ``freed`` is the relaxation with which to search without it.
    """

    kind: str
    freed: Relaxation
    links: LinkClass | None = None


def is_more(found: Found, before: Found) -> bool:
    """Whether all channels together have more bandwidth, judged by the smaller of the bandwidths within a node and
    between nodes."""
    own, other = (sorted((each.total_intra_gbs, each.total_inter_gbs)) for each in (found, before))
    return own[0] > other[0] * MORE or (own[0] * MORE > other[0] and own[1] > other[1] * MORE)


class BandwidthLimits:
    """Finds what limits one graph.

    ``again`` is a function that searches the graph once more, under a relaxation.
    """

    def __init__(self, found: SearchRun, loads: Loads, again: Callable[[Relaxation], Found]) -> None:
        self.found, self.loads, self.again = found, loads, again
        self.before = summary(found.system, found.trial)
        self.links = found.loop.channels.load.links
        self.classes = [
            class_of(found.owner(link), link, bare) for link, bare in zip(self.links, found.bare_gbs, strict=True)
        ]

    def owner(self, number: int) -> SystemDevice:
        """The device at which a link starts."""
        return self.found.owner(self.links[number])

    def all(self) -> tuple[Limit, ...]:
        """Every limit whose removal alone makes the graph better.

        If there is none, one limit that consists of several factors, which only help together; empty if nothing helps.
        """
        way, others = self._tight()
        links = [Factor(KINDS[each.kind], Relaxation(links=frozenset({each})), each) for each in (*way, *others)]
        rules = list(self._rules([*way, *others]))
        singles = [[factor] for factor in (*links[len(way) :], *rules)]
        limits = [self._limit(links[: len(way)])] if way else []
        limits += [self._limit(factors) for factors in singles]
        if not any(limits):
            limits = [self._limit(links), None]
            if not any(limits):
                limits = [self._limit([*rules, *links])]
        return tuple(limit for limit in limits if limit is not None)

    def _limit(self, factors: Sequence[Factor]) -> Limit | None:
        """The smallest set of these factors that limits the graph together; None if even all of them do not."""
        then = self._without(factors)
        if then is None:
            return None
        for factor in list(factors) if len(factors) > 1 else ():
            rest = [each for each in factors if each is not factor]
            fewer = self._without(rest) if rest else None
            if fewer is not None:
                factors, then = rest, fewer
        numbers = [self.fullest(factor.links) for factor in factors if factor.links is not None]
        links = tuple(between(self.owner(number), self.links[number]) for number in numbers)
        return Limit(tuple(factor.kind for factor in factors), " ".join(map(self._says, factors)), links, then)

    def _without(self, factors: Sequence[Factor]) -> Found | None:
        """The channels found when these factors are lifted; None if these are no more than before."""
        then = self.again(reduce(both, (factor.freed for factor in factors))) if factors else self.before
        return then if is_more(then, self.before) else None

    def _says(self, factor: Factor) -> str:
        if factor.links is None:
            return of_rule(factor.kind, self.found)
        number = self.fullest(factor.links)
        ends = {
            frozenset((id(self.owner(other)), id(self.links[other].to)))
            for other, each in enumerate(self.classes)
            if each == factor.links
        }
        carried = self.loads.get(number, {})
        return of_link((self.owner(number), self.links[number]), factor.links.gbs, len(ends), carried)

    def fullest(self, of: LinkClass) -> int:
        """The number of the link that carries the most among the links of a class."""
        numbers = [number for number, each in enumerate(self.classes) if each == of]
        return max(numbers, key=lambda number: sum(self.loads.get(number, {}).values()))

    def _rules(self, tight: Sequence[LinkClass]) -> Iterator[Factor]:
        """The rules that may limit the graph, according to how its searches went."""
        trial, bounds, attempts = self.found.trial, self.found.loop.bounds, self.found.attempts
        if steps := self._steps(tight):
            yield Factor("steps", Relaxation(steps_gbs=steps))
        nearer = trial.type_intra < bounds.far_intra or trial.type_inter < bounds.far_inter
        if nearer and any(attempt.rejections.types for attempt in attempts):
            yield Factor("paths", Relaxation(any_path=True))
        if self.found.graph == "tree":
            yield Factor("ring", Relaxation(count_of_ring=True))
        elif trial.channels == trial.max_channels > trial.min_channels:
            yield Factor("channels", Relaxation(channels=2))
        if more_tries_help(self.found, MORE_TRIES):
            yield Factor("tries", Relaxation(tries=MORE_TRIES))

    def _tight(self) -> tuple[list[LinkClass], list[LinkClass]]:
        """Links without room for one more channel: the PCI and network links on the way to the network, and all others.

        The others include the links that refused a channel when the most channels had been laid.
        """
        trial, way, others = self.found.trial, Counter[LinkClass](), Counter[LinkClass]()
        for place, channels in self.loads.items():
            carried = sum(channels.values())
            each = self.classes[place]
            to_net = DeviceKind.NET in each.ends or DeviceKind.NIC in each.ends
            if self.found.bare_gbs[place] - carried < (trial.bw_inter if to_net else trial.bw_intra):
                (way if self.found.system.several_nodes and each.kind in ("PIX", "NET") else others)[each] += 1
        for attempt in self.found.attempts:
            most = max((at.channels for at in attempt.rejections.links), default=0)
            for at, times in attempt.rejections.links.items():
                each = self.classes[at.number]
                if at.channels == most and each not in way:
                    others[each] += times
        found = ([each for each, _ in counted.most_common() if each.kind != "LOC"] for counted in (way, others))
        return next(found), next(found)[:MOST_CLASSES]

    def _steps(self, tight: Sequence[LinkClass]) -> tuple[float, ...]:
        """The channel bandwidths, not among those that NCCL tries, with which the same number of channels would fill a
        link."""
        trial, tried = self.found.trial, self.found.loop.bounds.steps
        shares = set[float]()
        for each in tight:
            count = len(self.loads.get(self.fullest(each), {})) or 1
            shares |= {each.gbs * wide / share for wide in (1, 2) for share in (count, max(1, count // 2))}
        least, most = min(trial.bw_intra, trial.bw_inter) * NEW_STEP, max(tried)
        new = (gbs for gbs in shares if least < gbs < most)
        return tuple(sorted(gbs for gbs in new if not any(gbs / NEW_STEP < step < gbs * NEW_STEP for step in tried)))


# Whether a search ended because NCCL limits the number of tries.

MOST_SEARCHES = 6


def ran_out(attempt: Attempt) -> bool:
    """Whether a search stopped because its tries were used up, so that it might have found more."""
    return attempt.left == 0 and not attempt.known


def all_ran_out(found: SearchRun) -> bool:
    """Whether the tries for all searches of the graph were used up before slower channels were tried."""
    unused = found.nccl.search.tries.all
    for attempt in found.attempts:
        unused -= attempt.allowed
        if unused < 0 and attempt.best.channels:
            return True
        if not attempt.asked.same_channels and attempt.left != DONE:
            unused += attempt.left
    return False


def more_tries_help(found: SearchRun, factor: int) -> bool:
    """Whether a search that ran out of tries finds something better if it gets several times as many."""
    if all_ran_out(found):
        return True
    out = [attempt for attempt in found.attempts if ran_out(attempt)]
    for attempt in reversed(out[-MOST_SEARCHES:]):
        best = found.trial.copied()
        found.loop.channels.search(attempt.asked.copied(), best, attempt.allowed * factor)
        if (best.channels, best.bw_intra, best.bw_inter) != (
            found.trial.channels,
            found.trial.bw_intra,
            found.trial.bw_inter,
        ):
            return True
    return False


GENERATIONS = {"2.5": 1, "5": 2, "5.0": 2, "8": 3, "8.0": 3, "16": 4, "16.0": 4, "32": 5, "32.0": 5, "64.0": 6}
UNKNOWN_GENERATION = 3  # what NCCL assumes for a link whose speed it does not know
FULL_WIDTH = PCIE_LANES[-1]
NO_SPEED_MBPS = 10000  # what NCCL assumes for an adapter that reports no speed
PLAIN_NAME = expression(r"[\w.:+-]+")  # a name by which a change can refer to a device


def twice_the_speed(topology: str) -> str | None:
    """The value of the change ``nic-gbps`` that doubles the speed of all network ports; None without adapters."""
    nets = {number(net, "dev"): net for net in ET.fromstring(topology).iter("net")}
    speeds = {dev: 2 * (max(number(net, "speed"), 0) or NO_SPEED_MBPS) for dev, net in nets.items()}
    if not speeds:
        return None
    if len(set(speeds.values())) == 1:
        return _gbps(next(iter(speeds.values())))
    return ",".join(f"{_gbps(speed)}@net:{dev}" for dev, speed in sorted(speeds.items()))


def _gbps(mbps: int) -> str:
    whole, rest = divmod(mbps, 1000)
    return f"{whole}.{rest:03}".rstrip("0").rstrip(".")


def more_nvlinks(topology: str) -> str | None:
    """The value of the change ``nvlinks`` that doubles the NVLinks of each GPU; None if no GPU can have more.

    If twice as many are impossible, it is the most that all of these GPUs can have.
    """
    gpus = [gpu for gpu in ET.fromstring(topology).iter("gpu") if gpu.find("nvlink") is not None]
    have = max((sum(number(link, "count") for link in gpu.findall("nvlink")) for gpu in gpus), default=0)
    most = min((most_nvlinks(number(gpu, "sm")) for gpu in gpus), default=0)
    for count in (2 * have, most):
        if have < count <= most and _possible(topology, {"nvlinks": str(count)}):
            return str(count)
    return None


def _possible(topology: str, edits: Mapping[str, str]) -> bool:
    try:
        edited(topology, edits)
    except BadInput:
        return False
    return True


def gpu_direct(topology: str) -> str:
    """The value of the change ``gpudirect`` that turns GPUDirect RDMA on for all adapters and GPUs."""
    gpus = in_order(ET.fromstring(topology).iter("gpu"))
    return ",".join(["on", *(f"on@gpu:{number(gpu, 'dev')}" for gpu in gpus if number(gpu, "gdr") == 0)])


def faster_pcie(found: SearchRun, classes: frozenset[LinkClass]) -> str | None:
    """The value of the change ``pcie`` that makes the PCIe links of these classes faster; None if none can be.

    A link with less than the full number of lanes gets the next larger number, any other link the next PCIe generation.
    """
    root, pairs = ET.fromstring(found.request.topology), _pairs(found, classes)
    links = list(_links(root, found))
    faster = {
        name: link
        for element, above in links
        if frozenset((bus_id(element.get("busid", "")), above)) in pairs
        and (link := _faster_link(element)) is not None
        and (name := _name(element))
    }
    if len(faster) == len(links) > 0 and len(set(faster.values())) == 1:
        return next(iter(faster.values()))
    return ",".join(f"{link}@{name}" for name, link in faster.items()) or None


def _faster_link(element: ET.Element) -> str | None:
    """The name of the next faster PCIe link; None for the fastest one that NCCL knows."""
    speed = element.get("link_speed", "").split(" ")[0]
    generation = GENERATIONS.get(speed, UNKNOWN_GENERATION)
    width = int(element.get("link_width") or FULL_WIDTH) or FULL_WIDTH
    if width < FULL_WIDTH:
        return f"{generation}x{next(lanes for lanes in PCIE_LANES if lanes > width)}"
    return str(generation + 1) if generation < max(PCIE_SPEEDS) else None


def _name(element: ET.Element) -> str:
    """A device's name in a change: GPUs and adapters by their names, others by the bus id."""
    if (gpu := element.find("gpu")) is not None:
        return f"gpu:{number(gpu, 'dev')}"
    if (net := element.find("nic/net")) is not None and PLAIN_NAME.fullmatch(net.get("name", "")):
        return net.get("name", "")
    return element.get("busid", "")


def _pairs(found: SearchRun, classes: frozenset[LinkClass]) -> set[frozenset[int | str]]:
    """The two ends of the links of these classes: bus ids as numbers, CPUs by NUMA node."""
    load = found.loop.channels.load
    bare = zip(load.links, found.bare_gbs, strict=True)
    links = [link for link, gbs in bare if class_of(found.owner(link), link, gbs) in classes]
    return {frozenset((_key(found.owner(link)), _key(link.to))) for link in links}


def _key(node: SystemDevice) -> int | str:
    return f"cpu {node.id}" if node.kind is DeviceKind.CPU else node.id


def _links(root: ET.Element, found: SearchRun) -> Iterator[tuple[ET.Element, int | str]]:
    """Every link of a <pci>: to the next device above it that is still in the system graph (flattened switches are
    not)."""
    there = {
        node.id
        for kind in (DeviceKind.PCI, DeviceKind.GPU, DeviceKind.NIC, DeviceKind.DEV)
        for node in found.system.nodes[kind]
    }

    def below(element: ET.Element, above: int | str) -> Iterator[tuple[ET.Element, int | str]]:
        for child in element.findall("pci"):
            own = bus_id(child.get("busid", ""))
            yield child, above
            yield from below(child, own if own in there else above)

    for cpu in root.findall("cpu"):
        yield from below(cpu, f"cpu {int(cpu.get('numaid', '0'), 0)}")


def places_of_adapters(topology: str) -> dict[str, list[str]]:
    """The places at which adapters are PCI devices, named as in ``add-nic``, with the bus ids of the adapters at each.

    Places and bus ids are in the order of the adapters' ``dev``.
    """
    root = ET.fromstring(topology)
    parents = {child: parent for parent in root.iter() for child in parent}
    places: dict[str, list[str]] = {}
    for net in in_order(root.iter("net")):
        pci = parents[parents[net]]
        if pci.tag == "pci":
            above = parents[pci]
            place = f"cpu:{above.get('numaid')}" if above.tag == "cpu" else above.get("busid", "").lower()
            bus = pci.get("busid", "").lower()
            if bus not in places.setdefault(place, []):
                places[place].append(bus)
    return places


def more_adapters(topology: str, places: Mapping[str, list[str]]) -> str:
    """The value of the change ``add-nic`` that doubles the number of adapters at each place."""
    names = {net.get("name") for net in ET.fromstring(topology).iter("net")}
    count = sum(map(len, places.values()))
    new = iter([name for at in range(count + len(names)) if (name := f"new{at}") not in names])
    return ",".join(f"{next(new)}@{place}" for place, adapters in places.items() for _ in adapters)


@dataclass(frozen=True, slots=True)
class Idea:
    """A change that may help.

    ``change`` describes it in words; ``edits`` of the hardware, or variables in ``environment``, say it as ``diff``
    takes it.
    """

    change: str
    edits: Mapping[str, str] = field(default_factory=dict)  # the edits as tuner.machine.topology.edit names them
    environment: Mapping[str, str | None] = field(default_factory=dict)  # None: the variable is not set

    @property
    def assignments(self) -> tuple[str, ...]:
        """The changes as KEY=VALUE, in the form of the option ``change``."""
        hardware = (f"{key}={value}" for key, value in self.edits.items())
        variables = (
            f"unset={name}" if value is None else f"{name}={value}" for name, value in self.environment.items()
        )
        return (*hardware, *variables)


def lifts(
    limits: BandwidthLimits, causes: Sequence[Limit], reasons: Sequence[Reason], again: Callable[[SearchRequest], Found]
) -> list[Lift]:
    """Every change that may help, with what the search finds after it; changes that do help come first.

    Changes that NCCL refuses are left out.
    """
    found, tried = limits.found, list[Lift]()
    for idea in _ideas(limits, causes, {reason.kind for reason in reasons}):
        lift = _tried(found, idea, again)
        if lift is not None:
            tried.append(lift)
    return sorted(tried, key=lambda lift: not lift.more)


def _tried(found: SearchRun, idea: Idea, again: Callable[[SearchRequest], Found]) -> Lift | None:
    environment = {**found.request.environment, **idea.environment}
    kept = {name: value for name, value in environment.items() if value is not None}
    topology = found.request.topology
    try:
        topology = edited(topology, idea.edits) if idea.edits else topology
        then = again(replace(found.request, topology=topology, environment=kept))
    except TunerError:
        return None
    return Lift(
        idea.change,
        idea.assignments,
        then,
        more=is_more(then, summary(found.system, found.trial)),
        environment=kept if idea.environment else {},
        topology=topology if idea.edits else None,
    )


def _ideas(limits: BandwidthLimits, causes: Sequence[Limit], kinds: set[str]) -> Iterator[Idea]:
    found = limits.found
    yield from _variables(found, kinds)
    if found.request.others:
        return  # if hosts differ, no idea changes hardware, because such a change applies to all hosts
    system = found.system
    direct = [gpu.gpu_direct for gpu in system.gpus] + [net.gpu_direct for net in system.nets]
    if "gpu_direct" in kinds and not all(direct):
        value = gpu_direct(found.request.topology)
        yield Idea("GPUDirect RDMA with every GPU and adapter", {"gpudirect": value})
    for cause in causes:
        yield from _hardware(limits, cause)


def _variables(found: SearchRun, kinds: set[str]) -> Iterator[Idea]:
    names, set_ = found.system.types.names, found.request.environment
    for name, value in set_.items():
        if name in found.nccl.search_variables and name != "NCCL_COLLNET_ENABLE":
            yield Idea(f"without {name}={value}", environment={name: None})
    if "cpu" in kinds:
        yield Idea("peer-to-peer up to SYS (NCCL_P2P_LEVEL=SYS)", environment={"NCCL_P2P_LEVEL": "SYS"})
    if "gpu_direct" in kinds:
        for level in ("PXB", "PHB", "SYS"):
            if level in names:
                text = f"GPUDirect RDMA up to {level} (NCCL_NET_GDR_LEVEL={level})"
                yield Idea(text, environment={"NCCL_NET_GDR_LEVEL": level})
    if "parts" in kinds:
        text = "no network between GPUs of a host (NCCL_NET_DISABLE_INTRA=1)"
        yield Idea(text, environment={"NCCL_NET_DISABLE_INTRA": "1"})
    if found.system.several_nodes and len(found.system.nets) > 1 and set_.get("NCCL_CROSS_NIC") != "1":
        text = "channels that may always cross adapters (NCCL_CROSS_NIC=1)"
        yield Idea(text, environment={"NCCL_CROSS_NIC": "1"})


def _hardware(limits: BandwidthLimits, cause: Limit) -> Iterator[Idea]:
    """Ideas that make the limiting links faster and, if adapters are the limit, ideas that add adapters."""
    found = limits.found
    numbers = {between(limits.owner(number), link): number for number, link in enumerate(limits.links)}
    classes = [limits.classes[numbers[link]] for link in cause.links]
    at_adapters = [each for each in classes if DeviceKind.NET in each.ends or DeviceKind.NIC in each.ends]
    if idea := _faster(found, classes):
        yield idea
    if found.system.several_nodes and at_adapters:
        rest = _faster(found, [each for each in classes if each not in at_adapters])
        yield from _adapters(found, rest)


def _faster(found: SearchRun, classes: Sequence[LinkClass]) -> Idea | None:
    """Ideas that make all these links faster."""
    topology, kinds = found.request.topology, {each.kind for each in classes}
    edits, words = dict[str, str](), list[str]()
    if "NET" in kinds and (speed := twice_the_speed(topology)):
        edits["nic-gbps"] = speed
        words.append("adapters of twice the speed")
    pcie = frozenset(each for each in classes if each.kind == "PIX")
    if pcie and (links := faster_pcie(found, pcie)):
        edits["pcie"] = links
        words.append(f"PCIe of the next generation at the {listed(sorted({_place(each) for each in pcie}))}")
    if "NVL" in kinds and (count := more_nvlinks(topology)):
        edits["nvlinks"] = count
        words.append(f"{count} NVLinks at each GPU")
    if "SYS" in kinds:
        edits["sockets"] = "1"
        words.append("all devices on one socket")
    return Idea(", ".join(words), edits) if edits else None


def _place(of: LinkClass) -> str:
    if DeviceKind.NIC in of.ends:
        return "adapters"
    return "GPUs" if DeviceKind.GPU in of.ends or DeviceKind.DEV in of.ends else "switches"


def _adapters(found: SearchRun, rest: Idea | None) -> Iterator[Idea]:
    """Ideas that add one adapter, or one beside each adapter; combined with ``rest``, if ``rest`` would be the next
    limit."""
    topology, used = found.request.topology, {net.pci.lower() for net in found.system.nets if net.pci}
    placed = {place: buses for place, buses in places_of_adapters(topology).items() if used & set(buses)}
    if not placed:
        return
    first, buses = next(iter(placed.items()))
    where = f"CPU {first.removeprefix('cpu:')}" if first.startswith("cpu:") else f"PCIe switch {first}"
    yield Idea(f"a second adapter under {where}", {"add-nic": more_adapters(topology, {first: buses[:1]})})
    every = more_adapters(topology, placed)
    if sum(map(len, placed.values())) > 1:
        yield Idea("a second adapter beside each", {"add-nic": every})
    if rest is not None:
        yield Idea(f"a second adapter beside each, {rest.change}", {**rest.edits, "add-nic": every})
