"""The explanation of one graph, put together."""

from collections.abc import Iterator, Sequence

from tuner import release
from tuner.graphs.explain.detours import Detours
from tuner.graphs.explain.lifts import lifts
from tuner.graphs.explain.limits import Limits
from tuner.graphs.explain.links import KINDS, between, called, name
from tuner.graphs.explain.loads import loads
from tuner.graphs.explain.reasons import Reasons
from tuner.graphs.explain.records import Device, Explanation, Found, Limit, LinkRejection, LoadedLink, SearchTried
from tuner.graphs.explain.relaxed_search import again
from tuner.graphs.explain.runs import Run, run, summary
from tuner.graphs.network_channels import DONE
from tuner.graphs.rejections import Attempt
from tuner.graphs.request import Request
from tuner.graphs.system import Kind, Node, System


def explain(request: Request, nccl: str, graph: str, with_lifts: bool = True) -> Explanation:
    """The searches that NCCL ``nccl`` makes for a graph, what they end at, and ``with_lifts`` what would lift that.

    Errors: BadInput for one that it does not search there, and as the search's.
    """
    loaded = release.load(nccl)
    found = run(request, loaded, graph)
    taken = loads(found)
    before, searches = summary(found.system, found.trial), _searches(found)
    reasons = Reasons(found)
    others = (*reasons.others(), *Detours(found).all())
    limits = Limits(found, taken, lambda freed: again(request, nccl, freed).found(graph))
    causes = limits.all() if found.trial.channels else ()

    def of_changed(changed: Request) -> Found:
        return again(changed, nccl).found(graph)

    return Explanation(
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


def _searches(found: Run) -> tuple[SearchTried, ...]:
    owners = {id(link): node for node in found.system.everything() for link in node.links}
    links = found.loop.channels.load.links
    return tuple(
        _search(found, attempt, [between(owners[id(link)], link) for link in links]) for attempt in found.attempts
    )


def _search(found: Run, attempt: Attempt, links: Sequence[str]) -> SearchTried:
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


def devices(system: System) -> Iterator[Device]:
    """Every device, each below what it hangs on; a GPU is one device, whatever ranks are on it."""
    seen = set[str]()
    for cpu in system.cpus:
        yield from _below(cpu, None, seen)
    for node in system.nodes[Kind.NVS]:
        yield _device(node, None)
    for node in (*system.gpus, *system.nets):
        if name(node) not in seen:
            seen.add(name(node))
            yield _device(node, None)


def _below(node: Node, above: Node | None, seen: set[str]) -> Iterator[Device]:
    if name(node) in seen:
        return
    seen.add(name(node))
    yield _device(node, above)
    for link in node.links:
        if link.kind in DOWN and link.to.kind is not Kind.CPU:
            yield from _below(link.to, node, seen)


def _device(node: Node, above: Node | None) -> Device:
    kind = "gpu" if node.kind is Kind.DEV else node.kind.name.lower()
    return Device(name(node), kind, called(node), None if above is None else name(above))


def links(limits: Limits, causes: Sequence[Limit]) -> Iterator[LoadedLink]:
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
