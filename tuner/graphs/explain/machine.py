"""The machine as NCCL knows it, with what the channels take of every link: what a picture of it is drawn from."""

from collections.abc import Iterator, Sequence

from tuner.graphs.explain.limits import Limits
from tuner.graphs.explain.links import KINDS, between, called, name
from tuner.graphs.explain.records import Device, Limit, LoadedLink
from tuner.graphs.system import Kind, Node, System

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
