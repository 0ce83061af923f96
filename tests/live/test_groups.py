"""Groups of collectives, on buffers of every kind, against the live libnccl, exactly: picks, channels, kernels."""

import contextlib
import random
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.support.available_releases import HERE
from tests.support.check_exchange import compare as compare_exchange
from tests.support.check_exchange import compare_mixed
from tests.support.draws import Draws
from tests.support.random_exchanges import draw
from tests.support.random_groups import ALL, F32_SUM, kinds, random_groups, rings_of_works
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
from tuner.machine import catalogue
from tuner.oracle.api import Oracle
from tuner.oracle.conformance.check import compare, reachable
from tuner.scenario import Scenario
from tuner.scenario.p2p import p2p_context
from tuner.scenario.resolved import ResolvedScenario

AR = Request(Collective.AllReduce, DataType.float32, Op.sum)
REDUCE = Request(Collective.Reduce, DataType.float32, Op.sum)
RS = Request(Collective.ReduceScatter, DataType.float32, Op.sum)
SHAPES = [
    ("dgx-h100", 1, 8),
    ("dgx-h100", 2, 2),
    ("dgx-h100", 2, 8),
    ("dgx-a100", 2, 2),
    ("dgx-b200", 1, 4),
    ("dgx-b200", 2, 2),
]
SETTINGS: list[dict[str, str]] = [
    {"NCCL_MAX_NCHANNELS": "3"},
    {"NCCL_MIN_NCHANNELS": "24"},
    {"NCCL_MAX_CTAS": "5"},
    {"NCCL_PROTO": "LL"},
    {"NCCL_ALGO": "^Ring"},
    {"NCCL_NTHREADS": "128"},
]


def assert_same(scenario: Scenario, groups: list[list[Operation]], least_kernels: int = 1) -> None:
    selection = Selection(scenario.communicator())
    with Oracle(scenario.oracle_configuration()) as oracle:
        for number, operations in enumerate(groups):
            values = compare(selection, oracle, plan(selection, operations))
            assert {where: both for where, both in values.items() if both[0] != both[1]} == {}, f"group {number}"
            assert values["kernels"][1] >= least_kernels
            assert len(values) >= 3 * len(operations)


def case_of(name: str, machine: str, nodes: int, gpus: int, settings: dict[str, str] | None = None) -> Scenario:
    if name not in catalogue.load(machine).releases:
        pytest.skip(f"no graphs of {machine} captured for {name}")
    return Scenario(nccl=name, machine=machine, nodes=nodes, gpus_per_node=gpus, environment=settings)


@pytest.mark.each_choice
@pytest.mark.parametrize(("machine", "nodes", "gpus"), SHAPES)
@pytest.mark.parametrize("name", HERE)
def test_groups_of_all_kinds_and_sizes(name: str, machine: str, nodes: int, gpus: int) -> None:
    scenario = case_of(name, machine, nodes, gpus)
    assert_same(scenario, list(random_groups(Selection(scenario.communicator()), 36)))


@pytest.mark.each_choice
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("name", HERE)
def test_groups_with_settings(name: str, settings: dict[str, str]) -> None:
    scenario = case_of(name, "dgx-h100", 2, 2, settings)
    assert_same(scenario, list(random_groups(Selection(scenario.communicator()), 24)))


@pytest.mark.parametrize("name", HERE)
def test_sizes_on_both_sides_of_four_times_and_both_extremes(name: str) -> None:
    scenario = case_of(name, "dgx-h100", 2, 2)
    sizes = [64 << 10, (256 << 10) - 4, 256 << 10, 1 << 20, (1 << 20) + 4, 4 << 20, 16 << 20, 65 << 20]
    groups = [[Operation(AR, size) for size in sizes[start:]] for start in range(len(sizes) - 1)]
    extremes = [Operation(Request(Collective.AllReduce, DataType.float32, op), 1 << 20) for op in (Op.max, Op.min) * 4]
    assert_same(scenario, [*groups, groups[0][::-1], extremes])


@pytest.mark.parametrize("name", HERE)
def test_groups_without_peer_to_peer(name: str, tmp_path: Path) -> None:
    """Nobody asks about symmetric kernels then, which changes the order of calls."""
    topology = tmp_path / "node.xml"
    topology.write_text(catalogue.load("dgx-h100").topology_xml)
    scenario = Scenario(nccl=name, topology=topology, nodes=1, gpus_per_node=2, environment={"NCCL_P2P_DISABLE": "1"})
    assert_same(scenario, list(random_groups(Selection(scenario.communicator()), 24)))


# NCCL starts another kernel where one is full, and counts anew in it. A function runs for signed and unsigned types.
SIGNS = [kind for kind in kinds(tuple(DataType)[:6]) if not kind.moves_only]
SIGNS.sort(key=lambda kind: (kind.op, kind.collective, kind.dtype))
RUNS = [[kind for i, kind in enumerate(ALL) for _ in range(i % 23 % step)] for step in (2, 9, 23)]
WORKS = [
    ("128", "8", [(kind, 1024) for kind in ALL[:90]], 2),
    ("128", "1", [(kind, 1024) for kind in SIGNS], 1),
    ("256", "8", [(kind, 1024) for kind in ALL[:8] for _ in range(150)], 2),
    ("128", "8", [((AR, RS, REDUCE)[i // 2 % 3], 4 << 20) for i in range(64)] + [(REDUCE, 1 << 16)] * 2, 1),
]
OF_WORKS = [name for name in HERE if rings_of_works(release.load(name))]
OF_BATCHES = [name for name in HERE if name not in OF_WORKS]


@pytest.mark.parametrize(("depth", "channels", "calls", "least"), WORKS, ids=["kinds", "signs", "runs", "sizes"])
@pytest.mark.parametrize("name", OF_WORKS)
def test_works_fill_a_kernel(
    name: str, depth: str, channels: str, calls: list[tuple[Request, int]], least: int
) -> None:
    """The ring is never emptied here, so one group has to stay below what it holds."""
    scenario = case_of(name, "dgx-h100", 2, 2, {"NCCL_WORK_FIFO_DEPTH": depth, "NCCL_MAX_NCHANNELS": channels})
    assert_same(scenario, [[Operation(kind, reachable(kind, 4, size)) for kind, size in calls]], least)


@pytest.mark.parametrize("name", OF_WORKS)
def test_what_does_not_fit_does_not_fit_in_nccl(name: str) -> None:
    """2.20 takes all that was chosen together for one call's bytes, and then finds no room for the last ones."""
    scenario = case_of(name, "dgx-h100", 2, 2, {"NCCL_WORK_FIFO_DEPTH": "128"})
    operations = [Operation(RS, 1024)] * 400
    if release.load(name).rules.work_estimate != "bytes_together":
        assert_same(scenario, [operations])
        return
    with pytest.raises(BadInput, match="NCCL_WORK_FIFO_DEPTH"):
        plan(Selection(scenario.communicator()), operations)
    with (
        Oracle(scenario.oracle_configuration()) as oracle,
        pytest.raises(OracleFailed, match=r"NCCL_WORK_FIFO_DEPTH=128' is too small"),
    ):
        oracle.launch_group(operations)


@pytest.mark.parametrize("name", OF_WORKS)
def test_a_nvls_tree_on_its_own_beside_others(name: str) -> None:
    """Where there are more channels than NVLS has, 2.18 and 2.19 take it to any of them."""
    scenario = case_of(name, "dgx-h100", 2, 4, {"NCCL_MIN_NCHANNELS": "24"})
    assert_same(scenario, [[Operation(REDUCE, 64 << 10), Operation(AR, 256 << 20)]])


@pytest.mark.parametrize("size", [1024, 1 << 20, 1 << 27])
@pytest.mark.parametrize("name", OF_BATCHES)
def test_arguments_fill_a_kernel(name: str, size: int) -> None:
    """With a ring for nothing, works are in the arguments."""
    scenario = case_of(name, "dgx-h100", 2, 2, {"NCCL_WORK_FIFO_BYTES": "512"})
    assert_same(scenario, [[Operation(kind, reachable(kind, 4, size)) for kind in (ALL * 2)[:150]]], least_kernels=2)


@pytest.mark.parametrize("name", OF_BATCHES)
def test_batches_fill_a_kernel(name: str) -> None:
    """Runs of calls that share a channel, longer and shorter than a batch."""
    scenario = case_of(name, "dgx-h100", 2, 2, {"NCCL_WORK_ARGS_BYTES": "600", "NCCL_GIN_TYPE": "0"})
    groups = [[Operation(kind, reachable(kind, 4, 1024)) for kind in calls] for calls in (*RUNS, SIGNS * 2)]
    assert_same(scenario, groups, least_kernels=2)


@pytest.mark.parametrize("name", OF_BATCHES)
def test_more_calls_than_one_kernel_holds(name: str) -> None:
    scenario = case_of(name, "dgx-h100", 2, 2)
    calls = [Operation(F32_SUM[i % 5], reachable(F32_SUM[i % 5], 4, (i % 7 + 1) << 18)) for i in range(1500)]
    assert_same(scenario, [calls], least_kernels=2)
    communicator = scenario.communicator()
    pipelined = {choice.pipelined for choice in plan(Selection(communicator), calls).choices}
    assert pipelined == {-(-1500 // communicator.channels)}


MIB = 1 << 20
WITH_WINDOWS = [name for name in HERE if not missing(release.load(name), Buffers.window)]
TOGETHER = [name for name in WITH_WINDOWS if release.load(name).rules.bypass_first != "only_a_call_alone"]
ANY_BUFFERS = [name for name in HERE if release.load(name).rules.bypass_first == "calls_on_any_buffers"]


def assert_same_groups(scenario: Scenario, groups: list[list[Operation]]) -> int:
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
    assert_same_groups(scenario, groups)


@pytest.mark.each_choice
@pytest.mark.parametrize("buffers", [Buffers.plain, Buffers.registered], ids=lambda each: each.name)
@pytest.mark.parametrize("machine", ["dgx-h100", "oci-h100"])
@pytest.mark.parametrize("name", WITH_WINDOWS)
def test_groups_between_nodes_where_nobody_says_what_the_network_offers(
    name: str, machine: str, buffers: Buffers
) -> None:
    """NCCL's own network offers GIN by default, which orders calls outside of windows, too."""
    scenario = Scenario(nccl=name, machine=machine, nodes=2, gpus_per_node=4)
    assert_same_groups(scenario, planned(scenario, buffers, False))


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
                assert_same_groups(scenario, groups)
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
    assert_same_groups(scenario, [windows([(Collective.AllReduce, MIB)] * 60, each) for each in buffers])


@pytest.mark.parametrize("name", TOGETHER)
def test_kinds_in_windows_share_kernels_until_their_arguments_are_full(name: str) -> None:
    calls = [(Collective.AllReduce, 1024 * (1 + place % 7)) for place in range(130)]
    calls += [(Collective.AllGather, 64 * MIB), (Collective.Broadcast, MIB), (Collective.AllGather, 4096)]
    scenario = Scenario(nccl=name, machine="dgx-h100", nodes=1, gpus_per_node=4)
    assert assert_same_groups(scenario, [windows(calls)]) == 4


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
        oracle.launch_group(alone)  # without multicast, whose limits docs/limits.md says
        for operations in (alone, calls, *planned(scenario, Buffers.plain, False, 3)):
            ours = plan(selection, operations)
            assert [both for both in compare(selection, oracle, ours).values() if both[0] != both[1]] == []
        assert plan(selection, alone).kernels[0].path is not None


@pytest.mark.parametrize("name", ANY_BUFFERS)
def test_calls_wait_for_kernels_that_are_left(name: str) -> None:
    """Or, in later releases, for any."""
    settings = {"NCCL_SYM_KERNEL": "ReduceScatter_LL", "NCCL_ALGO": "allreduce:ring"}
    scenario = Scenario(nccl=name, machine="dgx-b200", nodes=1, gpus_per_node=4, environment=settings)
    sizes = [(Collective.AllReduce, size) for size in (1280, 40960, 1310720)]
    assert_same_groups(scenario, [windows(sizes, buffers) for buffers in (Buffers.plain, Buffers.window)])


@pytest.mark.parametrize("name", [name for name in TOGETHER if name not in ANY_BUFFERS])
def test_what_no_kernel_does_together_fails_in_nccl(name: str) -> None:
    scenario = Scenario(
        nccl=name, machine="dgx-h100", nodes=1, gpus_per_node=4, environment={"NCCL_SYM_KERNEL": "AllReduce_AGxLL_R"}
    )
    calls = windows([(Collective.AllReduce, 1024)] * 2)
    with pytest.raises(NoAlgorithm):
        plan(Selection(scenario.communicator()), calls)
    with Oracle(scenario.oracle_configuration()) as oracle, pytest.raises(OracleFailed, match="no symmetric kernel"):
        oracle.launch_group(calls)


@pytest.mark.parametrize("name", ANY_BUFFERS[-1:])
def test_arguments_too_small_for_a_symmetric_call_fail_in_nccl(name: str) -> None:
    scenario = Scenario(
        nccl=name, machine="dgx-h100", nodes=1, gpus_per_node=4, environment={"NCCL_WORK_ARGS_BYTES": "655"}
    )
    with pytest.raises(BadInput, match="set 656 or more"):
        plan(Selection(scenario.communicator()), windows([(Collective.AllReduce, 1024)], Buffers.plain))
    with Oracle(scenario.oracle_configuration()) as oracle, pytest.raises(OracleFailed, match="minimum size 656"):
        oracle.launch_group(windows([(Collective.AllReduce, 1024)], Buffers.plain))


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
    assert_same_groups(scenario, groups)


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
