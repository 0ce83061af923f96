"""``--time`` and ``--calibration``: whose times a command shows; what it picks is NCCL's whatever they are."""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import calibrations
from tests.support.command_line import run
from tuner.timemodel.intervals import CarriedOver

H100 = ("--machine", "dgx-h100", "--nodes", "2", "--nccl", "2.28.9")
PICK = ("pick", "allreduce", *H100)
# Times as far from NCCL's as numbers can be: what is fastest by them is not what NCCL takes.
ABSURD = {"ll_hop_us": 1e6, "ll128_hop_us": 1e6, "tree_share": 1e-6, "nvls_start_us": 1e9}


@pytest.fixture
def calibration(tmp_path: Path) -> str:
    return str(calibrations.file(tmp_path))


def answers(*words: str) -> Any:
    return json.loads(run(*words, "--json").stdout)


def width(time: dict[str, float]) -> float:
    """Half the interval around the logarithm."""
    assert time["time_us"] / time["low_us"] == pytest.approx(time["high_us"] / time["time_us"], rel=1e-4)
    return math.log(time["high_us"] / time["time_us"])


@pytest.mark.parametrize("time", ["calibrated", "both"])
def test_pick_has_the_calibrated_time_of_each_combination(calibration: str, time: str) -> None:
    for answer in answers(*PICK, "--bytes", "8,1M", "--time", time, "--calibration", calibration):
        assert set(answer["calibrated"]) == set(answer["cost_us"])
        assert all(list(each) == ["time_us", "low_us", "high_us"] for each in answer["calibrated"].values())
        for name, each in answer["calibrated"].items():
            more = () if name in calibrations.MEASURED else (CarriedOver.combination,)
            assert width(each) == pytest.approx(calibrations.half_width(*more), abs=1e-4)
        used = answer["calibration"]
        assert used["name"] == "made-up"
        assert used["carried_over"] == ["sizes"]
        assert set(used["not_measured"]) == set(answer["cost_us"]) - set(calibrations.MEASURED)


def test_what_is_carried_over_widens_the_interval_and_is_said(calibration: str) -> None:
    words = ("pick", "allgather", "--machine", "dgx-h200", "--nodes", "4", "--gpus-per-node", "4", "--nccl", "2.29.2")
    (answer,) = answers(*words, "--bytes", "64M", "--calibration", calibration)
    expected = ["sizes", "another machine of the generation", "another release", "GPUs per node"]
    assert answer["calibration"]["carried_over"] == [*expected, "more nodes than measured"]
    carried = (CarriedOver.machine, CarriedOver.release, CarriedOver.gpus, CarriedOver.nodes_beyond)
    assert width(answer["calibrated"]["Ring/Simple"]) == pytest.approx(calibrations.half_width(*carried), abs=1e-4)
    text = run(*words, "--bytes", "64M", "--calibration", calibration).stdout
    assert "another release, GPUs per node, more nodes than measured" in text


@pytest.mark.parametrize("collective", ["allreduce", "allgather", "broadcast"])
@pytest.mark.parametrize("machine", ["dgx-a100", "dgx-h100", "dgx-b200"])
def test_a_calibration_never_changes_a_pick(tmp_path: Path, machine: str, collective: str) -> None:
    """Not even one that says the opposite of NCCL's model."""
    file = str(calibrations.file(tmp_path, ABSURD))
    words = ("pick", collective, "--machine", machine, "--nodes", "2", "--nccl", "2.28.9")
    plain, calibrated = answers(*words), answers(*words, "--calibration", file)
    assert any(
        min(each["calibrated"], key=lambda name: each["calibrated"][name]["time_us"])
        != f"{each['pick']['algorithm']}/{each['pick']['protocol']}"
        for each in calibrated
    )
    for each in calibrated:
        del each["calibrated"], each["calibration"]
    assert calibrated == plain


def test_pick_for_people_says_whose_times_they_are(calibration: str) -> None:
    out = run(*PICK, "--bytes", "8,64M", "--time", "both", "--calibration", calibration).stdout
    assert "NCCL us" in out
    assert "calibrated us   90 % interval us" in out.replace("     ", "   ")
    assert "by the calibration made-up, as asked for; measured with a process a GPU" in out
    assert "never measured, so extrapolated: NVLSTree/Simple" in out
    own = run(*PICK, "--bytes", "8", "--calibration", calibration).stdout
    assert "NCCL us" not in own
    assert "extrapolated" not in own


REFUSED = {
    "PCIe": (("pick", "allreduce", "--machine", "pcie-l40s", "--bytes", "1M"), "joined by"),
    "generation": (("pick", "allreduce", "--machine", "dgx-1v", "--bytes", "1M"), "no calibration for Volta GPUs"),
    "registered buffers": ((*PICK, "--bytes", "1M", "--buffers", "registered"), "plain ones only were measured"),
    "window": (
        ("pick", "allreduce", "--machine", "dgx-h100", "--nccl", "2.28.9", "--buffers", "window"),
        "plain ones only were measured",
    ),
    "nodes that differ": (
        ("pick", "allreduce", "--node", "dgx-h100:8x2", "--node", "dgx-a100:4", "--nccl", "2.28.9"),
        "where nodes differ",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_where_none_answers_one_line_says_why(name: str) -> None:
    words, reason = REFUSED[name]
    both = run(*words, "--time", "both").stdout
    assert reason in both.splitlines()[-1]
    assert both.startswith(run(*words).stdout.rstrip())
    for answer in answers(*words, "--time", "both"):
        assert "calibrated" not in answer
        assert answer["calibration"]["name"] is None
        assert reason in answer["calibration"]["reason"]
    refused = run(*words, "--time", "calibrated", code=2)
    assert reason in refused.stderr
    assert refused.stdout == ""


def test_a_calibration_that_is_named_has_to_be_there(tmp_path: Path) -> None:
    assert "no calibration 'dgx'" in run(*PICK, "--calibration", "dgx", "--time", "both", code=2).stderr
    broken = tmp_path / "broken.json"
    broken.write_text("{}")
    assert "not a calibration" in run(*PICK, "--calibration", str(broken), "--time", "both", code=2).stderr
    contradiction = run(*PICK, "--calibration", str(broken), "--time", "nccl", code=2).stderr
    assert "valid with it: --time calibrated, both" in contradiction


def test_a_plain_pick_does_without_the_time_model() -> None:
    """So that it starts as quickly as without one."""
    asked = "print([name for name in sys.modules if name.startswith(('tuner.timemodel', 'tuner.analysis.calibrated'))])"
    code = f"import sys; from tuner.cli import everything; everything({list(PICK)}, standalone_mode=False); {asked}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
