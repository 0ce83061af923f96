"""Changes of the machine and of variables that may lift a limit, each tried by searching again."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tuner.base.errors import TunerError
from tuner.search.explain import changes
from tuner.search.explain.changes import Change, changed
from tuner.search.explain.limits import Limits, is_more
from tuner.search.explain.links import LinkClass, between, called, listed
from tuner.search.explain.records import Found, Lift, Limit, Reason
from tuner.search.explain.runs import Run, summary
from tuner.search.request import Request
from tuner.search.system import Kind


@dataclass(frozen=True, slots=True)
class Idea:
    """A change that may help."""

    change: str
    edits: Sequence[Change] = ()
    environment: Mapping[str, str | None] = field(default_factory=dict)  # None: not set


def lifts(
    limits: Limits, causes: Sequence[Limit], reasons: Sequence[Reason], again: Callable[[Request], Found]
) -> list[Lift]:
    """Every idea with what the search then finds, those that help first; one that NCCL refuses is left out."""
    found, tried = limits.found, list[Lift]()
    for idea in _ideas(limits, causes, {reason.kind for reason in reasons}):
        lift = _tried(found, idea, again)
        if lift is not None:
            tried.append(lift)
    return sorted(tried, key=lambda lift: not lift.more)


def _tried(found: Run, idea: Idea, again: Callable[[Request], Found]) -> Lift | None:
    environment = {**found.request.environment, **idea.environment}
    kept = {name: value for name, value in environment.items() if value is not None}
    topology = changed(found.request.topology, *idea.edits) if idea.edits else found.request.topology
    request = replace(found.request, topology=topology, environment=kept)
    try:
        then = again(request)
    except TunerError:
        return None
    more = is_more(then, summary(found.system, found.trial))
    return Lift(idea.change, then, more, kept if idea.environment else {}, topology if idea.edits else None)


def _ideas(limits: Limits, causes: Sequence[Limit], kinds: set[str]) -> Iterator[Idea]:
    found = limits.found
    yield from _variables(found, kinds)
    system = found.system
    direct = [gpu.gpu_direct for gpu in system.gpus] + [net.gpu_direct for net in system.nets]
    if "gpu_direct" in kinds and not all(direct):
        yield Idea("GPUDirect RDMA with every GPU and adapter", [changes.gpu_direct])
    for cause in causes:
        yield from _hardware(limits, cause)


def _variables(found: Run, kinds: set[str]) -> Iterator[Idea]:
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


def _hardware(limits: Limits, cause: Limit) -> Iterator[Idea]:
    """Faster links where the limit is; and more adapters where it is at these."""
    found = limits.found
    numbers = {between(limits.owner(number), link): number for number, link in enumerate(limits.links)}
    classes = [limits.classes[numbers[link]] for link in cause.links]
    at_adapters = [each for each in classes if Kind.NET in each.ends or Kind.NIC in each.ends]
    if idea := _faster(found, classes):
        yield idea
    if found.system.several_nodes and at_adapters:
        rest = _faster(found, [each for each in classes if each not in at_adapters])
        yield from _adapters(found, rest)


def _faster(found: Run, classes: Sequence[LinkClass]) -> Idea | None:
    """More of all these links."""
    edits, words, kinds = list[Change](), list[str](), {each.kind for each in classes}
    if "NET" in kinds:
        edits.append(changes.twice_the_adapters)
        words.append("adapters of twice the speed")
    pcie = frozenset(each for each in classes if each.kind == "PIX")
    if pcie:
        edits.append(changes.faster_pcie(found, pcie))
        words.append(f"PCIe of the next generation at the {listed(sorted({_place(each) for each in pcie}))}")
    if "NVL" in kinds:
        edits.append(changes.twice_the_nvlinks)
        words.append("twice as many NVLinks")
    if "SYS" in kinds:
        edits.append(changes.one_socket)
        words.append("all devices on one socket")
    return Idea(", ".join(words), edits) if edits else None


def _place(of: LinkClass) -> str:
    if Kind.NIC in of.ends:
        return "adapters"
    return "GPUs" if Kind.GPU in of.ends or Kind.DEV in of.ends else "switches"


def _adapters(found: Run, rest: Idea | None) -> Iterator[Idea]:
    """One adapter more, and one more beside each, with ``rest`` where that would be the next limit."""
    placed = [net for net in found.system.nets if net.pci]
    if not placed:
        return
    first = placed[0]
    above = next((link.to for link in first.links[0].to.links if link.kind == "PIX"), None)
    where = f"beside adapter {first.dev}" if above is None else f"under {called(above)}"
    yield Idea(f"a second adapter {where}", [changes.more_adapters(first.pci.lower())])
    if len(placed) > 1:
        yield Idea("a second adapter beside each", [changes.more_adapters()])
    if rest is not None:
        yield Idea(f"a second adapter beside each, {rest.change}", [*rest.edits, changes.more_adapters()])
