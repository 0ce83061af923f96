"""Orders of additions of calls in one group against steps executed on the works of the group's launch."""

from dataclasses import replace

import numpy as np
import pytest

from tests.support import ordered_calls
from tuner.answers.alone import Alone, calls_alone
from tuner.base.errors import BadInput
from tuner.base.names import Buffers, Collective, DataType, Op
from tuner.emulator.request import Request
from tuner.emulator.steps.orders import orders
from tuner.scenario import Scenario

SUM = Request(Collective.AllReduce, DataType.float32, Op.sum)


@pytest.mark.parametrize(("nccl", "sizes"), [("2.28.9", (40_000, 8, 65_536)), ("2.21.5", (4096, 70_000))])
@pytest.mark.parametrize("algorithm", ["Ring", "Tree"])
def test_calls_of_a_group_are_added_as_claimed(nccl: str, sizes: tuple[int, ...], algorithm: str) -> None:
    random = np.random.default_rng(sum(sizes))
    scenario = Scenario(nccl, 1, machine="dgx-1v", environment={"NCCL_ALGO": algorithm})
    for call, size in zip(calls_alone(scenario, SUM, sizes, together=True), sizes, strict=True):
        assert isinstance(call, Alone)
        assert (call.bytes, call.work.count) == (size, size // 4)
        ordered_calls.compare(random, call.work, scenario.resolve().connected)


def test_a_group_shares_channels_otherwise_than_a_call_alone() -> None:
    scenario = Scenario("2.28.9", 1, machine="dgx-1v", environment={"NCCL_ALGO": "Ring"})
    size = 64 << 10
    (alone,) = calls_alone(scenario, SUM, [size])
    first, _ = calls_alone(scenario, SUM, [size, 16 * size], together=True)
    assert isinstance(alone, Alone)
    assert isinstance(first, Alone)
    assert alone.work.count == first.work.count
    assert orders(alone.work, alone.across).terms != orders(first.work, first.across).terms


def test_windows_are_no_group() -> None:
    scenario = Scenario("2.28.9", 1, machine="dgx-h100")
    with pytest.raises(BadInput, match="`group`: of calls that take the classic path"):
        calls_alone(scenario, replace(SUM, buffers=Buffers.window), [8, 8], 0, True)
