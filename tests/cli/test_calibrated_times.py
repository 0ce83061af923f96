"""``--time`` and ``--calibration``: whose times a command shows; what it picks is NCCL's whatever they are."""

import json
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import calibrations, nccl_tests_text
from tests.support.command_line import run
from tuner.emulator import fitted_constants
from tuner.emulator.fitted_constants import FittedConstants
from tuner.times.timemodel.intervals import CarriedOver

H100 = ("--machine", "dgx-h100", "--nodes", "2", "--nccl", "2.28.9")
ONE = tuple("1" if word == "2" else word for word in H100)
PICK = ("pick", "allreduce", *ONE)
# Times as far from NCCL's as numbers can be: what is fastest by them is not what NCCL takes.
ABSURD = {"ll_hop_us": 1e6, "ll128_hop_us": 1e6, "tree_share": 1e-6, "nvls_start_us": 1e9}


@pytest.fixture
def calibration(tmp_path: Path) -> str:
    return str(calibrations.file(tmp_path))


def answers(*words: str) -> Any:
    """The object that is printed; of one that holds a list alone, the list."""
    found = json.loads(run(*words, "--json").stdout)
    assert found.pop("nccl_tuner_json") == 1
    (first, *others) = found.values()
    return found if others or not isinstance(first, list) else first


def width(time: dict[str, float]) -> float:
    """Half the interval around the logarithm."""
    assert time["time_us"] / time["low_us"] == pytest.approx(time["high_us"] / time["time_us"], rel=1e-4)
    return math.log(time["high_us"] / time["time_us"])


@pytest.mark.parametrize("time", ["calibrated", "both"])
def test_pick_has_the_calibrated_time_of_each_combination(calibration: str, time: str) -> None:
    for answer in answers(*PICK, "--bytes", "8,1M", "--time", time, "--calibration", calibration):
        assert set(answer["calibrated"]) == set(answer["cost_us"])
        keys = ["time_us", "low_us", "high_us", "extrapolated"]
        assert all(list(each) == keys for each in answer["calibrated"].values())
        for name, each in answer["calibrated"].items():
            more = () if name in calibrations.MEASURED else (CarriedOver.combination,)
            assert width(each) == pytest.approx(calibrations.half_width(*more), abs=1e-4)
        used = answer["calibration"]
        assert used["name"] == "made-up"
        assert used["carried_over"] == ["sizes"]
        assert set(used["not_measured"]) == set(answer["cost_us"]) - set(calibrations.MEASURED)


@pytest.mark.parametrize(("nodes", "is_shown"), [("1", False), ("4", True)])
def test_beside_an_extrapolated_time_stands_nccls(nodes: str, is_shown: bool) -> None:
    words = ("pick", "allreduce", "--machine", "dgx-h100", "--nccl", "2.29.2", "--bytes", "1M", "--time", "calibrated")
    said = run(*words, "--nodes", nodes).stdout
    assert ("NCCL us" in said) == ("extrapolated" in said) == is_shown


def test_what_is_carried_over_widens_the_interval_and_is_said(calibration: str) -> None:
    words = ("pick", "allgather", "--machine", "dgx-h200", "--gpus-per-node", "4", "--nccl", "2.29.2")
    (answer,) = answers(*words, "--bytes", "64M", "--calibration", calibration)
    expected = ["sizes", "another machine of the generation", "another release", "GPUs per node"]
    assert answer["calibration"]["carried_over"] == expected
    carried = (CarriedOver.machine, CarriedOver.release, CarriedOver.gpus)
    time = answer["calibrated"]["Ring/Simple"]
    assert width(time) == pytest.approx(calibrations.half_width(*carried), abs=1e-4)
    assert time["extrapolated"] == "GPUs per node"
    text = run(*words, "--bytes", "64M", "--calibration", calibration).stdout
    assert "another release, GPUs per node" in text
    assert "extrapolated: GPUs per node" in text


def test_between_nodes_a_row_says_that_the_site_was_not_measured() -> None:
    words = ("pick", "allreduce", "--machine", "dgx-b200", "--nodes", "4", "--nccl", "2.29.7", "--bytes", "4G")
    (unknown,) = answers(*words, "--time", "both")
    (known,) = answers(*words, "--calibration", "together-use3a")
    own, other = (each["calibrated"]["Ring/Simple"] for each in (known, unknown))
    assert other["extrapolated"] == "another site"
    assert own["extrapolated"] == ""
    # Below it ends where the links do, or nearer.
    assert other["high_us"] / other["time_us"] > (own["high_us"] / own["time_us"]) ** 2
    assert other["time_us"] / other["low_us"] < 1.001 * other["high_us"] / other["time_us"]
    said = run(*words, "--time", "both").stdout
    assert " [1] extrapolated: another site\n" in said
    assert re.search(r" to [\d.]+ \[1\]", said)


@pytest.mark.parametrize("collective", ["allreduce", "allgather", "broadcast"])
@pytest.mark.parametrize("machine", ["dgx-a100", "dgx-h100", "dgx-b200"])
def test_a_calibration_never_changes_a_pick(tmp_path: Path, machine: str, collective: str) -> None:
    """Not even one that says the opposite of NCCL's model."""
    file = str(calibrations.file(tmp_path, ABSURD))
    words = ("pick", collective, "--machine", machine, "--nccl", "2.28.9")
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
    assert "calibrated us" in out
    assert "90 % interval us" in out
    assert "from the calibration made-up, as asked for; its calls were launched by a process a GPU" in out
    assert "extrapolated, as they were never measured: NVLS/Simple" in out
    own = run(*PICK, "--bytes", "8", "--calibration", calibration).stdout
    assert "NCCL us" not in own
    assert "extrapolated" not in own


REFUSED = {
    "PCIe": (("pick", "allreduce", "--machine", "pcie-l40s", "--bytes", "1M"), "joined by"),
    "generation": (
        ("pick", "allreduce", "--machine", "dgx-1v", "--bytes", "1M"),
        "no calibration exists for Volta GPUs",
    ),
    "registered buffers": ((*PICK, "--bytes", "1M", "--buffers", "registered"), "only plain buffers were measured"),
    "window": (
        ("pick", "allreduce", "--machine", "dgx-h100", "--nccl", "2.28.9", "--buffers", "window"),
        "only plain buffers were measured",
    ),
    "nodes that differ": (
        ("pick", "allreduce", "--node", "dgx-h100:8x2", "--node", "dgx-a100:4", "--nccl", "2.28.9"),
        "for nodes that differ",
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
    assert "use --time calibrated or both" in contradiction


def test_a_plain_pick_does_without_the_time_model() -> None:
    """So that it starts as quickly as without one."""
    prefixes = "('tuner.times.timemodel', 'tuner.answers.calibrated')"
    asked = f"print([name for name in sys.modules if name.startswith({prefixes})])"
    code = f"import sys; from tuner.cli import everything; everything({list(PICK)}, standalone_mode=False); {asked}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_release_from_before_a_gpu_does_not_change_whose_calibration_answers() -> None:
    """NCCL 2.22.3 takes Blackwell GPUs for Hopper ones; what was measured of them stays."""
    words = ("pick", "allreduce", "--machine", "dgx-b200", "--bytes", "1M", "--time", "calibrated")
    (old,), (new,) = answers(*words, "--nccl", "2.22.3"), answers(*words, "--nccl", "2.28.9")
    assert old["calibration"]["name"] == new["calibration"]["name"] == "dgx-b200"


DIFF = ("diff", "allreduce", *H100[:-1], "2.22.3", "2.25.1")


def test_diff_has_the_gain_by_nccl_and_by_measurements(calibration: str) -> None:
    changes = answers(*DIFF, "--calibration", calibration, "--time", "both")[0]["changes"]
    for change in changes:
        found = change["calibrated"]
        before, after, ratio = found["before"], found["after"], found["ratio"]
        assert ratio["ratio"] == pytest.approx(after["time_us"] / before["time_us"], rel=1e-4)
        # Both are of one site: what its calls have in common cancels.
        assert after["low_us"] / before["high_us"] < ratio["low"] < ratio["ratio"]
        assert ratio["ratio"] < ratio["high"] < after["high_us"] / before["low_us"]
        assert found["calibration_before"]["carried_over"] == ["another site", "sizes"]
        del change["calibrated"]
    assert changes == answers(*DIFF, "--time", "nccl")[0]["changes"]
    out = run(*DIFF, "--calibration", calibration, "--time", "both").stdout
    assert "time by NCCL   by measurements" in out
    assert out.count("from the calibration made-up") == 1
    own = run(*DIFF, "--calibration", calibration).stdout
    assert "by measurements" in own
    assert "time by NCCL" not in own
    assert "by measurements" not in run(*DIFF, "--time", "nccl").stdout


def test_what_is_the_same_call_before_and_after_takes_the_same_time(calibration: str) -> None:
    words = ("diff", "allreduce", "nccl=2.29.2", *H100, "--bytes", "8,1M", "--calibration", calibration)
    for size in answers(*words)[0]["sizes"]:
        assert size["before"] == size["after"]
        ratio = size["calibrated"]["ratio"]
        assert (ratio["ratio"], ratio["low"], ratio["high"]) == (1.0, 1.0, 1.0)
    assert "+0.0 %" in run(*words).stdout


def test_an_error_that_both_sides_have_cancels(calibration: str) -> None:
    """A machine and a release that were not measured: what is wrong by that is wrong on both sides, on one node where
    they run the same; between nodes as far as calls of one site are alike."""
    words = ("diff", "allreduce", "--machine", "dgx-h200", "--nccl", "2.29.2", "--bytes", "64M")
    forced = (*words, "--env", "NCCL_ALGO=Ring", "--env", "NCCL_PROTO=Simple", "--calibration", calibration)
    (alone,) = answers(*forced, "NCCL_MAX_NCHANNELS=8")[0]["sizes"]
    assert alone["before"]["channels"] != alone["after"]["channels"]
    ratio = alone["calibrated"]["ratio"]
    assert math.log(ratio["high"] / ratio["ratio"]) == pytest.approx(2 * calibrations.half_width(), abs=1e-4)
    (several,) = answers(*forced, "NCCL_MAX_NCHANNELS=8", "--nodes", "4")[0]["sizes"]
    of_both = several["calibrated"]
    apart = math.log(of_both["before"]["high_us"] / of_both["before"]["time_us"])
    assert math.log(of_both["ratio"]["high"] / of_both["ratio"]["ratio"]) < apart
    assert of_both["ratio"]["extrapolated"] == "both: another site"


def test_a_change_that_may_be_none_says_so_and_is_no_loss() -> None:
    words = ("diff", "allreduce", "--machine", "dgx-b200", "--nodes", "4", "--nccl", "2.28.9", "2.30.7")
    out = run(*words, "--from", "8G", "--to", "32G", "--fail-above", "1%").stdout
    assert "cannot be told" in out
    assert " [1] extrapolated, both sides: another site\n" in out


def test_a_side_without_a_calibration_says_why() -> None:
    words = ("diff", "allgather", "machine=pcie-l40s", "--machine", "dgx-h100", "--nccl", "2.28.9", "--bytes", "1M")
    (size,) = answers(*words)[0]["sizes"]
    assert size["calibrated"]["after"] is None
    assert size["calibrated"]["ratio"] is None
    assert size["calibrated"]["before"]["time_us"] > 0
    assert "joined by SYS" in run(*words).stdout
    assert "joined by SYS" in run(*words, "--time", "calibrated", code=2).stderr


def test_all_releases_have_nccls_times_only(calibration: str) -> None:
    words = ("diff", "allreduce", "--machine", "dgx-h100", "--nodes", "2", "--all-releases", "--calibration")
    assert "only shows NCCL's own times" in run(*words, calibration, code=2).stderr


BUDGET = ("budget", "docs/examples/step.csv", *H100[:-1], "2.22.3,2.25.1")


def test_budget_adds_bounds_up(calibration: str) -> None:
    budget = answers(*BUDGET, "--calibration", calibration, "--time", "both")
    for at, variant in enumerate(budget["variants"]):
        prices = [entry["prices"][at]["calibrated"] for entry in budget["entries"]]
        calls = [entry["calls"] for entry in budget["entries"]]
        for key in ("time_us", "low_us", "high_us"):
            total = sum(number * price[key] for number, price in zip(calls, prices, strict=True))
            assert variant["calibrated"][key] == pytest.approx(total)
            assert sum(part["calibrated"][key] for part in variant["by_collective"]) == pytest.approx(total)
            assert sum(part["calibrated"][key] for part in variant["by_combination"]) == pytest.approx(total)
    first, other = (variant["calibrated"] for variant in budget["variants"])
    assert first["difference_low_us"] == first["difference_high_us"] == 0
    assert other["difference_us"] == pytest.approx(other["time_us"] - first["time_us"])
    low, high = other["low_us"] - first["high_us"], other["high_us"] - first["low_us"]
    # Calls that are the same in both releases do not add to the bounds.
    assert low < other["difference_low_us"] < other["difference_us"] < other["difference_high_us"] < high
    assert other["difference"] == pytest.approx(other["difference_us"] / first["time_us"])


def test_budget_by_nccl_is_what_it_was(calibration: str) -> None:
    both, plain = (answers(*BUDGET, *words) for words in (("--calibration", calibration), ("--time", "nccl")))
    assert any("calibrated" in part for part in both["variants"])

    def without(value: Any) -> Any:
        if isinstance(value, dict):
            kept = {key: each for key, each in value.items() if key not in ("calibrated", "calibration")}
            return {key: without(each) for key, each in kept.items()}
        return [without(each) for each in value] if isinstance(value, list) else value

    assert without(both) == plain == without(plain)


def test_budget_says_whose_times_and_that_nothing_computes_beside(calibration: str) -> None:
    out = run(*BUDGET, "--calibration", calibration, "--time", "both").stdout
    assert "ms by NCCL's own prediction, " in out
    assert "ms by measurements (90 %: " in out
    assert (
        "predicted times are for calls that run alone, with no computation at the same time; --overlap shows how many "
        "SMs they occupy" in out
    )
    assert "difference by measurements" in out
    own = run(*BUDGET, "--calibration", calibration).stdout
    assert "NCCL's own prediction" not in own
    plain = run(*BUDGET, "--time", "nccl").stdout
    assert "measurements" not in plain
    assert "with no computation at the same time" in plain


def test_overlap_says_the_sms_that_calls_take() -> None:
    (variant, _) = answers(*BUDGET, "--overlap")["variants"]
    budget = answers(*BUDGET)
    prices = [entry["prices"][0] for entry in budget["entries"]]
    assert variant["channels"]["least"] == min(price["channels"] for price in prices)
    assert variant["channels"]["most"] == max(price["channels"] for price in prices)
    weighted = sum(price["channels"] * price["total_us"] for price in prices)
    assert variant["channels"]["mean"] == pytest.approx(weighted / variant["total_us"])
    out = run(*BUDGET, "--overlap").stdout
    assert f"{variant['channels']['mean']:.1f} on average over the predicted time" in out
    assert "how much sharing a GPU slows calls and computation is not known" in out


def test_budget_without_a_calibration_says_why() -> None:
    words = ("budget", "docs/examples/step.csv", "--machine", "pcie-l40s", "--nodes", "2", "--nccl", "2.28.9")
    assert "calibrated times: none; no calibrated times exist if" in run(*words).stdout
    (variant,) = answers(*words)["variants"]
    assert "calibrated" not in variant
    assert variant["calibration"]["name"] is None
    assert "joined by" in run(*words, "--time", "calibrated", code=2).stderr


def test_scale_has_calibrated_times_at_both_ends(calibration: str) -> None:
    words = ("--machine", "dgx-h100", "--nccl", "2.28.9", "--calibration", calibration)
    over = ("edges", "--over", "nodes", "allgather", "--bytes", "64K,16M", "--per-rank", "--to-nodes", "40")
    found = answers(*over, *words, "--time", "both")
    assert len(found["ranges"]) > 2
    for each in found["ranges"]:
        for end in ("from", "to"):
            nodes = each[f"{end}_nodes"]
            whole = str(nodes * 8 * each["bytes"])
            (pick,) = answers("pick", "allgather", "--nodes", str(nodes), "--bytes", whole, *words)
            expected = pick["calibrated"][f"{each['algorithm']}/{each['protocol']}"]
            assert each[f"calibrated_{end}"] == expected
    (used,) = found["calibrations"]
    assert used["carried_over"] == ["sizes", "another site"]
    plain = answers(*over, *words[:4], "--time", "nccl")
    del found["calibrations"]
    for each in found["ranges"]:
        del each["calibrated_from"], each["calibrated_to"]
    assert found == plain
    out = run("edges", "--over", "nodes", "allgather", "--bytes", "1M", "--to-nodes", "8", *words).stdout
    assert "calibrated us" in out
    assert "NCCL us" not in out


def test_scale_without_a_calibration_says_why_once() -> None:
    out = run(
        "edges",
        "--over",
        "nodes",
        "allreduce",
        "--bytes",
        "1M",
        "--machine",
        "pcie-l40s",
        "--nccl",
        "2.28.9",
        "--to-nodes",
        "8",
    ).stdout
    assert out.count("calibrated times: none; no calibrated times exist if") == 1
    assert "calibrated us" not in out


def test_cost_report_holds_calibrated_times_against_measured_ones(calibration: str, tmp_path: Path) -> None:
    pick = answers("pick", "allreduce", *H100, "--bytes", "64K,1M", "--calibration", calibration)
    best = [each["calibrated"][f"{each['pick']['algorithm']}/{each['pick']['protocol']}"] for each in pick]
    file = nccl_tests_text.write(
        tmp_path / "a.txt", [(1 << 16, best[0]["time_us"]), (1 << 20, 2 * best[1]["high_us"])], nodes=2
    )
    words = ("cost", "report", str(file), *H100, "--calibration", calibration)
    small, large = answers(*words)["sizes"]
    assert small["calibrated"]["holds"]
    assert abs(small["calibrated"]["error"]) < 0.001
    assert not large["calibrated"]["holds"]
    assert large["calibrated"]["error"] == pytest.approx(best[1]["time_us"] / large["measured_us"] - 1, abs=1e-4)
    out = run(*words, "--time", "both").stdout
    assert "calibrated against 2 measured sizes: in the interval at 1" in out
    assert "NCCL us" in out
    assert "NCCL us" not in run(*words).stdout


STEP = ("cost", "step", "--parameters", "70e9", "--layers", "80", "--hidden", "8192", "--sequence", "4096", "--tp", "8")
NCCL_STEP = (*STEP, "--dp", "4", "--model", "nccl", "--machine", "dgx-h100", "--nccl", "2.28.9")


def test_a_step_adds_calibrated_calls_up(calibration: str) -> None:
    record = answers(*NCCL_STEP, "--calibration", calibration)
    rows = [row for row in record["rows"] if "calibrated_call" in row]
    assert rows
    for key in ("time_us", "low_us", "high_us"):
        total = sum(row["calls"] * row["calibrated_call"][key] for row in rows)
        assert record["calibrated"][key] == pytest.approx(total)
    words = (*NCCL_STEP, "--compute-us", "1e6", "--overlap", "0.5")
    out = run(*words, "--calibration", calibration).stdout
    assert "predicted times are for calls that run alone, with no computation at the same time" in out
    assert (
        "SMs of each GPU away from computation, one per channel; how much sharing a GPU slows calls and computation is "
        "not known" in out
    )
    assert "by measurements" in out
    plain = answers(*NCCL_STEP, "--time", "nccl")
    assert "calibrated" not in plain
    assert [row["step_us"] for row in plain["rows"]] == [row["step_us"] for row in record["rows"]]
    assert "--model nccl" in run(*STEP, "--calibration", calibration, code=2).stderr


def test_table_has_calibrated_times_where_a_call_may_run(calibration: str) -> None:
    words = ("--machine", "dgx-h100", "--nccl", "2.28.9")
    cells = answers("table", *words, "--calibration", calibration)
    may_run = [cell for cell in cells if "calibrated" in cell]
    (smallest, large) = answers("pick", "allgather", *words, "--bytes", "32,1G", "--calibration", calibration)
    own = {f"{cell['algorithm']}/{cell['protocol']}": cell for cell in may_run if cell["collective"] == "AllGather"}
    assert set(own) == set(smallest["cost_us"])
    for name, cell in own.items():
        found = cell["calibrated"]
        assert found["smallest"] == smallest["calibrated"][name]
        assert found["large_gbs"] == pytest.approx(2**30 / large["calibrated"][name]["time_us"] / 1e3)
        assert found["large_low_gbs"] == pytest.approx(2**30 / large["calibrated"][name]["high_us"] / 1e3)
        assert found["measured"] == (name in calibrations.MEASURED)
    for cell in may_run:
        del cell["calibrated"]
    assert cells == answers("table", *words)
    plain, both = run("table", *words).stdout, run("table", *words, "--time", "both").stdout
    assert both.startswith(plain)
    assert "from the calibration dgx-h100" in both
    own_text = run("table", *words, "--calibration", calibration).stdout
    assert own_text.startswith("calibrated times and algorithm bandwidths")


def test_explain_has_calibrated_times_only_where_they_are_asked_for(calibration: str) -> None:
    words = ("explain", "allreduce", *ONE, "--bytes", "1M")
    plain, found = answers(*words), answers(*words, "--calibration", calibration)
    (pick,) = answers(*PICK, "--bytes", "1M", "--calibration", calibration)
    assert found.pop("calibrated") == {name: pick["calibrated"][name] for name in found_names(plain)}
    assert found.pop("calibration")["name"] == "made-up"
    assert found == plain
    out = run(*words, "--calibration", calibration).stdout
    assert out.startswith(run(*words).stdout)
    assert "calibrated times of the combinations (NCCL does not use them to pick)" in out


def found_names(explanation: Any) -> list[str]:
    may_run = [explanation["pick"], *(other for other in explanation["others"] if "time_us" in other)]
    return [f"{each['algorithm']}/{each['protocol']}" for each in may_run]


def test_budget_has_all_to_all_by_measurements_alone(tmp_path: Path) -> None:
    """NCCL has no algorithm for it: it stays left out of NCCL's total, and of the calibrated one."""
    words = ("--machine", "dgx-h100", "--nccl", "2.29.2")
    file, without = tmp_path / "with.csv", tmp_path / "without.csv"
    without.write_text("collective,bytes,calls\nallreduce,64M,2\n")
    file.write_text(f"{without.read_text()}alltoall,8M,3\nall_to_all,64M,1\nalltoallv,8M,7\n")
    pick = answers("pick", "alltoall", *words, "--bytes", "8M,64M")
    (variant,) = answers("budget", str(file), *words)["variants"]
    found = variant.pop("all_to_all")
    assert found["calls"] == 4
    assert [(each["bytes"], each["calls"]) for each in variant.pop("exchanges")] == [(8 << 20, 3), (64 << 20, 1)]
    for key in ("time_us", "low_us", "high_us"):
        expected = 3 * pick[0]["calibrated"][key] + pick[1]["calibrated"][key]
        assert found[key] == pytest.approx(expected, rel=1e-4)
    assert [variant] == answers("budget", str(without), *words)["variants"]
    out = run("budget", str(file), *words).stdout
    assert "4 AllToAll take" in out
    assert "left out: 3 x alltoall: NCCL has no algorithms to choose from" in out
    assert "AllToAll take" not in run("budget", str(file), *words, "--time", "nccl").stdout


def test_fitted_constants_and_calibrations_are_told_apart(calibration: str, tmp_path: Path) -> None:
    constants = tmp_path / "own.toml"
    fitted_constants.write(constants, FittedConstants("2.28.9", {"base_latency_us": {"ring": {"ll": 7.5}}}, {}))
    out = run(
        *PICK, "--bytes", "1M", "--constants", str(constants), "--calibration", calibration, "--time", "both"
    ).stdout
    assert "fitted us" in out
    assert "calibrated us" in out
    assert "NCCL us" not in out
    assert "NCCL us" in run(*PICK, "--bytes", "1M").stdout
    refused = run(*PICK, "--calibration", str(constants), code=2).stderr
    assert "not a calibration" in refused
    assert "fitted constants are another thing, for --constants" in refused
    refused = run(*PICK, "--constants", calibration, code=2).stderr
    assert "calibrated times are another thing, for --calibration" in refused
    assert "with fitted constants" in run(*BUDGET[:-1], "2.28.9", "--constants", str(constants)).stdout


@pytest.mark.parametrize(
    ("machine", "calibration", "why"),
    [
        ("dgx-h100", "dgx-h100", "this machine's own"),
        ("oci-h100", "dgx-h100", "of another machine with H100 SXM5 GPUs"),
        ("aws-p4d", "dgx-a100", "of another machine with A100 SXM4 GPUs"),
        ("hgx-h800", "dgx-h100", "of another machine with Hopper GPUs, H100 SXM5; no H800 SXM5 was measured"),
        ("dgx-h200", "dgx-h100", "of another machine with Hopper GPUs, H100 SXM5; no H200 SXM5 was measured"),
        ("dgx-b300", "dgx-b200", "of another machine with Blackwell GPUs, B200; no B300 was measured"),
        ("gb300-nvl72", "dgx-b200", "of another machine with Blackwell GPUs, B200; no GB300 was measured"),
    ],
)
def test_whose_times_they_are_goes_by_the_gpus_name(machine: str, calibration: str, why: str) -> None:
    words = ("explain", "allreduce", "--bytes", "64M", "--nccl", "2.29.2", "--time", "both", "--machine", machine)
    assert f"{calibration}, {why}" in run(*words, "--json").stdout
