"""Explains one graph: why it has no further channel, why its channels are not faster, and what else shaped it."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from functools import lru_cache

from tuner import release
from tuner.base.names import Pattern
from tuner.base.numerics import f32
from tuner.base.records import to_json
from tuner.base.sizes import plural
from tuner.graphs import cached
from tuner.graphs.explain.lifts import BandwidthLimits, lifts
from tuner.graphs.explain.links import KINDS, between, called, gbs, name, phrase, place
from tuner.graphs.explain.records import (
    Found,
    GraphExplanation,
    Limit,
    LinkRejection,
    LoadedLink,
    MachineDevice,
    Reason,
    SearchTried,
)
from tuner.graphs.explain.runs import Detours, Relaxation, SearchRun, begun, loads, not_searched, run, summary
from tuner.graphs.loop import FALLBACK_GBS
from tuner.graphs.network_channels import DONE
from tuner.graphs.request import SearchRequest, request_of
from tuner.graphs.system import DeviceKind, Link, System, SystemDevice
from tuner.graphs.trial import Attempt, Position, Trial
from tuner.release import Release

ROUNDING_GBS = 0.002


class Reasons:
    """Finds the reasons for one graph in the searches that led to it."""

    def __init__(self, found: SearchRun) -> None:
        self.found, self.trial = found, found.trial
        self.links = found.loop.channels.load.links
        better = [attempt for attempt in found.attempts if attempt.found]
        self.last = better[-1] if better else None  # the search that found the graph
        self.several = found.system.several_nodes

    def one_more(self) -> Reason | None:
        """Why the search found no further channel like the others; None if there is no such reason."""
        if self.last is None:
            return None
        channels, per_gbs = self.last.best.channels, self.last.best.bw_inter
        if channels == self.last.asked.max_channels:
            return None
        start = f"One more channel of {gbs(per_gbs)} has no room: "
        refusal = self._refused(self.last, channels)
        if refusal is not None:
            return Reason("link", start + refusal.says, refusal.links)
        full = Counter({at: times for at, times in self.last.rejections.adapters.items() if at.channels == channels})
        if full:
            net = self.found.system.nets[full.most_common(1)[0][0].number]
            says = f"adapter {net.dev} ({gbs(net.links[0].gbs)}) has too little left."
            if len(full) == len(self.found.system.nets) > 1:
                says = f"no adapter has as much left, such as adapter {net.dev} of {gbs(net.links[0].gbs)}."
            return Reason("adapter", start + says, (between(net, net.links[0]),))
        if self.last.left == 0:
            return Reason("tries", f"One more channel of {gbs(per_gbs)} was not found within the tries of the search.")
        return None

    def faster(self) -> Reason | None:
        """Why the channels do not have more bandwidth; None if there is no such reason."""
        trial, bounds, system = self.trial, self.found.loop.bounds, self.found.system
        if trial.channels == 0:
            return None
        tried = self._next_faster()
        if tried is not None:
            asked = tried.asked
            at_least = plural(asked.min_channels, "channel")
            speed = gbs(asked.bw_inter)
            if not self.several:
                speed = gbs(asked.bw_intra)
            elif asked.bw_intra != asked.bw_inter:
                speed = f"{asked.bw_intra:.4g} GB/s within the node and {asked.bw_inter:.4g} between nodes"
            most = max((at.channels for at in (*tried.rejections.links, *tried.rejections.adapters)), default=0)
            start = f"The next faster search asks for {speed} a channel and at least {at_least}; it lays {most}"
            refusal = self._refused(tried, most)
            if refusal is None and tried.rejections.adapters:
                net = system.nets[tried.rejections.adapters.most_common(1)[0][0].number]
                where = between(net, net.links[0])
                says = f"the network port of adapter {net.dev} ({gbs(net.links[0].gbs)}) has too little left."
                refusal = Reason("adapter", says, (where,))
            if refusal is None:
                return Reason("none", f"{start}, which is no better.")
            return Reason(refusal.kind, f"{start}, and then {refusal.says}", refusal.links)
        faster = [step for step in bounds.steps if step > max(trial.bw_inter, trial.bw_intra)]
        if not faster:
            return Reason("steps", f"{gbs(bounds.steps[0])} is the fastest channel that NCCL tries here.")
        if faster[-1] > system.max_gbs:
            narrow = self._narrowest()
            start = f"The next faster channel that NCCL tries, {gbs(faster[-1])}, is more than any path from a GPU "
            start += f"{'to an adapter' if self.several else 'to another'} has: {gbs(system.max_gbs)}"
            if narrow is None:
                return Reason("path", f"{start}.")
            return Reason("path", f"{start}, which {phrase(*narrow)} has.", (between(*narrow),))
        if self.found.attempts and self.found.attempts[-1].left == 0:
            return Reason("tries", "No faster channels were tried, as the last search had used all its tries.")
        return None

    def others(self) -> Iterator[Reason]:
        """The other reasons for the graph."""
        trial, last, graph = self.trial, self.last, self.found.graph
        if trial.channels == 1 and trial.bw_intra == FALLBACK_GBS and last is None:
            says = "No search found a channel; NCCL then lays one through the GPUs in their order, for 0.1 GB/s."
            yield Reason("fallback", says)
        if last is not None and last.best.channels < trial.channels:
            before = last.best
            yield Reason(
                "duplicated",
                f"{plural(before.channels, 'channel')} of {before.bw_intra:.4g} GB/s became {trial.channels} of "
                f"{gbs(trial.bw_intra)}: NCCL lays every channel twice with half the bandwidth, where a channel has "
                "much, as more channels keep more of a GPU busy.",
            )
        if graph in ("tree", "collnet_chain") and trial.channels:
            says = f"NCCL asks for exactly as many channels as the ring has, {self.found.ring.channels}."
            yield Reason("ring", says)
        total = self.found.system.total_gbs
        if last is not None and last.left != DONE and self._enough(last):
            reached = last.best.channels * last.best.bw_inter
            yield Reason(
                "enough",
                f"NCCL stops looking for slower channels: those found have {gbs(reached)} together, "
                f"and all links of a GPU {gbs(total)}.",
            )
        if trial.cross_nic and self.several:
            says = "A channel may leave the node through another adapter than it entered by (crossing rails)."
            yield Reason("cross_nic", says)

    def _enough(self, attempt: Attempt) -> bool:
        best = attempt.best
        return bool(f32(best.channels) * f32(best.bw_inter) >= f32(self.found.system.total_gbs))

    def _next_faster(self) -> Attempt | None:
        """The slowest of the searches that asked for more bandwidth than was found, and that found nothing better."""
        trial, vain = self.trial, [each for each in self.found.attempts if not (each.known or each.found)]
        inter = [each for each in vain if self.several and each.asked.bw_inter > trial.bw_inter]
        faster = inter or [
            each
            for each in vain
            if (each.asked.bw_intra, each.asked.bw_inter) != (trial.bw_intra, trial.bw_inter)
            and each.asked.bw_intra >= trial.bw_intra
            and each.asked.bw_inter >= trial.bw_inter
        ]
        return min(reversed(faster), key=lambda each: (each.asked.bw_inter, each.asked.bw_intra), default=None)

    def _refused(self, attempt: Attempt, channels: int) -> Reason | None:
        """The reason from the link that most often refused a channel while this many channels were laid."""
        refusals = Counter({at: times for at, times in attempt.rejections.links.items() if at.channels == channels})
        if not refusals:
            return None
        at: Position = refusals.most_common(1)[0][0]
        link, has = self.links[at.number], self.found.bare_gbs[at.number]
        owner, short = self.found.owner(link), attempt.rejections.left[at]
        carries_gbs = has - short.left_gbs
        says = f"{phrase(owner, link)} has only {gbs(has)}, and {gbs(short.needed_gbs)} are needed."
        if carries_gbs > ROUNDING_GBS:
            says = f"{phrase(owner, link)} has {gbs(has)}, of which {gbs(carries_gbs)} are taken"
            says += f", and {gbs(short.needed_gbs)} more are needed."
        return Reason("link", says, (between(owner, link),))

    def _narrowest(self) -> tuple[SystemDevice, Link] | None:
        """The narrowest link on the best path from a GPU."""
        system = self.found.system
        kind = DeviceKind.NET if self.several else (DeviceKind.DEV if system.nodes[DeviceKind.DEV] else DeviceKind.GPU)
        paths = [
            path for gpu in system.nodes[DeviceKind.DEV] or system.gpus for path in gpu.paths.get(kind, ()) if path.hops
        ]
        best = [path for path in paths if path.gbs == system.max_gbs]
        narrow = [link for path in best for link in path.links if link.gbs <= system.max_gbs]
        return (self.found.owner(narrow[0]), narrow[0]) if narrow else None


def explain(request: SearchRequest, nccl: str, graph: str, with_lifts: bool = True) -> GraphExplanation:
    """Explains a graph by the searches that NCCL release ``nccl`` makes for it, and with ``with_lifts`` also by the
    changes that let NCCL find more.

    BadInput if NCCL does not search that graph or refuses the request, BadTopology if the topology is invalid.
    """
    loaded = release.load(nccl)
    found = run(request, loaded, graph)
    taken = loads(found)
    before, searches = summary(found.system, found.trial), _searches(found)
    reasons = Reasons(found)
    others = (*reasons.others(), *Detours(found).all())
    limits = BandwidthLimits(found, taken, lambda freed: again(request, nccl, freed).found(graph))
    causes = limits.all() if found.trial.channels else ()

    def of_changed(changed: SearchRequest) -> Found:
        return again(changed, nccl).found(graph)

    return GraphExplanation(
        graph=graph,
        several_nodes=found.system.several_nodes,
        max_gbs=found.system.max_gbs,
        total_gbs=found.system.total_gbs,
        found=before,
        one_more=reasons.one_more(),
        faster=reasons.faster(),
        reasons=others,
        limits=causes,
        lifts=tuple(lifts(limits, causes, others, of_changed)) if with_lifts else (),
        devices=tuple(devices(found.system)),
        links=tuple(links(limits, causes)),
        searches=searches,
    )


def _searches(found: SearchRun) -> tuple[SearchTried, ...]:
    names = [between(found.owner(link), link) for link in found.loop.channels.load.links]
    return tuple(_search(found, attempt, names) for attempt in found.attempts)


def _search(found: SearchRun, attempt: Attempt, links: Sequence[str]) -> SearchTried:
    names, asked, refusal = found.system.types.names, attempt.asked, None
    often = attempt.rejections.of_links()
    if often:
        number, times = often.most_common(1)[0]
        short = next(short for at, short in attempt.rejections.left.items() if at.number == number)
        has = found.bare_gbs[number]
        refusal = LinkRejection(links[number], times, has, max(0.0, has - short.left_gbs), short.needed_gbs)
    return SearchTried(
        pattern=asked.pattern,
        bw_intra_gbs=asked.bw_intra,
        bw_inter_gbs=asked.bw_inter,
        type_intra=names[asked.type_intra],
        type_inter=names[asked.type_inter],
        cross_nic=asked.cross_nic,
        same_channels=asked.same_channels,
        min_channels=asked.min_channels,
        max_channels=asked.max_channels,
        tried=attempt.allowed - max(attempt.left, 0),
        allowed=attempt.allowed,
        outcome=_outcome(attempt),
        repeats=attempt.known,
        channels=attempt.best.channels,
        refused=refusal,
    )


def _outcome(attempt: Attempt) -> str:
    if attempt.left == DONE:
        return "all channels"
    found = "better" if attempt.found else "nothing better"
    return f"{found}, out of tries" if attempt.left == 0 else found


# The machine as NCCL sees it, with the bandwidth that channels take from every link, for drawing a picture.

DOWN = ("PIX", "C2C", "NET")


def devices(system: System) -> Iterator[MachineDevice]:
    """Every device with the switch or CPU above it. A GPU is one device, even if several ranks use it."""
    seen = set[str]()
    for cpu in system.cpus:
        yield from _below(cpu, None, seen)
    for node in system.nodes[DeviceKind.NVS]:
        yield _device(node, None)
    for node in (*system.gpus, *system.nets):
        if name(node) not in seen:
            seen.add(name(node))
            yield _device(node, None)


def _below(node: SystemDevice, above: SystemDevice | None, seen: set[str]) -> Iterator[MachineDevice]:
    if name(node) in seen:
        return
    seen.add(name(node))
    yield _device(node, above)
    for link in node.links:
        if link.kind in DOWN and link.to.kind is not DeviceKind.CPU:
            yield from _below(link.to, node, seen)


def _device(node: SystemDevice, above: SystemDevice | None) -> MachineDevice:
    kind = "gpu" if node.kind is DeviceKind.DEV else node.kind.name.lower()
    return MachineDevice(name(node), kind, called(node), place(node), None if above is None else name(above))


def links(limits: BandwidthLimits, causes: Sequence[Limit]) -> Iterator[LoadedLink]:
    """Yields every link between two devices, each direction by itself, with its load.

    If a link limits the graph, all links of its class count as limiting.
    """
    names = [between(limits.owner(number), link) for number, link in enumerate(limits.links)]
    limiting = {link for cause in causes for link in cause.links}
    classes = {each for each, link in zip(limits.classes, names, strict=True) if link in limiting}
    for number, link in enumerate(limits.links):
        if link.kind == "LOC":
            continue
        of_channels, each = limits.loads.get(number, {}), limits.classes[number]
        full = sum(of_channels.values())
        needed = min(limits.before.bw_intra_gbs, limits.before.bw_inter_gbs)
        yield LoadedLink(
            link=names[number],
            start=name(limits.owner(number)),
            end=name(link.to),
            kind=KINDS[link.kind],
            link_gbs=limits.found.bare_gbs[number],
            carries_gbs=full,
            channels_gbs=dict(of_channels),
            limits=each in classes and limits.found.bare_gbs[number] - full < needed,
        )


KEPT = 32  # searches that are kept; the explanation of one graph makes about 15


class RelaxedSearch:
    """The graphs that are found for a request under a relaxation.

    Each graph is searched when it is first requested. If ``key`` is not None, it is also kept on disk under this key.
    """

    def __init__(self, request: SearchRequest, nccl: Release, freed: Relaxation, key: str | None = None) -> None:
        self._asked = request, nccl, freed
        self._key = key
        self._found = {} if key is None else _of_disk(key)
        self._rest: Iterator[tuple[str, Found]] | None = None

    def found(self, graph: str) -> Found:
        """The numbers of a graph. BadInput if NCCL does not search it or refuses the request, BadTopology if the
        topology is invalid."""
        if graph not in self._found:
            self._rest = self._rest or self._in_order()
            self._search_up_to(graph, self._rest)
            if self._key is not None:
                cached.keep(self._key, to_json(self._found))
        return self._found[graph]

    def _search_up_to(self, graph: str, rest: Iterator[tuple[str, Found]]) -> None:
        for each, found in rest:
            self._found[each] = found
            if each == graph:
                return
        raise not_searched(graph, list(self._found))

    def _in_order(self) -> Iterator[tuple[str, Found]]:
        request, nccl, freed = self._asked
        loop, searched = begun(request, nccl, freed)
        for graph, of_release in searched:
            trial = of_release
            if graph == "tree" and freed.count_of_ring:
                trial = Trial(Pattern.BalancedTree, False, 1, freed.channels * nccl.limits.max_channels // 2)
                loop.compute(trial)
            yield graph, summary(loop.system, trial)


def _of_disk(key: str) -> dict[str, Found]:
    try:
        return {graph: Found(**row) for graph, row in cached.kept(key).items()}
    except (OSError, *cached.OF_ANOTHER_FORM):
        return {}


def again(request: SearchRequest, nccl: str, freed: Relaxation | None = None) -> RelaxedSearch:
    """The graphs of a request in a release. Raises BadTopology and BadInput as the search does."""
    return _kept(json.dumps(asdict(request), sort_keys=True), nccl, freed or Relaxation())


@lru_cache(maxsize=KEPT)
def _kept(request: str, nccl: str, freed: Relaxation) -> RelaxedSearch:
    links, *others = (getattr(freed, each.name) for each in fields(freed))
    key = cached.key_of("numbers", request, cached.rules_of(nccl), json.dumps([sorted(map(to_json, links)), *others]))
    return RelaxedSearch(request_of(request), release.load(nccl), freed, key)
