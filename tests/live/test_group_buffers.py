"""Groups on registered buffers and windows against the live libnccl: kernels, their calls, what is chosen together."""

import contextlib
import random
from collections.abc import Iterator
from random import Random

import pytest

from tests.support.available_releases import HERE
from tests.support.check_exchange import compare as compare_exchange
from tests.support.check_exchange import compare_mixed
from tests.support.draws import Draws
from tests.support.random_exchanges import draw
from tests.support.random_groups import random_groups, rings_of_works
from tests.support.random_windows import SYM_KERNEL, drawn_windows, of_groups
from tuner import release
from tuner.base.errors import BadInput, NoAlgorithm, OracleFailed
from tuner.base.names import SYMMETRIC, Buffers, Collective, DataType, Op, PeerCall, Sides, WindowFlag, Windows
from tuner.emulator.group import Operation, plan
from tuner.emulator.p2p.plan import ExchangeCall
from tuner.emulator.request import Request
from tuner.emulator.rules.registered import missing
from tuner.emulator.rules.symmetric_variables import WITHOUT_WINDOWS
from tuner.emulator.selection import Selection
from tuner.oracle.api import Oracle
from tuner.oracle.conformance.check import compare
from tuner.oracle.launches import LaunchedCall
from tuner.scenario import Scenario
from tuner.scenario.p2p import p2p_context
from tuner.scenario.resolved import ResolvedScenario

pytestmark = pytest.mark.live

MIB = 1 << 20
WITH_WINDOWS = [name for name in HERE if not missing(release.load(name), Buffers.window)]
TOGETHER = [name for name in WITH_WINDOWS if release.load(name).rules.bypass_first != "only_a_call_alone"]
ANY_BUFFERS = [name for name in HERE if release.load(name).rules.bypass_first == "calls_on_any_buffers"]


def assert_same(scenario: Scenario, groups: list[list[Operation]]) -> int:
    """How many kernels were symmetric."""
    selection, symmetric = Selection(scenario.communicator()), 0
    with Oracle(scenario.oracle_configuration()) as oracle:
        if {WITHOUT_WINDOWS, SYM_KERNEL} & set(scenario.environment or ()) and not groups[0][0].request.symmetric:
            # Until one call on plain buffers a communicator takes symmetric kernels without multicast.
            with contextlib.suppress(BadInput, NoAlgorithm):
                compare(selection, oracle, plan(selection, windows([(Collective.AllReduce, 1024)], Buffers.plain)))
        for number, operations in enumerate(groups):
            ours = plan(selection, operations)
            values = compare(selection, oracle, ours)
            different = {where: both for where, both in values.items() if both[0] != both[1]}
            assert different == {}, f"{scenario.title} {scenario.environment} group {number}"
            symmetric += sum(kernel.path is not None for kernel in ours.kernels)
    return symmetric


def planned(
    scenario: Scenario, buffers: Buffers, in_place: bool, count: int = 5, windows: Windows = SYMMETRIC
) -> list[list[Operation]]:
    """Groups that are emulated."""
    selection, groups = Selection(scenario.communicator()), []
    for operations in random_groups(selection, count, 30, on=(buffers, in_place), windows=windows):
        try:
            plan(selection, operations)
        except NoAlgorithm:  # averages in windows
            continue
        groups.append(operations)
    return groups


def windows(sizes: list[tuple[Collective, int]], buffers: Buffers = Buffers.window) -> list[Operation]:
    return [Operation(Request(each, DataType.float32, Op.sum, buffers=buffers), size) for each, size in sizes]


@pytest.mark.each_choice
@pytest.mark.parametrize("in_place", [False, True], ids=["out of place", "in place"])
@pytest.mark.parametrize(("machine", "nodes", "gpus"), [("dgx-h100", 1, 8), ("dgx-h100", 2, 2), ("dgx-b200", 1, 4)])
@pytest.mark.parametrize("buffers", [Buffers.registered, Buffers.graph, Buffers.window], ids=lambda each: each.name)
@pytest.mark.parametrize("name", HERE)
def test_groups_of_all_kinds(name: str, buffers: Buffers, machine: str, nodes: int, gpus: int, in_place: bool) -> None:
    if missing(release.load(name), buffers):
        pytest.skip(f"NCCL {name} has no such buffers")
    network = {"NCCL_GIN_TYPE": "0"} if nodes > 1 else {}
    scenario = Scenario(nccl=name, machine=machine, nodes=nodes, gpus_per_node=gpus, environment=network)
    groups = planned(scenario, buffers, in_place)
    assert groups
    assert_same(scenario, groups)


@pytest.mark.slow
@pytest.mark.parametrize("name", HERE)
def test_random_communicators_and_groups(name: str, draws: Draws) -> None:
    """Those on windows apart: a communicator that has had windows knows more, of which the others' order depends."""
    random, compared = draws.random(f"group buffers {name}"), 0
    while compared < draws.times:
        scenario = of_groups(name, random)
        try:
            selection = Selection(scenario.communicator())
        except BadInput:
            continue
        for in_windows in (False, True):
            if groups := list(drawn_groups(selection, random, in_windows)):
                assert_same(scenario, groups)
                compared += 1


def drawn_groups(selection: Selection, random: Random, in_windows: bool) -> Iterator[list[Operation]]:
    """Groups that are emulated, on windows, or on all other kinds of buffers of the release."""
    for buffers in Buffers:
        if missing(selection.communicator.release, buffers) or (buffers is Buffers.window) != in_windows:
            continue
        of = drawn_windows(selection.communicator.release.name, random)
        on = buffers, of.sides is Sides.both and random.random() < 0.3
        most, seed = random.choice((3, 12, 40, 90)), random.randrange(1 << 30)
        for operations in random_groups(selection, 6, most, seed, on, of):
            with contextlib.suppress(BadInput, NoAlgorithm):
                plan(selection, operations)
                yield operations


@pytest.mark.parametrize("name", [name for name in TOGETHER if name not in ANY_BUFFERS])
def test_works_of_registered_calls_fill_a_kernel_sooner(name: str) -> None:
    settings = {"NCCL_ALGO": "NVLS", "NCCL_WORK_FIFO_BYTES": "16384"}
    scenario = Scenario(nccl=name, machine="dgx-h100", nodes=1, gpus_per_node=8, environment=settings)
    buffers = (Buffers.plain, Buffers.registered, Buffers.graph)
    assert_same(scenario, [windows([(Collective.AllReduce, MIB)] * 60, each) for each in buffers])


@pytest.mark.parametrize("name", TOGETHER)
def test_kinds_in_windows_share_kernels_until_their_arguments_are_full(name: str) -> None:
    calls = [(Collective.AllReduce, 1024 * (1 + place % 7)) for place in range(130)]
    calls += [(Collective.AllGather, 64 * MIB), (Collective.Broadcast, MIB), (Collective.AllGather, 4096)]
    scenario = Scenario(nccl=name, machine="dgx-h100", nodes=1, gpus_per_node=4)
    assert assert_same(scenario, [windows(calls)]) == 4


@pytest.mark.parametrize("name", ANY_BUFFERS)
def test_plain_buffers_leave_where_asked(name: str) -> None:
    settings = {"NCCL_SYM_NOWIN_ENABLE": "1", "NCCL_PROTO": "LL"}
    scenario = Scenario(nccl=name, machine="dgx-b200", nodes=1, gpus_per_node=4, environment=settings)
    alone = windows([(Collective.AllReduce, 4096)], Buffers.plain)
    calls = windows(
        [(Collective.AllGather, 8192), (Collective.AllReduce, 8192), (Collective.AllGather, 4096)], Buffers.plain
    )
    with Oracle(scenario.oracle_configuration()) as oracle:
        selection = Selection(scenario.communicator())
        oracle.launch_group(
            [LaunchedCall(Collective.AllReduce, DataType.float32, Op.sum, 4096)]
        )  # without multicast, whose
        for operations in (alone, calls, *planned(scenario, Buffers.plain, False, 3)):  # limits docs/limits.md says
            ours = plan(selection, operations)
            assert [both for both in compare(selection, oracle, ours).values() if both[0] != both[1]] == []
        assert plan(selection, alone).kernels[0].path is not None


@pytest.mark.parametrize("name", ANY_BUFFERS)
def test_calls_wait_for_kernels_that_are_left(name: str) -> None:
    """Or, in later releases, for any."""
    settings = {"NCCL_SYM_KERNEL": "ReduceScatter_LL", "NCCL_ALGO": "allreduce:ring"}
    scenario = Scenario(nccl=name, machine="dgx-b200", nodes=1, gpus_per_node=4, environment=settings)
    sizes = [(Collective.AllReduce, size) for size in (1280, 40960, 1310720)]
    assert_same(scenario, [windows(sizes, buffers) for buffers in (Buffers.plain, Buffers.window)])


@pytest.mark.parametrize("name", [name for name in TOGETHER if name not in ANY_BUFFERS])
def test_what_no_kernel_does_together_fails_in_nccl(name: str) -> None:
    scenario = Scenario(
        nccl=name, machine="dgx-h100", nodes=1, gpus_per_node=4, environment={"NCCL_SYM_KERNEL": "AllReduce_AGxLL_R"}
    )
    calls = windows([(Collective.AllReduce, 1024)] * 2)
    with pytest.raises(NoAlgorithm):
        plan(Selection(scenario.communicator()), calls)
    with Oracle(scenario.oracle_configuration()) as oracle, pytest.raises(OracleFailed, match="no symmetric kernel"):
        oracle.launch_group([LaunchedCall(Collective.AllReduce, DataType.float32, Op.sum, 1024)] * 2, Buffers.window)


@pytest.mark.parametrize("name", ANY_BUFFERS[-1:])
def test_arguments_too_small_for_a_symmetric_call_fail_in_nccl(name: str) -> None:
    scenario = Scenario(
        nccl=name, machine="dgx-h100", nodes=1, gpus_per_node=4, environment={"NCCL_WORK_ARGS_BYTES": "655"}
    )
    with pytest.raises(BadInput, match="valid: 656 and more"):
        plan(Selection(scenario.communicator()), windows([(Collective.AllReduce, 1024)], Buffers.plain))
    with Oracle(scenario.oracle_configuration()) as oracle, pytest.raises(OracleFailed, match="minimum size 656"):
        oracle.launch_group([LaunchedCall(Collective.AllReduce, DataType.float32, Op.sum, 1024)])


WINDOWS = [
    Windows(Sides.send),
    Windows(Sides.receive),
    Windows(Sides.both, WindowFlag.DEFAULT),
    Windows(Sides.receive, WindowFlag.COLL_SYMMETRIC | WindowFlag.STRICT_ORDERING),
]


@pytest.mark.each_choice
@pytest.mark.parametrize("windows", WINDOWS, ids=lambda windows: windows.words)
@pytest.mark.parametrize(("machine", "nodes", "gpus"), [("dgx-h100", 1, 8), ("dgx-h100", 2, 4), ("dgx-b200", 1, 4)])
@pytest.mark.parametrize("name", WITH_WINDOWS)
def test_groups_on_windows_of_every_kind(name: str, machine: str, nodes: int, gpus: int, windows: Windows) -> None:
    if any(str(flag.name) not in release.load(name).symmetric.window_flags for flag in windows.flags):
        pytest.skip(f"NCCL {name} has no such flags")
    network = {"NCCL_GIN_TYPE": "3"} if nodes > 1 else {}
    scenario = Scenario(nccl=name, machine=machine, nodes=nodes, gpus_per_node=gpus, environment=network)
    groups = planned(scenario, Buffers.window, False, windows=windows)
    assert groups
    assert_same(scenario, groups)


@pytest.mark.each_choice
@pytest.mark.parametrize(("machine", "nodes", "gpus"), [("dgx-h100", 1, 8), ("dgx-h100", 2, 2)])
@pytest.mark.parametrize("buffers", [Buffers.registered, Buffers.graph, Buffers.window], ids=lambda each: each.name)
@pytest.mark.parametrize("name", HERE)
def test_sends_and_receives_beside_them(name: str, buffers: Buffers, machine: str, nodes: int, gpus: int) -> None:
    if missing(release.load(name), buffers):
        pytest.skip(f"NCCL {name} has no such buffers")
    network = {"NCCL_GIN_TYPE": "3"} if nodes > 1 else {}
    resolved = ResolvedScenario(
        Scenario(nccl=name, machine=machine, nodes=nodes, gpus_per_node=gpus, environment=network)
    )
    selection, generator = Selection(resolved.views[0]), random.Random(3)
    with Oracle(resolved.oracle_configuration()) as oracle:
        for operations in random_groups(selection, 4, most=20, on=(buffers, False)):
            calls = draw(generator.choice(("alone", "all-to-all", "random")), 0, nodes * gpus, generator)
            try:
                plan(selection, operations)
            except NoAlgorithm:  # averages in windows
                continue
            assert (
                compare_mixed(selection, p2p_context(resolved), oracle, (operations, calls), (buffers, SYMMETRIC)) == {}
            )


@pytest.mark.each_choice
@pytest.mark.parametrize("captured", [False, True], ids=["launched", "captured"])
@pytest.mark.parametrize("name", HERE)
def test_a_kernel_in_a_graph_holds_more_messages(name: str, captured: bool) -> None:
    """Whose works are in memory of their own; many small ones fill a kernel outside."""
    in_works = rings_of_works(release.load(name))
    small = {"NCCL_WORK_FIFO_DEPTH": "16"} if in_works else {"NCCL_WORK_FIFO_BYTES": "1024"}
    scenario = Scenario(nccl=name, machine="dgx-a100", nodes=2, gpus_per_node=4, environment=small)
    where, buffers = p2p_context(ResolvedScenario(scenario)), Buffers.graph if captured else Buffers.plain
    calls = [
        ExchangeCall(function, DataType.int8, 64 * MIB + place, peer)
        for place in range(20 if captured else 2)  # what is launched has to stay in the ring until it is read
        for peer in range(8)
        for function in (PeerCall.Send, PeerCall.Recv)
    ]
    with Oracle(scenario.oracle_configuration()) as oracle:
        assert compare_exchange(where, oracle, calls, buffers) == {}
