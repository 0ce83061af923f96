"""Thresholds and names of answers that no larger test notices."""

import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support import nccl_tests_text
from tuner.answers import beyond, efficiency
from tuner.answers.changes import AtSize
from tuner.answers.diff import PickChange
from tuner.answers.doctor import check_links
from tuner.base.names import Algorithm, Protocol
from tuner.cli.diff import gains
from tuner.cli.exports import algo_proto
from tuner.emulator.p2p import plan
from tuner.emulator.selection import Pick, Selection
from tuner.scenario import Scenario
from tuner.times import verify
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
        (None, "NCCL has no model that compares the old with the new choice"),
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


@pytest.mark.parametrize(("speeds", "usual"), [("5", None), ("54", None), ("554", 5), ("5544", None), ("55544", 5)])
def test_the_usual_link_is_that_of_more_than_half_of_several_devices(speeds: str, usual: int | None) -> None:
    names = {"5": "32.0 GT/s PCIe", "4": "16.0 GT/s PCIe"}
    slots = [ET.Element("pci", {"class": "0x0207", "link_speed": names[each], "link_width": "16"}) for each in speeds]
    (found,) = check_links._usual(slots).values()
    assert found == (None if usual is None else (usual, 16))


def test_a_time_between_two_sizes_follows_how_far_it_is_from_each() -> None:
    sizes, times_us = [1 << 10, 1 << 14], [10.0, 160.0]
    found = [verify.between(1 << power, sizes, times_us) for power in range(10, 15)]
    assert found == pytest.approx([10.0, 20.0, 40.0, 80.0, 160.0])


@pytest.mark.parametrize(("works", "batches"), [(63, 1), (64, 2)])
def test_a_batch_reaches_63_works_from_its_first(works: int, batches: int) -> None:
    """A bit for each of 64 works: struct ncclDevWorkBatch, src/include/device.h, v2.28.9-1."""
    planner: Any = SimpleNamespace(data=SimpleNamespace(batches_of_near_rounds=False), sweeps_apart=False)
    kernel = plan._RoundKernel(0, 0)
    plan._RoundPlanner._put(planner, kernel, 0, 0, 0)
    kernel.work_bytes += works * plan.WORK_BYTES
    plan._RoundPlanner._put(planner, kernel, 0, 1, 0)
    assert (kernel.batches, len(kernel.of_channel[0])) == (batches, 1)
