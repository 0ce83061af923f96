"""What NCCL picks as more GPUs of each node are used."""

import json

import pytest

from tests.support.command_line import run
from tuner.answers.scale import over_gpus
from tuner.base.errors import BadInput
from tuner.base.names import Collective, DataType, Op
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.scenario import Scenario

ALLREDUCE = Request(Collective.AllReduce, DataType.float32, Op.sum)
SIZES = [1 << 10, 1 << 20, 1 << 30]


@pytest.mark.parametrize(("nodes", "first"), [(1, 2), (2, 1)])
def test_each_number_of_gpus_has_its_own_pick(nodes: int, first: int) -> None:
    ranges = over_gpus(Scenario("2.28.9", nodes, "dgx-h100"), [ALLREDUCE], SIZES)
    for gpus in range(first, 9):
        picks = Selection(Scenario("2.28.9", nodes, "dgx-h100", gpus_per_node=gpus).communicator()).pick(
            ALLREDUCE, SIZES
        )
        for at, size in enumerate(SIZES):
            (own,) = [
                each
                for each in ranges
                if each.bytes == size and each.from_gpus_per_node <= gpus <= each.to_gpus_per_node
            ]
            algorithm, protocol = picks.algo_protos()[at]
            assert (own.algorithm, own.protocol) == (algorithm.name, protocol.name)
            assert (own.channels, own.threads) == (picks.channels[at], picks.threads[at])
    assert min(each.from_gpus_per_node for each in ranges) == first


def test_the_command_prints_the_ranges() -> None:
    words = (
        "edges",
        "allreduce",
        "--over",
        "gpus-per-node",
        "--nodes",
        "2",
        "--machine",
        "dgx-h100",
        "--nccl",
        "2.28.9",
    )
    (first, *_) = json.loads(run(*words, "--bytes", "1K", "--json").stdout)["ranges"]
    assert (first["from_gpus_per_node"], first["to_gpus_per_node"], first["algorithm"]) == (1, 2, "Ring")
    assert "GPUs per node" in run(*words, "--bytes", "1K").stdout


def test_nodes_that_differ_are_refused() -> None:
    mixed = Scenario("2.28.9", 1, "dgx-h100", others=(Scenario("", 1, machine="dgx-a100"),))
    with pytest.raises(BadInput, match="valid: nodes that are alike"):
        over_gpus(mixed, [ALLREDUCE], SIZES)


def test_a_process_has_no_more_gpus_than_are_used() -> None:
    several = over_gpus(Scenario("2.28.9", 2, "dgx-h100", gpus_per_process=4), [ALLREDUCE], SIZES)
    assert several == over_gpus(Scenario("2.28.9", 2, "dgx-h100"), [ALLREDUCE], SIZES)  # of plain buffers
