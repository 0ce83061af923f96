"""Orders of additions from the emulated launch against steps executed on the works of the real libnccl."""

import numpy as np
import pytest

from tests.support import ordered_calls
from tests.support.available_releases import HERE
from tuner.oracle.api import Oracle

pytestmark = pytest.mark.live


@pytest.mark.parametrize("nccl", HERE)
def test_what_libnccl_launches_adds_as_claimed(nccl: str) -> None:
    random = np.random.default_rng([0, *map(int, nccl.split("."))])
    scenario, calls = ordered_calls.drawn_calls(random, nccl, 4)
    with Oracle(scenario.oracle_configuration()) as oracle:
        theirs = oracle.connected()
        for call in calls:
            assert ordered_calls.compare_with_libnccl(random, oracle, theirs, call) is None
