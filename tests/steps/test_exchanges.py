"""Schedules of sends and receives: every byte of every message arrives where it must, and the ranks come to an end."""

import numpy as np
import pytest

from tests.support.scheduled_numbers import Run
from tuner.answers.alone import of_exchange
from tuner.answers.exchanges import ExchangeQuery
from tuner.base.errors import BadInput
from tuner.base.names import DataType, PeerCall
from tuner.scenario import Scenario

ROOT = 3


def carried_out(asked: ExchangeQuery, scenario: Scenario, size: int) -> tuple[Run, list[np.ndarray]]:
    """The schedule of a call of ``size`` bytes from each rank to each, on bytes (each as a 64-bit number)."""
    found = of_exchange(scenario, asked)
    random = np.random.default_rng(size)
    held = size if asked.function in (PeerCall.Send, PeerCall.Recv) else size * scenario.ranks
    sources = [random.integers(1, 1 << 63, held, np.uint64) for _ in range(scenario.ranks)]
    run = Run(found.schedule, sources, [np.zeros(held, np.uint64) for _ in range(scenario.ranks)], ())
    run.to_its_end()
    return run, sources


@pytest.mark.each_choice
@pytest.mark.slow
@pytest.mark.parametrize("size", [8, 5000, 300_000])
@pytest.mark.parametrize(("nccl", "nodes"), [("2.28.9", 1), ("2.32.3", 2), ("2.18.3", 1), ("2.21.5", 2)])
def test_all_to_all_brings_every_part_to_its_rank(nccl: str, nodes: int, size: int) -> None:
    scenario = Scenario(nccl, nodes, machine="dgx-h100")
    asked = ExchangeQuery(PeerCall.AllToAll, [size * scenario.ranks], DataType.int8, 0, 0)
    run, sources = carried_out(asked, scenario, size)
    for rank, result in enumerate(run.results):
        for sender, source in enumerate(sources):
            expected = source[rank * size : (rank + 1) * size] if sender != rank else 0
            assert np.all(result[sender * size : (sender + 1) * size] == expected)


@pytest.mark.parametrize("function", [PeerCall.Gather, PeerCall.Scatter])
@pytest.mark.parametrize("nccl", ["2.28.9", "2.22.3"])
def test_gather_and_scatter_move_between_the_root_and_all(function: PeerCall, nccl: str) -> None:
    scenario, size = Scenario(nccl, 1, machine="dgx-h100"), 70_000
    asked = ExchangeQuery(function, [size * scenario.ranks], DataType.int8, 0, ROOT)
    run, sources = carried_out(asked, scenario, size)
    for rank in set(range(scenario.ranks)) - {ROOT}:
        part = slice(rank * size, (rank + 1) * size)
        if function is PeerCall.Gather:
            assert np.array_equal(run.results[ROOT][part], sources[rank][:size])
        else:
            assert np.array_equal(run.results[rank][:size], sources[ROOT][part])


def test_a_send_has_two_ends() -> None:
    scenario, size = Scenario("2.28.9", 1, machine="dgx-h100"), 3 << 20
    for function in (PeerCall.Send, PeerCall.Recv):
        asked = ExchangeQuery(function, [size], DataType.int8, 2, 5)
        run, sources = carried_out(asked, scenario, size)
        ends = (2, 5) if function is PeerCall.Send else (5, 2)
        assert np.array_equal(run.results[ends[1]][:size], sources[ends[0]][:size])
        assert run.sent_elements[0] == size
    with pytest.raises(BadInput, match="`peer` 2: a send to the rank itself is a copy"):
        of_exchange(scenario, ExchangeQuery(PeerCall.Send, [8], DataType.int8, 2, 2))
