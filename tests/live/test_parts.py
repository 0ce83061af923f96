"""Communicators of some ranks, as libnccl makes them by ncclCommSplit and ncclCommShrink, against the emulator."""

import pytest

from tuner.oracle.conformance.check import check
from tuner.scenario import Scenario
from tuner.scenario.description import Members

pytestmark = pytest.mark.live

CASES = [
    ("2.18.1", 2, Members((1, 3, 8, 9), shares=True)),
    ("2.21.5", 2, Members(tuple(range(4)), shares=True)),
    ("2.28.9", 2, Members((0, 8))),
    ("2.32.3", 2, Members(tuple(range(1, 9)), shares=True, by="shrink")),
]


@pytest.mark.parametrize(("nccl", "nodes", "members"), CASES)
def test_the_part_is_the_same(nccl: str, nodes: int, members: Members) -> None:
    scenario = Scenario(nccl, nodes, machine="dgx-h100", members=members)
    report = check(scenario, sizes=[scenario.ranks << power for power in (10, 17, 24)])
    assert report.mismatches == ()
    assert report.compared["cells"] > 100
