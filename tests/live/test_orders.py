"""Orders of additions from the emulated launch against steps executed on the works of the real libnccl."""

import numpy as np
import pytest

from tests.support import ordered_calls
from tests.support.available_releases import HERE
from tuner.answers.alone import Alone, calls_alone
from tuner.base.errors import NoAlgorithm

pytestmark = pytest.mark.live


@pytest.mark.parametrize("nccl", HERE)
def test_what_libnccl_launches_adds_as_claimed(nccl: str) -> None:
    random = np.random.default_rng(list(map(int, nccl.split("."))))
    while True:
        scenario, request, size, root = ordered_calls.drawn_scenario(random, nccl)
        try:
            (call,) = calls_alone(scenario, request, [size], root)
            break
        except NoAlgorithm:
            continue
    assert isinstance(call, Alone)
    ordered_calls.compare_with_libnccl(random, call, root)
