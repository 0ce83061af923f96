"""What diff and budget say of a call made of sends and receives is what pick says that NCCL launches."""

import pytest

from tuner.answers import exchanges
from tuner.answers.exchanges import taken
from tuner.base.names import DataType, PeerCall
from tuner.scenario import Scenario
from tuner.scenario.p2p import p2p_context
from tuner.scenario.resolved import ResolvedScenario

SIZES = (8, 16, 64 << 10, 16 << 20)  # of 16 ranks: less than a byte for each, and more


@pytest.mark.parametrize("function", [PeerCall.AllToAll, PeerCall.Gather, PeerCall.Scatter])
@pytest.mark.parametrize("name", ["2.21.5", "2.27.7", "2.28.9"])
def test_as_many_kernels_and_blocks_as_are_launched(name: str, function: PeerCall) -> None:
    scenario = Scenario(name, 2, machine="dgx-h100")
    where = p2p_context(ResolvedScenario(scenario))
    asked = exchanges.ExchangeQuery(function, SIZES, DataType.int8, rank=0, root=0)
    for answer in exchanges.answers(scenario, asked):
        found = taken(where, function, answer.bytes)
        assert answer.launch is not None
        kernels = answer.launch.kernels
        assert (found.kernels, found.channels) == (len(kernels), max((each.channels for each in kernels), default=0))


def test_nccls_own_functions_launch_nothing_for_no_element() -> None:
    """As libnccl does; sends and receives of no bytes, which people write before 2.28, are launched."""
    before, after = (
        p2p_context(ResolvedScenario(Scenario(name, 2, machine="dgx-h100"))) for name in ("2.27.7", "2.28.9")
    )
    assert taken(before, PeerCall.AllToAll, 8).kernels == 1
    assert taken(after, PeerCall.AllToAll, 8).kernels == 0
