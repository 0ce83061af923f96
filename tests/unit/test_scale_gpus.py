"""What NCCL picks as more GPUs of each node are used."""

import json
from dataclasses import replace

import pytest

from tests.support.command_line import run
from tuner.answers.scale import Axis, CountQuery, scale
from tuner.base.errors import BadInput
from tuner.base.names import Collective, DataType, Op
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.scenario import Scenario

ALLREDUCE = Request(Collective.AllReduce, DataType.float32, Op.sum)
SIZES = [1 << 10, 1 << 20, 1 << 30]


@pytest.mark.parametrize(("nodes", "first"), [(1, 2), (2, 1)])
def test_each_number_of_gpus_has_its_own_pick(nodes: int, first: int) -> None:
    ranges = scale(
        Scenario("2.28.9", nodes, "dgx-h100"), [ALLREDUCE], SIZES, CountQuery(1, 8, True, Axis.gpus_per_node)
    ).ranges
    for gpus in range(first, 9):
        picks = Selection(Scenario("2.28.9", nodes, "dgx-h100", gpus_per_node=gpus).communicator()).pick(
            ALLREDUCE, SIZES
        )
        for at, size in enumerate(SIZES):
            (own,) = [each for each in ranges if each.bytes == size and each.first.count <= gpus <= each.last.count]
            algorithm, protocol = picks.algo_protos()[at]
            assert (own.algorithm, own.protocol) == (algorithm, protocol)
            assert (own.channels, own.threads) == (picks.channels[at], picks.threads[at])
    assert min(each.first.count for each in ranges) == first


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
    with pytest.raises(
        BadInput, match="the number of GPUs per node cannot be changed if nodes differ: use equal nodes"
    ):
        scale(mixed, [ALLREDUCE], SIZES, CountQuery(1, 8, True, Axis.gpus_per_node))


def test_a_process_has_no_more_gpus_than_are_used() -> None:
    counts, several = CountQuery(1, 8, True, Axis.gpus_per_node), Scenario("2.28.9", 2, "dgx-h100", gpus_per_process=4)
    of_one = scale(replace(several, gpus_per_process=None), [ALLREDUCE], SIZES, counts)
    assert scale(several, [ALLREDUCE], SIZES, counts) == of_one  # of plain buffers
