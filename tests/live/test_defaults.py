"""The recorded defaults of variables against those that each libnccl has."""

import pytest

from tests.scripts.record_defaults import asked
from tests.support.available_releases import HERE
from tuner.release.variables import defaults

pytestmark = pytest.mark.live


@pytest.mark.parametrize("nccl", HERE)
def test_recorded_defaults_are_libnccls(nccl: str) -> None:
    assert asked(nccl) == defaults(nccl)
