"""One call, by itself or in a group, with its channels, which determine its order of additions and its schedule."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from tuner import release
from tuner.answers.exchanges import ExchangeQuery, calls_of
from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput
from tuner.base.names import Algorithm, PeerCall
from tuner.base.sizes import human_bytes
from tuner.base.spelling import option
from tuner.emulator.connect import Across, summarize
from tuner.emulator.full_launch import launch
from tuner.emulator.group import Operation
from tuner.emulator.launches import Work
from tuner.emulator.p2p.plan import POINT_TO_POINT, plan
from tuner.emulator.p2p.records import ExchangeKernel
from tuner.emulator.request import NonClassicPath, Request
from tuner.emulator.selection import Selection, of_picks
from tuner.emulator.steps.records import Schedule
from tuner.emulator.steps.schedule import schedule, schedule_of_exchanges
from tuner.scenario import Scenario
from tuner.scenario.p2p import heads_of, p2p_context
from tuner.scenario.resolved import ResolvedScenario

PAT_READ_FROM = "2.26.2"  # the first release whose PAT's steps were read


@dataclass(frozen=True, slots=True)
class Alone:
    """One call of ``bytes`` (NCCL's nBytes), launched by itself or together with the other calls of a group."""

    scenario: Scenario
    request: Request
    bytes: int
    work: Work
    across: Across

    @property
    def ranks(self) -> int:
        """Number of ranks of the communicator."""
        return sum(map(len, self.across.ranks_of_nodes))

    @property
    def pick(self) -> str:
        """Algorithm and protocol of the pick, such as ``Ring/LL``."""
        return f"{self.work.algorithm.name}/{self.work.protocol.name}"

    @property
    def title(self) -> str:
        """Text that describes the call, its pick and the communicator."""
        call = f"{self.request.title} of {human_bytes(self.bytes)}"
        return f"{call}, {self.pick} on {len(self.work.shares)} channels, {self.scenario.heading}"


def calls_alone(
    scenario: Scenario, request: Request, sizes: Sequence[int], root: int = 0, together: bool = False
) -> list[Alone | NonClassicPath]:
    """One call per size (nBytes): how an algorithm runs it, or the path by which it bypasses algorithms.

    ``together``: the calls form one group, in this order. BadInput if the root is not a rank, if nodes pick
    differently, or if a group leaves the classic path. NoAlgorithm if nothing can run.
    """
    if not 0 <= root < scenario.ranks:
        raise BadInput(f"{option('root')} {root} is no rank here: valid are 0 to {scenario.ranks - 1}")
    selection = Selection(scenario.communicator())
    _check_agreement(scenario, request, sizes)
    resolved = scenario.resolve()
    paths = selection.non_classic_paths(request, sizes)
    operations = [Operation(request, size, root) for size in sizes]
    if together:
        if any(path is not None for path in paths):
            raise BadInput(
                f"{option('group')} is only emulated for calls on the classic path: use {option('buffers')} plain, and "
                "more than one rank"
            )
        launches = [launch(selection, operations, lambda: heads_of(resolved))]
        if any(kernel.symmetric is not None for kernel in launches[0].kernels):
            raise BadInput(
                f"{option('group')} is not emulated where a single symmetric kernel would run several of its calls: "
                f"use {option('buffers')} plain"
            )
    else:
        classic = [each for each, path in zip(operations, paths, strict=True) if path is None]
        launches = [launch(selection, [each], lambda: heads_of(resolved)) for each in classic]
    works = [
        sorted((work for kernel in each.kernels for work in kernel.works), key=lambda work: work.place)
        for each in launches
    ]
    left = [work for of_launch in works for work in of_launch]
    simple = all(work.algorithm in (Algorithm.Ring, Algorithm.Tree) for work in left)
    across = resolved.rings_and_trees if simple else summarize(resolved.connected)
    following = iter(left)
    return [
        Alone(scenario, request, size, next(following), across) if path is None else path
        for size, path in zip(sizes, paths, strict=True)
    ]


def pat_not_read(call: Alone) -> bool:
    """Whether a call runs PAT in a release whose PAT steps are not known."""
    names = release.names()
    return call.work.algorithm is Algorithm.PAT and names.index(call.scenario.nccl) < names.index(PAT_READ_FROM)


def _check_agreement(scenario: Scenario, request: Request, sizes: Sequence[int]) -> None:
    """Raises BadInput if ranks of other nodes pick differently from rank 0: NCCL then hangs or gives wrong results."""
    views = scenario.resolve().views_of_kinds
    if len(views) == 1:
        return
    picks = [Selection(view).pick(request, sizes) for _, view in views]
    for other in picks[1:]:
        for mine, theirs in zip(of_picks(picks[0]), of_picks(other), strict=True):
            if (mine.name, mine.channels) != (theirs.name, theirs.channels):
                raise BadInput(
                    f"ranks on different nodes pick differently: {mine.name} and {theirs.name}; 'nccl-tuner pick' "
                    "shows which ranks"
                )


BY_LOADS = "its kernels load and store in peers' memory, and send no messages"


def of_collective(scenario: Scenario, request: Request, nbytes: int, root: int) -> Schedule:
    """The schedule of a collective of ``nbytes`` (NCCL's nBytes). BadInput if no schedule is emulated, or if nodes
    pick differently.
    """
    (call,) = calls_alone(scenario, request, [nbytes], root)
    if isinstance(call, NonClassicPath):
        raise BadInput(f"{call.name} has no schedule of messages: {BY_LOADS}: set {option('env')} NCCL_ALGO=Ring")
    if pat_not_read(call):
        raise BadInput(
            f"the schedule of PAT is only known from NCCL {PAT_READ_FROM} on: set {option('env')} NCCL_ALGO=Ring"
        )
    return replace(schedule(call.work, call.across), title=call.title)


def of_exchange(scenario: Scenario, asked: ExchangeQuery) -> Schedule:
    """The schedule of an AllToAll, Gather or Scatter of ``asked.sizes[0]`` bytes in all, or of a send from
    ``asked.rank`` to ``asked.root``.

    BadInput if the release does not have the call.
    """
    resolved, (size,) = ResolvedScenario(scenario), asked.sizes

    @cache
    def kernels_of(rank: int) -> tuple[ExchangeKernel, ...]:
        where, own = p2p_context(resolved, rank), asked
        if point_to_point:
            if rank not in (asked.rank, asked.root):
                return ()
            if rank == asked.root:  # the other end
                own = replace(asked, function=_other(asked.function), rank=rank, root=asked.rank)
        return plan(where, calls_of(own, size, where))

    point_to_point = asked.function in POINT_TO_POINT
    for name, rank in (("rank", asked.rank), ("peer" if point_to_point else "root", asked.root)):
        if not 0 <= rank < scenario.ranks:
            raise BadInput(f"{option(name)} {rank} is no rank here: valid are 0 to {scenario.ranks - 1}")
    if point_to_point and asked.rank == asked.root:
        raise BadInput(
            f"{option('peer')} {asked.root}: a send to the rank itself is a copy: name another rank than "
            f"{option('rank')}"
        )
    kernels_of(asked.root)
    words = f"{asked.function.name} of {human_bytes(size)}, {scenario.heading}"
    return replace(schedule_of_exchanges(kernels_of, scenario.ranks), title=words)


def _other(function: PeerCall) -> PeerCall:
    send, receive = POINT_TO_POINT
    return receive if function is send else send
