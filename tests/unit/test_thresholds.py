"""Thresholds and names of answers that no larger test notices."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support import nccl_tests_text
from tuner.answers import beyond, efficiency
from tuner.answers.changes import AtSize
from tuner.answers.diff import PickChange
from tuner.base.names import Algorithm, Protocol
from tuner.cli.diff import gains
from tuner.cli.exports import algo_proto
from tuner.emulator.selection import Pick, Selection
from tuner.scenario import Scenario
from tuner.times.calibration import sweep
from tuner.times.calibration.plausible import of_case

RING, TREE = (Pick(algorithm, Protocol.LL, 2, 64, 1.0) for algorithm in (Algorithm.Ring, Algorithm.Tree))


def change(from_bytes: int, to_bytes: int, ratio: float | None = None) -> PickChange:
    return PickChange("AllReduce", from_bytes, to_bytes, from_bytes, RING, TREE, ratio, None, None, None, None)


def test_only_ranges_that_float32_makes_are_rounding() -> None:
    """Two times of 24 bits are alike over some 1e-7 of a size; a range of a thousandth is one that a model means."""
    assert change(10_000_000, 10_000_999).is_rounding
    assert not change(10_000_000, 10_001_000).is_rounding
    assert not change(10_000_000, 10_010_000).is_rounding


@pytest.mark.parametrize(
    ("ratio", "says"),
    [
        (0.9, "up to 10.0 % faster by NCCL's own model"),
        (0.9994, "up to 0.1 % faster by NCCL's own model"),
        (0.9996, "as fast by NCCL's own model"),
        (1.0004, "as fast by NCCL's own model"),
        (1.02, "up to 2.0 % slower by NCCL's own model"),
        (None, "NCCL has no model that compares them"),
    ],
)
def test_gains_that_a_tenth_of_a_percent_shows_are_said(ratio: float | None, says: str) -> None:
    assert gains([change(1, 2, ratio)]) == says
    at_size = AtSize("AllReduce", 8, RING, TREE, None, None, ratio)
    assert gains([at_size]) == says


def test_latency_limits_where_it_is_more_than_half_of_the_time(tmp_path: Path) -> None:
    sizes = [1 << power for power in range(3, 31)]
    file = nccl_tests_text.write(tmp_path / "run.txt", [(size, 5000.0) for size in sizes])
    scenario = Scenario("2.28.9", 1, machine="dgx-h100")
    rows = efficiency.report(sweep.read(file), scenario, of_case(scenario)).rows
    by_latency = [row.limit == efficiency.LATENCY for row in rows]
    assert any(by_latency)
    assert not all(by_latency)
    # Where a size takes less than its latency does, the next power of two takes less than one and a half times as long.
    for row, doubled, latency in zip(rows, rows[1:], by_latency, strict=False):
        if row.alphabeta_algorithm == doubled.alphabeta_algorithm:
            assert latency is (doubled.alphabeta_us < 1.5 * row.alphabeta_us), row.bytes


def test_channels_of_one_collective_are_not_those_of_several() -> None:
    """Aggregated operations may have more channels than one call alone."""
    communicator = replace(Scenario("2.28.9", 2, machine="dgx-h100").communicator(), channels=24, coll_channels=12)
    channels = beyond._channels(Selection(communicator))
    assert (channels["of collectives"], channels["of one collective alone"]) == ("24", "12")


def test_labels_of_metrics_are_those_of_nccl_inspector() -> None:
    expected = {
        Algorithm.Tree: "TREE",
        Algorithm.Ring: "RING",
        Algorithm.CollNetDirect: "COLLNET_DIRECT",
        Algorithm.CollNetChain: "COLLNET_CHAIN",
        Algorithm.NVLS: "NVLS",
        Algorithm.NVLSTree: "NVLS_TREE",
        Algorithm.PAT: "PAT",
    }
    assert {each: algo_proto(each, Protocol.LL128) for each in Algorithm} == {
        each: f"{name}_LL128" for each, name in expected.items()
    }
