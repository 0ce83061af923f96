"""What ``scale`` says of registered buffers and windows, against libnccl on both sides of each change."""

import pytest

from tests.support.available_releases import HERE
from tuner import release
from tuner.answers.scale import NodeCounts, scale
from tuner.base.names import Buffers, Collective, DataType, Op
from tuner.emulator.request import NonClassicPath, Request
from tuner.oracle.answers import OracleLaunch
from tuner.oracle.api import Oracle
from tuner.scenario import Scenario

HAVE_KERNELS = [name for name in HERE if release.load(name).rules.non_classic_path != "classic_path_only"]
SIZES = [3 << 12, 3 << 20, 3 << 26]  # that 3 and 6 ranks share
MOST_NODES = 2


def words(launched: NonClassicPath | OracleLaunch) -> tuple[str, int, int]:
    if isinstance(launched, NonClassicPath):
        return launched.name, launched.blocks, launched.threads
    return f"{launched.algorithm.name}/{launched.protocol.name}", launched.channels, launched.threads


@pytest.mark.parametrize("buffers", [Buffers.registered, Buffers.window], ids=lambda each: each.name)
@pytest.mark.parametrize("name", HAVE_KERNELS)
def test_libnccl_launches_what_scale_says(name: str, buffers: Buffers) -> None:
    scenario = Scenario(name, 1, machine="dgx-h100", gpus_per_node=3, environment={"NCCL_GIN_TYPE": "3"})
    request = Request(Collective.ReduceScatter, DataType.float32, Op.sum, buffers=buffers)
    found = scale(scenario, [request], SIZES, NodeCounts(high=MOST_NODES, every=True)).ranges
    for nodes in range(1, MOST_NODES + 1):
        said = [one for one in found if one.from_nodes <= nodes <= one.to_nodes]
        with Oracle(scenario.with_nodes(nodes).resolve().oracle_configuration_to_launch()) as oracle:
            launched = oracle.launch_on_any_path(request, SIZES)
        for own, each in zip(said, launched, strict=True):
            assert (own.name, own.channels, own.threads) == words(each), (nodes, own.bytes)
