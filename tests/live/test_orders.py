"""Orders of additions from the emulated launch against steps executed on the works of the real libnccl."""

import pytest

from tests.support import ordered_calls
from tests.support.available_releases import HERE
from tests.support.draws import Draws
from tuner.oracle.api import Oracle

pytestmark = pytest.mark.live


@pytest.mark.parametrize("nccl", HERE)
def test_what_libnccl_launches_adds_as_claimed(nccl: str, draws: Draws) -> None:
    random, differences = draws.generator(nccl), list[str | None]()
    for _ in range(draws.times):
        scenario, calls = ordered_calls.drawn_calls(random, nccl, 4)
        with Oracle(scenario.oracle_configuration()) as oracle:
            theirs = oracle.connected()
            differences += [ordered_calls.compare_with_libnccl(random, oracle, theirs, call) for call in calls]
    assert len(differences) >= draws.times
    assert [each for each in differences if each is not None] == []
