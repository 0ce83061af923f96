"""Launches in full against those of the live libnccl: every work structure and every operation of the network.

Many more of every release: `python -m tests.scripts.check_launches`.
"""

from itertools import islice

import pytest

from tests.support.available_releases import HERE
from tests.support.random_launches import compared, drawn

pytestmark = pytest.mark.live
COMMUNICATORS, ALONE, GROUPS = 3, 20, 1


@pytest.mark.parametrize("nccl", HERE)
def test_random_launches_are_those_of_libnccl(nccl: str) -> None:
    values, differing = 0, []
    for communicator in islice(drawn(nccl, "live", ALONE, GROUPS), COMMUNICATORS):
        for operations, _, both in compared(communicator):
            values += len(both)
            differing += [
                f"{communicator.scenario.title}, {operations[0]}, {what}: emulator {ours}, libnccl {theirs}"
                for what, (ours, theirs) in both.items()
                if ours != theirs
            ]
    assert not differing, "\n".join(differing[:10])
    assert values > COMMUNICATORS * ALONE * 10
