"""Compares the emulator with the real library on one communicator: all cells, picks, channels and thread counts,
exactly."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.base.errors import BadInput, NoAlgorithm, OracleFailed
from tuner.base.names import Algorithm, Buffers, Collective, DataType, Op, Protocol
from tuner.base.numerics import shortest
from tuner.emulator.connect import Connected
from tuner.emulator.group import GroupPlan, Operation, not_emulated, plan
from tuner.emulator.request import COPY_ENGINES, NonClassicPath, Request
from tuner.emulator.selection import Pick, Selection, of_picks
from tuner.graphs import find
from tuner.machine.graphs import EMPTY, Graph, OrderedGraph
from tuner.oracle.answers import OracleLaunch
from tuner.oracle.api import Oracle
from tuner.oracle.conformance.mismatches import Comparing, MatchReport, Mismatch
from tuner.oracle.facts import Facts, OracleTables
from tuner.oracle.launches import LaunchedGroup
from tuner.oracle.search import ordered_graphs
from tuner.scenario import Scenario

ALL_COLLECTIVES = tuple(Request(collective, DataType.float32, Op.sum) for collective in Collective)

NO_GRAPH = OrderedGraph(EMPTY, ())
TABLES = ("latency_us", "bandwidth_gbs", "max_threads", "thread_thresholds_bytes")

# What a report counts, in the order in which it is printed.
KINDS = ("graphs", "tables", "cells", "picks", "channels", "threads", "groups")


def sizes_bytes(request: Request, ranks: int, most: int = 16 << 30) -> list[int]:
    """Sizes from the smallest possible to ``most``: powers of two, their neighbours, and odd ones in between.

    A call can have each of these sizes: a count times the type's size (times the ranks for AllGather and
    ReduceScatter).
    """
    unit = request.unit_bytes(ranks)
    wanted: set[int] = set()
    power = 4
    while power <= most:
        wanted |= {power - unit, power, power + unit, power * 5 // 4 + 7, power * 31 // 20 + 3}
        power *= 2
    return sorted({max(unit, size // unit * unit) for size in wanted if size <= most})


def check(
    scenario: Scenario,
    requests: Sequence[Request] = ALL_COLLECTIVES,
    sizes: Sequence[int] | None = None,
    timeout_s: float = 120.0,
) -> MatchReport:
    """Compares one communicator; ``sizes`` default to :func:`sizes_bytes`. Raises the errors of the oracle and of the
    scenario.

    If the emulator says that NCCL refuses a call, libnccl has to refuse it, too; that counts as one pick.
    """
    comparing, requests = Comparing(), tuple(requests)
    views = scenario.resolve().views
    selection = Selection(views[0])
    alone = scenario.resolve().oracle_configuration_to_launch().without_tuner
    configuration = scenario.oracle_configuration()
    with Oracle(configuration, timeout_s=timeout_s) as oracle:
        _compare_graphs(comparing, scenario, oracle)
        _compare_across(comparing, scenario.resolve().connected, oracle.connected())
        compare_tables(comparing, selection, oracle.tables, oracle.facts)
        if len(views) > 1:
            last = Selection(scenario.resolve().last_view)
            compare_tables(comparing, last, oracle.last_rank_tables, oracle.last_rank_facts, " of the last rank")
        taken = []
        for request in requests:
            chosen = sizes or sizes_bytes(request, selection.communicator.ranks)
            if _refused(selection, request, chosen[0]):
                comparing.compare("picks", name(request), "refused", _refused_or_picked(oracle, request, chosen[0]))
                continue
            taken.append(request)
            # nobody asks for the costs of a call that bypasses the algorithms
            if not selection.may_leave_classic_path(request):
                compare_cells(comparing, selection, oracle, request, chosen)
            if not alone:
                compare_picks(comparing, selection, oracle, request, chosen)
        for number, group in enumerate(standard(selection, taken)):
            for where, (ours, theirs) in compare(selection, oracle, group).items():
                comparing.compare("groups", f"group {number} of {len(group.picks)} calls, {where}", ours, theirs)
    if alone:
        with Oracle(scenario.resolve().oracle_configuration_to_launch(), timeout_s=timeout_s) as oracle:
            for request in taken:
                chosen = sizes or sizes_bytes(request, selection.communicator.ranks)
                compare_picks(comparing, selection, oracle, request, chosen)
    return comparing.report(scenario.title)


def _compare_graphs(comparing: Comparing, scenario: Scenario, oracle: Oracle) -> None:
    """Compares every number and every channel of the graphs that the emulator's search finds, unless nodes differ."""
    nodes = scenario.resolve().nodes
    if len(nodes) > 1:
        return
    ((node, count),) = nodes
    ours, theirs = as_ranks_go_on(find(node.for_search(count > 1), scenario.nccl)), ordered_graphs(oracle)
    for graph in sorted(ours.keys() | theirs.keys()):
        own, other = ours.get(graph, NO_GRAPH), theirs.get(graph, NO_GRAPH)
        for each in fields(Graph):
            number, real = getattr(own.graph, each.name), getattr(other.graph, each.name)
            comparing.compare("graphs", f"{graph} {each.name}", number, real)
        for channel, (order, real) in enumerate(zip_longest(own.orders, other.orders)):
            comparing.compare("graphs", f"{graph} channel {channel}", order, real)


def as_ranks_go_on(found: Mapping[str, OrderedGraph]) -> dict[str, OrderedGraph]:
    """Cuts ring and tree to the same number of channels, as NCCL does (initTransportsRank, src/init.cc)."""
    pair = {name: found.get(name, NO_GRAPH) for name in ("ring", "tree")}
    both = min(each.graph.channels for each in pair.values())
    cut = {name: OrderedGraph(replace(each.graph, channels=both), each.orders[:both]) for name, each in pair.items()}
    return {**found, **{name: each for name, each in cut.items() if name in found}}


def _compare_across(comparing: Comparing, ours: Connected, theirs: Connected) -> None:
    """Compares every channel of every rank, with its neighbours and adapters; the comparisons count as "graphs"."""
    comparing.compare("graphs", "nodes of ranks", ours.node_of_rank, theirs.node_of_rank)
    for rank, (own, real) in enumerate(zip(ours.ranks, theirs.ranks, strict=True)):
        comparing.compare("graphs", f"peers of PAT of rank {rank}", own.pat_peers, real.pat_peers)
        for channel, (here, there) in enumerate(zip_longest(own.channels, real.channels)):
            comparing.compare("graphs", f"channel {channel} of rank {rank}", here, there)
        for channel, (head, real_head) in enumerate(zip_longest(own.nvls, real.nvls)):
            comparing.compare("graphs", f"NVLS channel {channel} of rank {rank}", head, real_head)


def _refused(selection: Selection, request: Request, size: int) -> bool:
    if selection.may_leave_classic_path(request):  # such a call may bypass the algorithms, and nothing refuses it then
        return False
    try:
        selection.pick(request, [size])
    except NoAlgorithm:
        return True
    return False


def _refused_or_picked(oracle: Oracle, request: Request, size: int) -> str:
    try:
        (launched,) = oracle.launch_on_any_path(request, [size])
    except OracleFailed as error:
        if not error.returned:  # it crashed or hangs
            raise
        return "refused"
    return _launch(launched)[0]


def compare_tables(
    comparing: Comparing, selection: Selection, tables: OracleTables, facts: Facts, whose: str = ""
) -> None:
    """Compares every number in the model's tables, and how many channels there are."""
    for name in TABLES:
        ours, theirs = getattr(selection.tables, name), getattr(tables, name)
        within = tuple(map(slice, theirs.shape))  # an older release has fewer algorithms
        _compare_arrays(comparing, "tables", ours[within], theirs, f"{name}{{}}{whose}".format)
    communicator = selection.communicator
    comparing.compare("tables", f"channels{whose}", communicator.channels, facts.n_channels)
    comparing.compare("tables", f"nvls_channels{whose}", communicator.nvls_channels, facts.nvls_channels)


def compare_cells(
    comparing: Comparing, selection: Selection, oracle: Oracle, request: Request, sizes: Sequence[int]
) -> None:
    """Compares every cell of the cost tables, as float32 bits."""
    ours = selection.cost_table(request, sizes)
    theirs = oracle.costs(request, sizes)
    ours = ours[:, : theirs.shape[1]]  # an older release has fewer algorithms

    def where(at: Sequence[int]) -> str:
        return f"{name(request)} {sizes[at[0]]} B {Algorithm(at[1]).name}/{Protocol(at[2]).name}"

    _compare_arrays(comparing, "cells", ours, theirs, where)


def _compare_arrays(
    comparing: Comparing, what: str, ours: NDArray[Any], theirs: NDArray[Any], where: Callable[[Sequence[int]], str]
) -> None:
    """Compares arrays of equal shape value by value; floats, also NaN, are compared by their bits."""

    def bits(values: NDArray[Any]) -> NDArray[Any]:
        return np.ascontiguousarray(values).view(np.uint32) if values.dtype == np.float32 else values

    value = shortest if theirs.dtype == np.float32 else int
    differ = bits(ours) != bits(theirs)
    mismatches = [
        Mismatch(what, where(at), value(ours[tuple(at)]), value(theirs[tuple(at)]))
        for at in np.argwhere(differ).tolist()
    ]
    comparing.add(what, differ.size, mismatches)


def compare_picks(
    comparing: Comparing, selection: Selection, oracle: Oracle, request: Request, sizes: Sequence[int]
) -> None:
    """Compares picks, with their channels and threads, with launches."""
    if selection.may_leave_classic_path(request):
        _compare_paths(comparing, selection, oracle, request, sizes)
        return
    picks = selection.pick(request, sizes)
    launched = oracle.launch(request, sizes)
    for row, (size, real) in enumerate(zip(sizes, launched, strict=True)):
        where = f"{name(request)} {size} B"
        pick = f"{Algorithm(picks.algorithm[row]).name}/{Protocol(picks.protocol[row]).name}"
        comparing.compare("picks", where, pick, pick_name(real))
        comparing.compare("channels", where, int(picks.channels[row]), real.channels)
        comparing.compare("threads", where, int(picks.threads[row]), real.threads)


def _compare_paths(
    comparing: Comparing, selection: Selection, oracle: Oracle, request: Request, sizes: Sequence[int]
) -> None:
    """Like :func:`compare_picks`; for a call off the classic path, compares its kernel, blocks and threads."""
    paths = dict(zip(sizes, selection.non_classic_paths(request, sizes), strict=True))
    staying = [size for size, path in paths.items() if path is None]
    if staying and _classic_refuses(selection, request, staying[0]):
        where = f"{name(request)} {staying[0]} B"
        comparing.compare("picks", where, "refused", _refused_or_picked(oracle, request, staying[0]))
        paths, staying = {size: path for size, path in paths.items() if path is not None}, []
    picks = iter(of_picks(selection.pick(request, staying)) if staying else [])
    launched = oracle.launch_on_any_path(request, [*paths]) if paths else []
    for (size, path), real in zip(paths.items(), launched, strict=True):
        where = f"{name(request)} {size} B"
        ours, theirs = (_launch(each) for each in (path or next(picks), real))
        for what, own, library in zip(("picks", "channels", "threads"), ours, theirs, strict=True):
            comparing.compare(what, where, own, library)


def _classic_refuses(selection: Selection, request: Request, size: int) -> bool:
    try:
        selection.classic_pick(request, size)
    except NoAlgorithm:
        return True
    return False


def _launch(launched: NonClassicPath | Pick | OracleLaunch) -> tuple[str, int, int]:
    if isinstance(launched, NonClassicPath):
        return launched.name, launched.blocks, launched.threads
    return launched.name if isinstance(launched, Pick) else pick_name(launched), launched.channels, launched.threads


def name(request: Request) -> str:
    """A request as text: collective, type, operation, buffers (unless plain), and whether it is in place."""
    kind = "" if request.buffers is Buffers.plain else f" {request.buffers.name}{request.windows.words}"
    where = " in place" if request.in_place else ""
    return f"{request.collective.name} {request.dtype.name} {request.op.name}{kind}{where}"


def pick_name(launched: OracleLaunch) -> str:
    """Algorithm and protocol as one word, such as ``Ring/LL``."""
    return f"{launched.algorithm.name}/{launched.protocol.name}"


Both = tuple[object, object]  # the value of the emulator and that of libnccl


def compare(selection: Selection, oracle: Oracle, ours: GroupPlan) -> dict[str, Both]:
    """Compares everything that the release shows about a group: pairs of the emulator's and libnccl's value, by
    name."""
    theirs = oracle.launch_group([pick.operation for pick in ours.picks])
    return {**_kernels(selection, ours, theirs), **_choices(ours, theirs)}


def standard(selection: Selection, requests: Sequence[Request]) -> Iterator[GroupPlan]:
    """Groups of 2 to 40 calls with these requests: with equal sizes, with sizes over six powers of four, and with mixed
    requests.

    Each group uses one kind of buffers. Three kinds of groups are left out: groups that are not emulated; groups at
    which NCCL fails or from which it never returns (such as with too small a ring of works); and groups that copy
    engines carry between nodes, because NCCL waits for these copies if a communicator has many.
    """
    kinds: dict[object, list[Request]] = {}
    for request in requests:
        kinds.setdefault((request.buffers, request.in_place, request.windows), []).append(request)
    for same in kinds.values():
        for operations in _groups(selection, same) if _emulated(selection, same) else ():
            with contextlib.suppress(BadInput, NoAlgorithm):
                ours = plan(selection, operations)
                if selection.communicator.nodes == 1 or all(kernel.path is not COPY_ENGINES for kernel in ours.kernels):
                    yield ours


def _emulated(selection: Selection, requests: Sequence[Request]) -> bool:
    try:
        return not_emulated(selection, requests) is None
    except BadInput:
        return False


def _groups(selection: Selection, requests: Sequence[Request]) -> Iterator[list[Operation]]:
    ranks = selection.communicator.ranks
    usable = [request for request in requests if selection.usable(request)]
    for request in usable:
        for count, nbytes in ((2, 1 << 20), (5, 25 << 20), (40, 1 << 14)):
            yield [Operation(request, reachable(request, ranks, nbytes))] * count
    for count in (3, 13, 40):
        kinds = [usable[place * 7 // 3 % len(usable)] for place in range(count)] if usable else []
        sizes = [5 << 8 + place * 5 % 13 for place in range(count)]
        if kinds:
            yield [Operation(each, reachable(each, ranks, size)) for each, size in zip(kinds, sizes, strict=True)]


def reachable(request: Request, ranks: int, nbytes: int) -> int:
    """The largest size up to ``nbytes`` that a call with this request can have."""
    step = request.unit_bytes(ranks)
    return max(step, nbytes // step * step)


def _kernels(selection: Selection, ours: GroupPlan, theirs: LaunchedGroup) -> dict[str, Both]:
    launched = [kernel for kernel in ours.kernels if kernel.path is not COPY_ENGINES]
    values: dict[str, Both] = {"kernels": (len(launched), len(theirs.kernels))}
    ranks = selection.communicator.ranks
    for number, (our, their) in enumerate(zip(launched, theirs.kernels, strict=False)):
        at = f"kernel {number}"
        values[f"{at}: channels"] = len(our.channels), their.channels
        values[f"{at}: threads"] = our.threads, their.threads
        if our.path is not None or their.symmetric is not None:
            requests = [(ours.picks[place].operation, ours.picks[place].operation.request) for place in our.places]
            counts = sum(operation.bytes // request.parts(ranks) for operation, request in requests)
            said = their.symmetric
            values[f"{at}: symmetric"] = (
                (our.path and our.path.kernel, len(our.places), counts),
                (said and said.name, said and said.calls, said and said.bytes),
            )
            continue
        values[f"{at}: calls"] = len(our.places), len(their.operations)
        for place, operation in zip(our.places, their.operations, strict=False):
            pick, where = ours.picks[place], f"{at} call {place}"
            request = pick.operation.request
            values[f"{where}: pick"] = (
                (_named(pick.algorithm), _named(pick.protocol)),
                (operation.algorithm.name, operation.protocol.name),
            )
            values[f"{where}: channels"] = pick.channels, operation.channels
            values[f"{where}: type"] = request.device_dtype.name, operation.dtype.name
            if operation.collective is not None:
                logged = pick.operation.bytes // request.parts(ranks)
                values[f"{where}: collective"] = (
                    (request.collective.name, logged),
                    (operation.collective.name, operation.bytes),
                )
    return values


def _named(chosen: Algorithm | Protocol | None) -> str | None:
    return None if chosen is None else chosen.name


def _choices(ours: GroupPlan, theirs: LaunchedGroup) -> dict[str, Both]:
    count = len(ours.choices)
    asked = theirs.questions
    # Questions without any cost were for symmetric kernels and copies; others are for rings as the fallback
    if len(asked) != count:
        asked = tuple(each for each in asked if (each.costs_us >= 0).any())
    questions = asked[max(len(asked) - count, 0) :]  # earlier questions were for symmetric kernels and decide nothing
    values: dict[str, Both] = {"choices": (count, len(questions))}
    for number, (choice, question) in enumerate(zip(ours.choices, questions, strict=False)):
        cost_us = question.costs_us[choice.algorithm, choice.protocol]
        values[f"choice {number}: numPipeOps"] = choice.pipelined, question.pipelined
        if (question.costs_us >= 0).any():
            values[f"choice {number}: time"] = shortest(choice.time_us), shortest(cost_us)
        if question.collective is not None:
            values[f"choice {number}: bytes"] = (
                (choice.request.collective.name, choice.bytes),
                (question.collective.name, question.bytes),
            )
    return values
