"""Orders of additions by ranges of sizes on windows and registered buffers: as of single calls, and as libnccl runs."""

import pytest

from tests.support.available_releases import HERE
from tests.support.tables_on_windows import observed
from tuner import release
from tuner.answers.order import BY_SIZE, NOT_CLAIMED, SAME, OrderRange, of_calls, order_ranges
from tuner.base.names import Buffers, Collective, DataType, Op
from tuner.emulator.request import Request
from tuner.oracle.api import Oracle
from tuner.scenario import Scenario

WITH_WINDOWS = [name for name in HERE if release.load(name).rules.non_classic_path != "classic_path_only"]
NO_SWITCH = {"NCCL_NVLS_ENABLE": "0"}
ENDS = (None, 1 << 26)


def half(collective: Collective, buffers: Buffers = Buffers.window, op: Op = Op.sum) -> Request:
    return Request(collective, DataType.bfloat16, op, buffers=buffers)


def ranges(nccl: str, request: Request, **environment: str) -> tuple[Scenario, list[OrderRange]]:
    scenario = Scenario(nccl, 1, machine="dgx-h100", gpus_per_node=4, environment=environment)
    return scenario, order_ranges(scenario, request, ENDS)


def as_of_single_calls(scenario: Scenario, request: Request, found: list[OrderRange]) -> None:
    """Each range says of its first and of its last size what a call of it says."""
    unit = request.unit_bytes(scenario.ranks)
    for each in found:
        for call in of_calls(scenario, request, [each.from_bytes, each.to_bytes // unit * unit]):
            assert call.pick in each.picks
            assert (call.not_claimed is not None) == (each.order == NOT_CLAIMED)
            if each.order == SAME:
                assert {one.term for one in call.classes} == {*each.terms}
                assert (call.sums_in or request.dtype) == (each.sums_in or request.dtype)


def test_kernels_that_add_in_a_fixed_order_have_one_range() -> None:
    scenario, found = ranges("2.28.9", half(Collective.ReduceScatter), **NO_SWITCH)
    assert [(each.order, each.picks, each.sums_in) for each in found] == [
        (SAME, ("symmetric kernel ReduceScatter_LL",), DataType.float32),
        (SAME, ("symmetric kernel ReduceScatter_LD",), DataType.float32),
    ]
    assert [len(each.terms) for each in found] == [1, 4]
    as_of_single_calls(scenario, half(Collective.ReduceScatter), found)


def test_ranges_of_one_order_whose_sums_are_kept_in_another_type_are_two() -> None:
    """Two ranks have one order, but a symmetric kernel keeps sums of 16 bits in float32."""
    scenario = Scenario("2.30.7", 1, machine="dgx-h100", gpus_per_node=2, environment={"NCCL_SYM_NOWIN_ENABLE": "1"})
    request = half(Collective.AllReduce, Buffers.plain)
    found = order_ranges(scenario, request, ENDS)
    assert [(each.order, each.terms, each.sums_in) for each in found] == [
        (SAME, ((0, 1),), DataType.float32),
        (SAME, ((0, 1),), None),
    ]
    as_of_single_calls(scenario, request, found)


@pytest.mark.parametrize("buffers", [Buffers.registered, Buffers.window])
def test_calls_on_the_classic_path(buffers: Buffers) -> None:
    request = half(Collective.AllReduce, buffers, Op.prod)
    scenario, found = ranges("2.28.9", request, NCCL_PROTO="LL")
    assert [each.order for each in found] == [BY_SIZE]
    as_of_single_calls(scenario, request, found)


@pytest.mark.live
@pytest.mark.parametrize("name", WITH_WINDOWS)
def test_libnccl_runs_the_kernels_of_each_range(name: str) -> None:
    request = half(Collective.ReduceScatter)
    scenario, found = ranges(name, request, **NO_SWITCH)
    unit = request.unit_bytes(scenario.ranks)
    ends = [(size, each) for each in found for size in (each.from_bytes, each.to_bytes // unit * unit)]
    assert len(ends) >= 4
    with Oracle(scenario.resolve().oracle_configuration_to_launch()) as oracle:
        real = oracle.launch_on_any_path(request, [size for size, _ in ends])
    for launched, (_, each) in zip(real, ends, strict=True):
        assert observed(launched)[0] in each.picks
