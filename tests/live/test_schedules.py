"""Schedules of NVLS, CollNet and PAT from the emulated launch against those of the works of the real libnccl."""

import pytest

from tests.support import scheduled_calls
from tests.support.available_releases import HERE
from tests.support.draws import Draws
from tuner.oracle.api import Oracle

pytestmark = pytest.mark.live


@pytest.mark.parametrize("nccl", HERE)
def test_what_libnccl_launches_has_the_same_schedule(nccl: str, draws: Draws) -> None:
    random, differences = draws.generator(nccl), list[str | None]()
    for _ in range(draws.times):
        scenario, calls = scheduled_calls.drawn_calls(random, nccl, 2)
        with Oracle(scenario.oracle_configuration()) as oracle:
            theirs = oracle.connected()
            differences += [scheduled_calls.compare_with_libnccl(random, oracle, theirs, call) for call in calls]
    assert len(differences) >= draws.times
    assert [each for each in differences if each is not None] == []
