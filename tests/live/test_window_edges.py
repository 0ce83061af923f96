"""Where the kernel of calls on windows changes, against libnccl: the sizes on both sides of each edge."""

import pytest

from tests.support.available_releases import HERE
from tuner import release
from tuner.base.names import Buffers, Collective, DataType, Op
from tuner.emulator.ranges import answers
from tuner.emulator.request import NonClassicPath, Request
from tuner.emulator.selection import Selection
from tuner.oracle.answers import OracleLaunch
from tuner.oracle.api import Oracle
from tuner.scenario import Scenario

HAVE_KERNELS = [name for name in HERE if release.load(name).rules.non_classic_path != "classic_path_only"]
MOST_BYTES = 1 << 34


def words(launched: NonClassicPath | OracleLaunch) -> tuple[str, int, int]:
    if isinstance(launched, NonClassicPath):
        return launched.name, launched.blocks, launched.threads
    return f"{launched.algorithm.name}/{launched.protocol.name}", launched.channels, launched.threads


@pytest.mark.each_choice
@pytest.mark.parametrize("collective", [Collective.AllGather, Collective.AllReduce, Collective.ReduceScatter])
@pytest.mark.parametrize("name", HAVE_KERNELS)
def test_libnccl_launches_what_the_ranges_say_on_both_sides_of_each_edge(name: str, collective: Collective) -> None:
    scenario = Scenario(name, 1, machine="dgx-b200")
    request = Request(collective, DataType.float32, Op.sum, buffers=Buffers.window)
    found = answers(Selection(scenario.communicator()), request, high=MOST_BYTES).records(request)
    unit = request.unit_bytes(scenario.ranks)
    said: dict[int, tuple[str, int, int]] = {}
    for each in found:
        first, last = -(-each.from_bytes // unit) * unit, each.to_bytes // unit * unit  # of those that calls have
        said |= {size: (each.name, each.channels, each.threads) for size in (first, last) if first <= last}
    assert len(said) >= 10
    with Oracle(scenario.resolve().oracle_configuration_to_launch(), timeout_s=120) as oracle:
        launched = oracle.launch_on_any_path(request, list(said))
    assert dict(zip(said, map(words, launched), strict=True)) == said
