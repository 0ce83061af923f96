"""Groups of collectives against the live libnccl, exactly: picks, channels, kernels and what was chosen together."""

from pathlib import Path

import pytest

from tests.support.available_releases import HERE
from tests.support.random_groups import ALL, F32_SUM, kinds, random_groups, rings_of_works
from tuner import release
from tuner.base.errors import BadInput, OracleFailed
from tuner.base.names import Collective, DataType, Op
from tuner.emulator.group import Operation, plan
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.machine import catalogue
from tuner.oracle.api import Oracle
from tuner.oracle.conformance.check import compare, reachable
from tuner.oracle.launches import LaunchedCall
from tuner.scenario import Scenario

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
        oracle.launch_group([LaunchedCall(RS.collective, RS.dtype, RS.op, operation.bytes) for operation in operations])


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
    scenario = case_of(name, "dgx-h100", 2, 2, {"NCCL_WORK_ARGS_BYTES": "600"})
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
