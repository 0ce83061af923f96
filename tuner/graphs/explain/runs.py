"""One graph searched with all that was tried for it: as NCCL searches it, or freed from something that may limit it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from tuner.base.errors import BadInput, one_of
from tuner.graphs.explain.links import LinkClass, class_of
from tuner.graphs.explain.records import Found
from tuner.graphs.graph_file import of_request
from tuner.graphs.graphs import in_order
from tuner.graphs.loop import Loop
from tuner.graphs.prepare import built, complete
from tuner.graphs.rejections import Attempt
from tuner.graphs.request import Request
from tuner.graphs.system import Adapter, System
from tuner.graphs.trial import Trial
from tuner.release import Release
from tuner.release.environment import Environment

FIRST = "ring"  # of the graphs that are searched


@dataclass(frozen=True, slots=True)
class Relaxation:
    """What a search is freed from, to see whether that is what limits it."""

    links: frozenset[LinkClass] = frozenset()  # these have twice the bandwidth
    steps_gbs: tuple[float, ...] = ()  # bandwidths of a channel that are tried as well
    tries: int = 1  # so many times as many
    any_path: bool = False  # the farthest paths may be used from the first search on
    channels: int = 1  # so many times as many may be laid
    count_of_ring: bool = False  # a tree may have other numbers of channels than the ring


def both(first: Relaxation, second: Relaxation) -> Relaxation:
    """Relaxation from what either is freed from."""
    return Relaxation(
        links=first.links | second.links,
        steps_gbs=(*first.steps_gbs, *second.steps_gbs),
        tries=first.tries * second.tries,
        any_path=first.any_path or second.any_path,
        channels=first.channels * second.channels,
        count_of_ring=first.count_of_ring or second.count_of_ring,
    )


@dataclass(slots=True)
class Run:
    """What came of the search for one graph."""

    request: Request
    nccl: Release
    variables: Environment
    graph: str
    system: System
    loop: Loop
    trial: Trial
    ring: Trial
    attempts: Sequence[Attempt]
    bare_gbs: list[float] = field(default_factory=list)  # of each link, by its number, with nothing on it


def summary(system: System, trial: Trial) -> Found:
    """The numbers of a graph."""
    names, intra, inter = system.types.names, trial.channels * trial.bw_intra, trial.channels * trial.bw_inter
    types = names[trial.type_intra], names[trial.type_inter]
    return Found(trial.channels, trial.bw_intra, trial.bw_inter, intra, inter, *types, trial.cross_nic)


def run(request: Request, nccl: Release, graph: str) -> Run:
    """Searches up to a graph by its name. BadInput for one that is not searched there, and as the search's."""
    loop, searched = begun(request, nccl, Relaxation())
    bare_gbs, names = list(loop.channels.load.left), list[str]()
    recorder = loop.channels.record() if graph == FIRST else None
    ring: Trial | None = None
    for name, trial in searched:
        ring = ring or trial
        if name == graph:
            loop.channels.stop_recording()
            attempts = recorder.attempts if recorder else ()
            return Run(request, nccl, loop.variables, graph, loop.system, loop, trial, ring, attempts, bare_gbs)
        names.append(name)
        recorder = loop.channels.record()
    raise not_searched(graph, names)


def not_searched(graph: str, names: Sequence[str]) -> BadInput:
    """The error of a graph that is none of those searched."""
    return BadInput(f"graphs: no {graph} is searched there; {one_of(names)}")


def begun(request: Request, nccl: Release, freed: Relaxation) -> tuple[Loop, Iterator[tuple[str, Trial]]]:
    """A search freed from something, and each graph by name, once it is searched. Errors: as the search's."""
    nccl = _freed(nccl, freed)
    variables = Environment(request.environment, non_numeric_is_default=nccl.environment.non_numeric_is_default)
    system = built(request, nccl)
    _widen(system, freed.links)
    complete(system, request, nccl, variables)
    loop = Loop(system, nccl, variables, of_request(request, nccl.search.dump))
    if freed.any_path:
        loop.bounds.near_intra, loop.bounds.near_inter = loop.bounds.far_intra, loop.bounds.far_inter
    return loop, in_order(loop, request, nccl, variables)


def _freed(nccl: Release, freed: Relaxation) -> Release:
    search, tries, factor = nccl.search, nccl.search.tries, freed.tries
    if factor != 1:
        tries = replace(
            tries, all=tries.all * factor, one=tries.one * factor, same_channels=tries.same_channels * factor
        )
    intra, inter = (
        {row: tuple(sorted({*steps, *freed.steps_gbs}, reverse=True)) for row, steps in each.items() if steps}
        for each in (search.intra_gbs, search.inter_gbs)
    )
    limits = replace(nccl.limits, max_channels=nccl.limits.max_channels * freed.channels)
    return replace(nccl, limits=limits, search=replace(search, tries=tries, intra_gbs=intra, inter_gbs=inter))


def _widen(system: System, classes: frozenset[LinkClass]) -> None:
    for node in system.everything():
        for link in node.links:
            if class_of(node, link) in classes:
                link.gbs *= 2
                if link.kind == "NET" and isinstance(node, Adapter):
                    node.gbs *= 2
