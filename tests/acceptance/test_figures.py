"""How often acceptance is right, as 'make acceptance' kept it: what docs/accept.md says of it has to hold."""

import json
from pathlib import Path
from typing import Any

KEPT: dict[str, list[dict[str, Any]]] = json.loads(
    (Path(__file__).parents[2] / "docs" / "acceptance.json").read_text("utf-8")
)


def test_95_of_100_healthy_runs_pass() -> None:
    (healthy,) = (each for each in KEPT["public"] if each["what"] == "healthy")
    assert healthy["failed"] <= 0.01 * healthy["passed"]
    curves, failed = (sum(each[key] for each in KEPT["splits"]) for key in ("curves", "failed"))
    assert failed <= 0.05 * curves
    runs, failed = (
        sum(each[key] for each in KEPT["planted"] if each["planted"] == "nothing") for key in ("runs", "failed")
    )
    assert failed <= 0.05 * runs


def test_a_cluster_at_half_its_speed_passes_nowhere() -> None:
    """Of sites that no calibration knows; and hardly any healthy one fails, as most are left open."""
    healthy, half, against = KEPT["strangers"]
    assert half["passed"] == against["passed"] == against["left_open"] == 0
    assert half["left_open"] + half["failed"] == against["failed"] >= 12
    assert healthy["failed"] <= 0.02 * sum(healthy[key] for key in ("passed", "left_open", "failed"))


def test_runs_without_their_network_plugin_fail() -> None:
    (sockets,) = (each for each in KEPT["public"] if each["what"] == "TCP sockets")
    assert sockets["passed"] == 0


def test_each_communicator_was_tried_healthy_and_with_faults() -> None:
    healthy = {(each["machine"], each["nodes"]) for each in KEPT["planted"] if each["planted"] == "nothing"}
    faulty = {(each["machine"], each["nodes"]) for each in KEPT["planted"] if each["planted"] != "nothing"}
    assert faulty == healthy
    assert len(healthy) >= 9
