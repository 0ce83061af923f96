"""Groups of collectives against the live libnccl, exactly: picks, channels, kernels and what was chosen together."""

import pytest
from groups import ALL, F32_SUM, random_groups, rings_of_works
from here import HERE

from tuner import machines, release
from tuner.case import Case
from tuner.group import Operation, plan
from tuner.groupcheck import compare, reachable
from tuner.names import Collective, DataType, Op
from tuner.oracle import Oracle
from tuner.rules.request import Request
from tuner.selection import Selection

SHAPES = [("dgx-h100", 1, 8), ("dgx-h100", 2, 2), ("dgx-h100", 2, 8), ("dgx-a100", 2, 2), ("dgx-b200", 1, 4),
          ("dgx-b200", 2, 2)]
SETTINGS: list[dict[str, str]] = [
    {"NCCL_MAX_NCHANNELS": "3"}, {"NCCL_MIN_NCHANNELS": "24"}, {"NCCL_MAX_CTAS": "5"}, {"NCCL_PROTO": "LL"},
    {"NCCL_ALGO": "^Ring"}, {"NCCL_NTHREADS": "128"},
]


def assert_same(case: Case, groups: list[list[Operation]], least_kernels: int = 1) -> None:
    selection = Selection(case.communicator())
    with Oracle(case.setup()) as oracle:
        for number, operations in enumerate(groups):
            values = compare(selection, oracle, operations)
            assert {where: both for where, both in values.items() if both[0] != both[1]} == {}, f"group {number}"
            assert values["kernels"][1] >= least_kernels  # type: ignore[operator]
            assert len(values) >= 3 * len(operations)


def case_of(name: str, machine: str, nodes: int, gpus: int, settings: dict[str, str] | None = None) -> Case:
    if name not in machines.load(machine).releases:
        pytest.skip(f"no graphs of {machine} captured for {name}")
    return Case(nccl=name, machine=machine, nodes=nodes, gpus_per_node=gpus, environment=settings)


@pytest.mark.parametrize(("machine", "nodes", "gpus"), SHAPES)
@pytest.mark.parametrize("name", HERE)
def test_groups_of_all_kinds_and_sizes(name: str, machine: str, nodes: int, gpus: int) -> None:
    case = case_of(name, machine, nodes, gpus)
    assert_same(case, list(random_groups(Selection(case.communicator()), 36)))


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("name", HERE)
def test_groups_with_settings(name: str, settings: dict[str, str]) -> None:
    case = case_of(name, "dgx-h100", 2, 2, settings)
    assert_same(case, list(random_groups(Selection(case.communicator()), 24)))


@pytest.mark.parametrize("name", HERE)
def test_sizes_on_both_sides_of_four_times(name: str) -> None:
    case = case_of(name, "dgx-h100", 2, 2)
    request = Request(Collective.AllReduce, DataType.float32, Op.sum)
    sizes = [64 << 10, (256 << 10) - 4, 256 << 10, 1 << 20, (1 << 20) + 4, 4 << 20, 16 << 20, 65 << 20]
    groups = [[Operation(request, size) for size in sizes[start:]] for start in range(len(sizes) - 1)]
    assert_same(case, [*groups, groups[0][::-1]])


@pytest.mark.parametrize("name", HERE)
def test_a_group_for_several_kernels(name: str) -> None:
    """NCCL starts another kernel where one is full, and counts anew in it."""
    if rings_of_works(release.load(name)):
        # The ring is never emptied here, so one group has to stay below what it holds: 128 works.
        case = case_of(name, "dgx-h100", 2, 2, {"NCCL_WORK_FIFO_DEPTH": "128"})
        groups = [[Operation(kind, reachable(kind, 4, 1024)) for kind in ALL[:90]]]
    else:
        # Nor is this ring, in many releases: too small a one, so that kernels keep their works in their arguments.
        case = case_of(name, "dgx-h100", 2, 2, {"NCCL_WORK_FIFO_BYTES": "512"})
        groups = [
            [Operation(kind, reachable(kind, 4, size)) for kind in (ALL * 2)[:150]] for size in (1024, 1 << 20, 1 << 27)
        ]
    assert_same(case, groups, least_kernels=2)


@pytest.mark.parametrize("name", [name for name in HERE if not rings_of_works(release.load(name))])
def test_more_calls_than_one_kernel_holds(name: str) -> None:
    case = case_of(name, "dgx-h100", 2, 2)
    calls = [Operation(F32_SUM[i % 5], reachable(F32_SUM[i % 5], 4, (i % 7 + 1) << 18)) for i in range(1500)]
    assert_same(case, [calls], least_kernels=2)
    communicator = case.communicator()
    pipelined = {choice.pipelined for choice in plan(Selection(communicator), calls).choices}
    assert pipelined == {-(-1500 // communicator.channels)}
