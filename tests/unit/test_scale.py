"""The emulator alone, on more nodes than any oracle can hold: it answers up to 4096, and what must hold there does."""

import numpy as np
import pytest

from tuner import release
from tuner.base.names import Algorithm, Collective
from tuner.emulator.selection import Selection
from tuner.machine import catalogue
from tuner.oracle.conformance.check import ALL_COLLECTIVES, sizes_bytes
from tuner.scenario import Scenario

MOST = 4096
NODES = sorted({n for power in range(13) for n in (2**power - 1, 2**power, 2**power + 1) if 1 <= n <= MOST})
CONNECTED = [name for name in catalogue.names() if catalogue.load(name).topology.nets]

pytestmark = pytest.mark.filterwarnings("error")  # an overflow is not an answer


def selection(nccl: str, machine: str, nodes: int) -> Selection:
    return Selection(Scenario(nccl=nccl, machine=machine, nodes=nodes).communicator())


@pytest.mark.slow
@pytest.mark.parametrize("nccl", release.names())
def test_answers_up_to_4096_nodes(nccl: str) -> None:
    """Every machine at 4096 nodes, and every number of nodes on one of them after the other."""
    one_after_the_other = [(CONNECTED[at % len(CONNECTED)], nodes) for at, nodes in enumerate(NODES)]
    for machine, nodes in [*((machine, MOST) for machine in CONNECTED), *one_after_the_other]:
        if nccl in catalogue.load(machine).releases:
            assert_sound(selection(nccl, machine, nodes))


def assert_sound(chosen: Selection) -> None:
    communicator, tables, most = chosen.communicator, chosen.tables, chosen.communicator.release.limits
    assert np.isfinite(tables.latency_us).all()
    assert np.isfinite(tables.bandwidth_gbs).all()
    assert (tables.latency_us >= 0).all()
    assert (tables.bandwidth_gbs >= 0).all()
    for request in ALL_COLLECTIVES:
        sizes = np.array(sizes_bytes(request, communicator.ranks)[::4])
        table, picks = chosen.cost_table(request, sizes), chosen.pick(request, sizes)
        usable_us = np.where(table >= 0, table, np.inf).reshape(len(sizes), -1)
        assert np.array_equal(picks.time_us, usable_us.min(axis=1))
        assert np.array_equal(picks.time_us, table[np.arange(len(sizes)), picks.algorithm, picks.protocol])
        assert ((picks.channels >= 1) & (picks.channels <= most.max_channels)).all()
        assert ((picks.threads >= 32) & (picks.threads <= most.max_threads) & (picks.threads % 32 == 0)).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("nccl", "machine"),
    [
        (nccl, machine)
        for nccl in (release.names()[0], "2.22.3", "2.27.7", "2.28.9", release.names()[-1])
        for machine in CONNECTED
        if nccl in catalogue.load(machine).releases
    ],
)
def test_more_nodes_take_longer_to_reach(nccl: str, machine: str) -> None:
    """Latencies of Ring and Tree never fall with the nodes."""
    at = Collective.AllReduce, [Algorithm.Tree, Algorithm.Ring]
    found = [selection(nccl, machine, nodes).tables for nodes in (2, 3, 4, 8, 64, 1000, MOST)]
    latencies = np.stack([tables.latency_us[at] for tables in found])
    assert (np.diff(latencies, axis=0) >= 0).all()
    assert (latencies[-1, 1] > 100 * latencies[0, 1]).all(), "a ring is as long as its ranks"
    assert (latencies[-1, 0] < 100 * latencies[0, 0]).all(), "a tree is not"


@pytest.mark.parametrize("nodes", [1, 2, 100, MOST])
def test_a_size_is_answered_alike_alone_and_among_others(nodes: int) -> None:
    chosen = selection("2.28.9", "dgx-h100", nodes)
    for request in ALL_COLLECTIVES:
        sizes = np.array(sizes_bytes(request, chosen.communicator.ranks))[::-7]
        together = chosen.pick(request, sizes)
        for row, size in enumerate(sizes):
            alone = chosen.pick(request, [int(size)])
            for field in ("algorithm", "protocol", "time_us", "channels", "threads"):
                assert getattr(alone, field)[0] == getattr(together, field)[row], (request, size, field)
        assert np.array_equal(chosen.cost_table(request, sizes)[3], chosen.cost_table(request, sizes[3:4])[0])
