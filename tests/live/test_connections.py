"""What libnccl notes of its connections to other nodes, which registered buffers go by, as made and as marked."""

from itertools import islice

import pytest

from tests.support.available_releases import HERE
from tests.support.connections import MOST_RANKS, connections, differences, drawn, marked
from tests.support.draws import Draws
from tuner import release
from tuner.base.errors import BadInput
from tuner.emulator.connect.network import ORDER
from tuner.scenario import Scenario
from tuner.scenario.description import Members
from tuner.scenario.p2p import network_of

pytestmark = pytest.mark.live
WITH_NETWORK = [name for name in HERE if release.load(name).registration.network != "never"]
AT_ONCE = {"NCCL_RUNTIME_CONNECT": "0"}


@pytest.mark.parametrize("nccl", WITH_NETWORK)
def test_marks_are_what_nccl_says_of_rings_and_of_all_algorithms(nccl: str) -> None:
    """Rings of this machine keep to the GPUs that adapters are near, and trees of two ranks do not."""
    for settings in ({}, AT_ONCE):
        environment = {"NCCL_CROSS_NIC": "1", **settings}
        scenario = Scenario(nccl, 3, machine="aws-p4d", gpus_per_node=3, environment=environment)
        ours = [network_of(scenario.resolve(), rank, ORDER if settings else ()) for rank in range(scenario.ranks)]
        noted = marked(scenario.oracle_configuration())
        assert [(use.direct, use.relayed) for use in ours] == [(rank.direct, rank.relayed) for rank in noted]
        assert [use.relayed for use in ours].count(True) == (2 if settings else 0)


@pytest.mark.parametrize("nccl", WITH_NETWORK[-1:])
@pytest.mark.parametrize("ranks", [(3, 10), (0, 1, 8, 13)])
def test_nodes_of_a_part_differ_in_which_adapters_are_near(nccl: str, ranks: tuple[int, ...]) -> None:
    scenario = Scenario(nccl, 2, machine="dgx-b200", members=Members(ranks, shares=False, by="split"))
    ours = [network_of(scenario.resolve(), rank) for rank in range(len(ranks))]
    noted = marked(scenario.oracle_configuration())
    assert [(use.direct, use.relayed) for use in ours] == [(rank.direct, rank.relayed) for rank in noted]


@pytest.mark.parametrize("nccl", WITH_NETWORK[-1:])
def test_ranks_that_connect_note_what_is_emulated(nccl: str, draws: Draws) -> None:
    most = 4 if draws.times == 1 else MOST_RANKS
    small = (each for each in drawn(nccl, draws.seed, 100 * draws.times) if each[0].ranks <= most)
    for scenario, how in islice(small, draws.times):
        found, ranks, _ = differences(scenario, how)
        assert not found, f"{scenario.title} {scenario.environment} {how}"
        assert ranks > 1


def test_releases_that_note_nothing_are_refused() -> None:
    nccl = next(name for name in HERE if name not in WITH_NETWORK)
    old = Scenario(nccl, 2, machine="dgx-h100", gpus_per_node=1).oracle_configuration()
    for asked in (marked, lambda configuration: connections(configuration, [])):
        with pytest.raises(BadInput, match=r"valid: 2\.24\.3 and later"):
            asked(old)
