"""Changes of the machine and of variables that may lift a limit, each tried by searching again."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tuner.base.errors import TunerError
from tuner.graphs.explain import changes
from tuner.graphs.explain.limits import Limits, is_more
from tuner.graphs.explain.links import LinkClass, between, listed
from tuner.graphs.explain.records import Found, Lift, Limit, Reason
from tuner.graphs.explain.runs import Run, summary
from tuner.graphs.request import Request
from tuner.graphs.system import Kind
from tuner.machine.topology.edit import edited


@dataclass(frozen=True, slots=True)
class Idea:
    """A change that may help, in words and as the changes that ``whatif`` takes: named edits, or variables."""

    change: str
    edits: Mapping[str, str] = field(default_factory=dict)  # in the words of tuner.machine.topology.edit
    environment: Mapping[str, str | None] = field(default_factory=dict)  # None: not set

    @property
    def assignments(self) -> tuple[str, ...]:
        """KEY=VALUE as ``--change`` takes them."""
        hardware = (f"{key}={value}" for key, value in self.edits.items())
        variables = (
            f"unset={name}" if value is None else f"{name}={value}" for name, value in self.environment.items()
        )
        return (*hardware, *variables)


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


def _ideas(limits: Limits, causes: Sequence[Limit], kinds: set[str]) -> Iterator[Idea]:
    found = limits.found
    yield from _variables(found, kinds)
    if found.request.others:
        return  # whose hosts differ: a change of hardware is of all of them
    system = found.system
    direct = [gpu.gpu_direct for gpu in system.gpus] + [net.gpu_direct for net in system.nets]
    if "gpu_direct" in kinds and not all(direct):
        value = changes.gpu_direct(found.request.topology)
        yield Idea("GPUDirect RDMA with every GPU and adapter", {"gpudirect": value})
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
    topology, kinds = found.request.topology, {each.kind for each in classes}
    edits, words = dict[str, str](), list[str]()
    if "NET" in kinds and (speed := changes.twice_the_speed(topology)):
        edits["nic-gbps"] = speed
        words.append("adapters of twice the speed")
    pcie = frozenset(each for each in classes if each.kind == "PIX")
    if pcie and (links := changes.faster_pcie(found, pcie)):
        edits["pcie"] = links
        words.append(f"PCIe of the next generation at the {listed(sorted({_place(each) for each in pcie}))}")
    if "NVL" in kinds and (count := changes.more_nvlinks(topology)):
        edits["nvlinks"] = count
        words.append(f"{count} NVLinks at each GPU")
    if "SYS" in kinds:
        edits["sockets"] = "1"
        words.append("all devices on one socket")
    return Idea(", ".join(words), edits) if edits else None


def _place(of: LinkClass) -> str:
    if Kind.NIC in of.ends:
        return "adapters"
    return "GPUs" if Kind.GPU in of.ends or Kind.DEV in of.ends else "switches"


def _adapters(found: Run, rest: Idea | None) -> Iterator[Idea]:
    """One adapter more, and one more beside each, with ``rest`` where that would be the next limit."""
    topology, used = found.request.topology, {net.pci.lower() for net in found.system.nets if net.pci}
    placed = {place: buses for place, buses in changes.places_of_adapters(topology).items() if used & set(buses)}
    if not placed:
        return
    first, buses = next(iter(placed.items()))
    where = f"CPU {first.removeprefix('cpu:')}" if first.startswith("cpu:") else f"PCIe switch {first}"
    yield Idea(f"a second adapter under {where}", {"add-nic": changes.more_adapters(topology, {first: buses[:1]})})
    every = changes.more_adapters(topology, placed)
    if sum(map(len, placed.values())) > 1:
        yield Idea("a second adapter beside each", {"add-nic": every})
    if rest is not None:
        yield Idea(f"a second adapter beside each, {rest.change}", {**rest.edits, "add-nic": every})
