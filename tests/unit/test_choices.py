"""Picks over sizes and node counts, against picks one by one."""

from dataclasses import replace

import numpy as np
import pytest

from tuner.answers.choices import choices
from tuner.base.errors import NoAlgorithm
from tuner.base.names import Collective, DataType, Op
from tuner.emulator.ranges import largest
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.scenario import Scenario

SUM = Request(Collective.AllReduce, DataType.float32, Op.sum)


@pytest.mark.parametrize("nccl", ["2.21.5", "2.28.9", "2.32.3"])
def test_every_element_is_the_pick_of_its_communicator(nccl: str) -> None:
    scenario = Scenario(nccl=nccl, machine="dgx-h100", nodes=7)
    sizes = np.array([8, 4096, 1 << 20, 1 << 30, 1 << 62], np.uint64)
    found = choices(scenario, SUM, sizes, [1, 3, 40])
    for row, nodes in enumerate(found.nodes):
        selection = Selection(replace(scenario, nodes=nodes).communicator())
        for column, size in enumerate(sizes):
            try:
                pick = selection.pick(SUM, int(size))
            except NoAlgorithm:
                assert found.algorithm[row, column] == found.protocol[row, column] == -1
                assert np.isnan(found.time_us[row, column])
                continue
            for name in ("algorithm", "protocol", "channels", "threads", "time_us"):
                assert getattr(found, name)[row, column] == getattr(pick, name)[0], (nodes, size, name)
    assert (found.algorithm[:, -1] == -1).all() == (nccl != "2.32.3")


def test_the_largest_size_is_the_last_that_is_taken() -> None:
    scenario = Scenario(nccl="2.28.9", machine="dgx-h100", nodes=2)
    selection = Selection(scenario.communicator())
    most = largest(selection, SUM)
    selection.pick(SUM, most)
    with pytest.raises(NoAlgorithm):
        selection.pick(SUM, most + 1)
    assert largest(selection, SUM, 1 << 30) == 1 << 30
    around = choices(scenario, SUM, np.array([most, most + 1], np.uint64), [2])
    assert (around.algorithm >= 0).tolist() == [[True, False]]


def test_nothing_is_taken_where_nothing_can_run() -> None:
    scenario = Scenario(nccl="2.28.9", machine="dgx-h100", nodes=2, environment={"NCCL_ALGO": "PAT"})
    assert largest(Selection(scenario.communicator()), SUM) == 0
    assert (choices(scenario, SUM, np.array([8], np.uint64), [2]).algorithm == -1).all()


def test_less_than_an_element_a_rank_is_no_call() -> None:
    scenario, sizes = Scenario(nccl="2.20.5", machine="dgx-h100", nodes=1), np.array([8, 63, 64, 1024], np.uint64)
    found = choices(scenario, Request(Collective.AllGather, DataType.float32, Op.sum), sizes, [2, 4, 64])
    assert (found.algorithm >= 0).tolist() == [[False, False, True, True], [False, False, False, True], [False] * 4]
