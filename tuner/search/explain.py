"""How a graph was found: every search that was tried for it, what came of it, and which link refused most often."""

from collections.abc import Sequence
from dataclasses import dataclass

from tuner import release
from tuner.base.errors import BadInput, one_of
from tuner.base.names import Pattern
from tuner.release.environment import Environment
from tuner.search.channels import DONE
from tuner.search.graphs import in_order
from tuner.search.loop import Loop
from tuner.search.prepare import prepared
from tuner.search.recorded import Attempt
from tuner.search.request import Request
from tuner.search.system import Adapter, Gpu, Kind, Node, System


@dataclass(frozen=True, slots=True)
class Refusal:
    """The link that had too little left most often in one search; None where all had enough."""

    link: str  # from a device to the next, such as "gpu:3 -> pci 0000:1b:00.0"
    times: int
    link_gbs: float  # with nothing on it


@dataclass(frozen=True, slots=True)
class SearchTried:
    """One search: what was asked of every channel, and what it found."""

    pattern: Pattern
    bw_intra_gbs: float
    bw_inter_gbs: float
    type_intra: str
    type_inter: str
    cross_nic: int
    same_channels: bool
    min_channels: int
    max_channels: int
    tried: int  # GPUs
    allowed: int  # GPUs that may be tried
    outcome: str
    repeats: bool  # one before, and so nothing was tried again
    channels: int  # of the best graph after it
    refused: Refusal | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """A graph's searches in their order, and what bounds its bandwidths from the start."""

    graph: str
    max_gbs: float  # of the best path from a GPU: a channel has no more
    total_gbs: float  # of all links of a GPU: channels together have no more
    searches: tuple[SearchTried, ...]


def explain(request: Request, nccl: str, graph: str) -> Explanation:
    """The searches that NCCL ``nccl`` makes for a graph. Errors: BadInput for one that it does not search there."""
    loaded = release.load(nccl)
    variables = Environment(request.environment, non_numeric_is_default=loaded.environment.non_numeric_is_default)
    system = prepared(request, loaded, variables)
    bare = {id(link): link.gbs for node in system.everything() for link in node.links}
    loop = Loop(system, loaded, variables)
    names = []
    attempts = loop.channels.record()
    for name, _ in in_order(loop, request, loaded, variables):
        if name == graph:
            tried = _tried(system, loop, attempts, bare)
            return Explanation(graph, system.max_gbs, system.total_gbs, tried)
        names.append(name)
        attempts = loop.channels.record()
    raise BadInput(f"graphs: no {graph} is searched there; {one_of(names)}")


def _tried(system: System, loop: Loop, attempts: Sequence[Attempt], bare: dict[int, float]) -> tuple[SearchTried, ...]:
    names, load = system.types.names, loop.channels.load
    owners = {id(link): node for node in system.everything() for link in node.links}
    searches = []
    for attempt in attempts:
        refusal = None
        if attempt.refused:
            (number, times), *_ = attempt.refused.most_common(1)
            link = load.links[number]
            where = f"{_name(owners[id(link)])} -> {_name(link.to)}"
            refusal = Refusal(where, times, bare[id(link)])
        searches.append(
            SearchTried(
                pattern=attempt.asked.pattern,
                bw_intra_gbs=attempt.asked.bw_intra,
                bw_inter_gbs=attempt.asked.bw_inter,
                type_intra=names[attempt.asked.type_intra],
                type_inter=names[attempt.asked.type_inter],
                cross_nic=attempt.asked.cross_nic,
                same_channels=attempt.asked.same_channels,
                min_channels=attempt.asked.min_channels,
                max_channels=attempt.asked.max_channels,
                tried=attempt.allowed - max(attempt.left, 0),
                allowed=attempt.allowed,
                outcome=_outcome(attempt),
                repeats=attempt.known,
                channels=attempt.channels,
                refused=refusal,
            )
        )
    return tuple(searches)


def _outcome(attempt: Attempt) -> str:
    if attempt.left == DONE:
        return "all channels"
    found = "better" if attempt.found else "nothing better"
    return f"{found}, out of tries" if attempt.left == 0 else found


def _name(node: Node) -> str:
    if isinstance(node, Gpu):
        return f"gpu:{node.dev}"
    if isinstance(node, Adapter):
        return f"net:{node.dev}"
    if node.kind is Kind.CPU:
        return f"cpu:{node.id}"
    if node.kind is Kind.NVS:
        return "NVSwitch"
    domain, bus, device, function = node.id >> 20, node.id >> 12 & 0xFF, node.id >> 4 & 0xFF, node.id & 0xF
    return f"{node.kind.name.lower()} {domain:04x}:{bus:02x}:{device:02x}.{function:x}"
