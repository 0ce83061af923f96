"""Schedules of NVLS, CollNet and PAT from the emulated launch against those of the works of the real libnccl."""

import numpy as np
import pytest

from tests.support import scheduled_calls
from tests.support.available_releases import HERE
from tuner.oracle.api import Oracle

pytestmark = pytest.mark.live


@pytest.mark.parametrize("nccl", HERE)
def test_what_libnccl_launches_has_the_same_schedule(nccl: str) -> None:
    random = np.random.default_rng([1, *map(int, nccl.split("."))])
    scenario, calls = scheduled_calls.drawn_calls(random, nccl, 2)
    with Oracle(scenario.oracle_configuration()) as oracle:
        theirs = oracle.connected()
        for call in calls:
            assert scheduled_calls.compare_with_libnccl(random, oracle, theirs, call) is None
