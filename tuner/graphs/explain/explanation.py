"""The explanation of one graph, put together."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import lru_cache
from typing import Any

from tuner import release
from tuner.base.names import Pattern
from tuner.base.records import to_json
from tuner.graphs import cached
from tuner.graphs.explain.detours import Detours
from tuner.graphs.explain.lifts import lifts
from tuner.graphs.explain.limits import BandwidthLimits
from tuner.graphs.explain.links import KINDS, between, called, name
from tuner.graphs.explain.reasons import Reasons
from tuner.graphs.explain.records import (
    Found,
    GraphExplanation,
    Limit,
    LinkRejection,
    LoadedLink,
    MachineDevice,
    SearchTried,
)
from tuner.graphs.explain.runs import Relaxation, SearchRun, begun, loads, not_searched, run, summary
from tuner.graphs.network_channels import DONE
from tuner.graphs.request import SearchRequest
from tuner.graphs.system import DeviceKind, System, SystemDevice
from tuner.graphs.trial import Attempt, Trial
from tuner.release import Release


def explain(request: SearchRequest, nccl: str, graph: str, with_lifts: bool = True) -> GraphExplanation:
    """The searches that NCCL ``nccl`` makes for a graph, what they end at, and ``with_lifts`` what would lift that.

    Errors: BadInput for one that it does not search there, and as the search's.
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
    owners = {id(link): node for node in found.system.everything() for link in node.links}
    links = found.loop.channels.load.links
    return tuple(
        _search(found, attempt, [between(owners[id(link)], link) for link in links]) for attempt in found.attempts
    )


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


# The machine as NCCL knows it, with what the channels take of every link: what a picture of it is drawn from.

DOWN = ("PIX", "C2C", "NET")


def devices(system: System) -> Iterator[MachineDevice]:
    """Every device, each below what it hangs on; a GPU is one device, whatever ranks are on it."""
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
    return MachineDevice(name(node), kind, called(node), None if above is None else name(above))


def links(limits: BandwidthLimits, causes: Sequence[Limit]) -> Iterator[LoadedLink]:
    """Every link of two devices, both directions; those that are alike with one that limits the graph limit it, too."""
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


KEPT = 32  # searches; one graph's explanation makes about 15


class RelaxedSearch:
    """The graphs of one request, each searched when it is first asked for; with ``key`` kept on disk under it."""

    def __init__(self, request: SearchRequest, nccl: Release, freed: Relaxation, key: str | None = None) -> None:
        self._asked = request, nccl, freed
        self._key = key
        self._found = {} if key is None else _of_disk(key)
        self._rest: Iterator[tuple[str, Found]] | None = None

    def found(self, graph: str) -> Found:
        """The numbers of a graph. BadInput for one that is not searched there, and as the search's."""
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
        rows: dict[str, Any] = cached.kept(key)
        return {graph: Found(**row) for graph, row in rows.items()}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


@dataclass(frozen=True, slots=True)
class _Key:
    """A search; requests are the same whose texts are."""

    text: str
    nccl: str
    freed: Relaxation
    request: SearchRequest = field(compare=False)

    @property
    def on_disk(self) -> str:
        """Under which its numbers are kept."""
        links, *others = (getattr(self.freed, each.name) for each in fields(self.freed))
        freed = json.dumps([sorted(map(to_json, links)), *others])
        return cached.key_of("numbers", self.text, cached.rules_of(self.nccl), freed)


def again(request: SearchRequest, nccl: str, freed: Relaxation | None = None) -> RelaxedSearch:
    """A request's graphs in a release. Errors: as the search's."""
    return _kept(_Key(json.dumps(asdict(request), sort_keys=True), nccl, freed or Relaxation(), request))


@lru_cache(maxsize=KEPT)
def _kept(key: _Key) -> RelaxedSearch:
    return RelaxedSearch(key.request, release.load(key.nccl), key.freed, key.on_disk)
