"""`nccl-tuner cost` as a user meets it: the forms other tools rely on, the examples, and bad input in one line."""

import csv
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support import command_line, published_numbers
from tests.support import nccl_tests_text as nccltests_text
from tests.support.available_releases import HERE
from tests.support.published_numbers import ROWS, Row
from tuner import cli
from tuner.answers import efficiency
from tuner.base.errors import BadInput, BadMeasurement
from tuner.base.names import Collective
from tuner.base.sizes import named_bytes
from tuner.cli.cost import VERBS, command
from tuner.times.calibration import sweep
from tuner.times.costmodels import fabric, step
from tuner.times.costmodels.alphabeta import level, terms
from tuner.times.costmodels.operations import CostOperation

Run = Callable[..., str]
A100 = Path(__file__).resolve().parents[3] / "shared" / "cases" / "2xA100-pcie-nvlink-nccl2.27.7"
SMALL = [2**power for power in range(10, 31, 2)]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """What a command prints; with ``code``, the line on stderr; with None either."""

    def run(*arguments: str, code: int | None = 0) -> str:
        monkeypatch.setattr(sys, "argv", ["nccl-tuner", *(() if arguments[0] == "fit" else ("cost",)), *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        assert ended.value.code in ((0, 2) if code is None else (code,)), err
        if ended.value.code:
            assert out == ""
            assert len(err.splitlines()) == 1
            assert err.startswith("nccl-tuner: ")
        return err or out

    return run


def loaded(text: str) -> Any:
    """What was printed; of answers for all values that were given the list, or the only one."""
    found = json.loads(text)
    assert found["nccl_tuner_json"] == 1
    answers = next((found[key] for key in ("answers", "tables", "experiments", "picks") if key in found), [found])
    return answers[0] if len(answers) == 1 else answers


def test_the_forms_that_other_tools_rely_on(run: Run) -> None:
    ideal = run("ideal", "--intra-gbs", "450", "--inter-gbs", "100", "--gpus-per-node", "8", "--nodes", "2", "--json")
    assert '"ideal_busbw_gbs": 187.5' in ideal
    ring = run(
        "allreduce",
        "--algorithm",
        "ring",
        "--ranks",
        "16",
        "--bytes",
        "100MB",
        "--alpha-us",
        "10",
        "--beta-gbs",
        "100",
        "--json",
    )
    assert '"time_us": 2175.0' in ring
    busbw = run("allreduce", "--ranks", "8", "--bytes", "1GB", "--time-us", "80000", "--json")
    assert '"algbw_gbs": 12.5,' in busbw
    assert '"busbw_gbs": 21.875' in busbw
    for text in (ideal, ring, busbw):
        assert isinstance(json.loads(text), dict)
        assert len(json.loads(text)["answers"]) == 1


def test_several_values_are_a_list_in_their_order(run: Run) -> None:
    found = loaded(run("allgather", "--ranks", "2,4", "--bytes", "1GB,1GiB", "--time-us", "1,2", "--json"))
    assert [(one["ranks"], one["bytes"], one["time_us"]) for one in found] == [
        (ranks, size, time) for ranks in (2, 4) for size in (10**9, 2**30) for time in (1.0, 2.0)
    ]
    found = loaded(
        run("allreduce", "--ranks", "4,8", "--bytes", "1K,1KB", "--alpha-us", "1", "--beta-gbs", "1", "--json")
    )
    assert [(one["ranks"], one["bytes"]) for one in found] == [(4, 1024), (4, 1000), (8, 1024), (8, 1000)]


def test_every_command_has_help_with_an_example(run: Run) -> None:
    assert sorted(VERBS) == sorted(command.list_commands(None))  # type: ignore[arg-type]
    for name in VERBS:
        assert f"nccl-tuner cost {name.replace('operation', 'allreduce')}" in run(name, "--help")
        assert "--json" in run(name, "--help")


@pytest.mark.parametrize("operation", CostOperation)
def test_every_operation_has_a_time(run: Run, operation: CostOperation) -> None:
    found = loaded(
        run(operation.name.lower(), "--ranks", "8", "--bytes", "1GB", "--alpha-us", "1", "--beta-gbs", "100", "--json")
    )
    assert found["operation"] == operation.name
    assert found["time_us"] == pytest.approx(sum(found["parts_us"].values()))
    assert operation.name in run(
        operation.name.lower(), "--ranks", "8", "--bytes", "1GB", "--alpha-us", "1", "--beta-gbs", "100"
    )


LEVELS = ("--alpha-us", "1", "--beta-gbs", "300", "--inter-alpha-us", "5", "--inter-beta-gbs", "50")


def test_a_hierarchical_one_says_its_phases_and_what_flat_would_take(run: Run) -> None:
    asked = ("allreduce", "--algorithm", "hierarchical", "--ranks", "64", "--gpus-per-node", "8", "--bytes", "2GB")
    found = loaded(run(*asked, *LEVELS, "--json"))
    assert found["phases_us"]["inter-node AllReduce"] == pytest.approx(8820)
    assert sum(found["phases_us"].values()) == pytest.approx(found["time_us"])
    assert found["flat_us"] / found["time_us"] == pytest.approx(79380 / 20500.67, rel=1e-4)
    assert "(3.87 times as long)" in run(*asked, *LEVELS)


def test_overheads_and_errors_are_named(run: Run) -> None:
    asked = (
        "allreduce",
        "--ranks",
        "16",
        "--bytes",
        "100MB",
        "--alpha-us",
        "4",
        "--overhead-us",
        "3",
        "--beta-gbs",
        "100",
        "--software-us",
        "25",
        "--straggler",
        "0.1",
        "--measured-us",
        "4000",
    )
    found = loaded(run(*asked, "--json"))
    assert found["parts_us"]["model"] == pytest.approx(2175)  # alpha is 4 + 2 x 3
    assert found["time_us"] == pytest.approx(2200 * 1.1)
    assert found["error"] == pytest.approx(2420 / 4000 - 1)
    assert found["class"] == "assumptions violated"
    assert loaded(run(*asked, "--gap-us", "50", "--json"))["latency_us"] == 30 * 50
    text = run(*asked)
    assert "software +25.00, straggler +220.00" in text
    assert "the model is off by -39.5 %: assumptions violated" in text
    assert "look for contention" in text


def test_both_kinds_of_units_are_told_apart() -> None:
    assert named_bytes(10**9) == "1 GB (953.7 MiB)"
    assert named_bytes(2**30) == "1.074 GB (1 GiB)"
    assert named_bytes(64) == "64 B"


def test_wires_of_nvls_and_pat(run: Run) -> None:
    nvls = loaded(
        run(
            "allreduce",
            "--ranks",
            "8",
            "--bytes",
            "1GB",
            "--busbw-gbs",
            "480",
            "--algorithm",
            "nvls",
            "--json",
        )
    )
    assert nvls["busbw_gbs"] == pytest.approx(480)
    assert nvls["gpu_wire_gbs"] == pytest.approx(480 / 1.75 * 1.125)
    pat = loaded(
        run(
            "allgather",
            "--ranks",
            "64",
            "--count",
            "250000",
            "--time-us",
            "6300",
            "--algorithm",
            "pat",
            "--gpus-per-node",
            "1",
            "--ranks-per-switch",
            "8",
            "--json",
        )
    )
    assert pat["bytes"] == 64_000_000
    assert pat["node_wire_gbs"] == pytest.approx(pat["busbw_gbs"])
    assert pat["uplink_share"] == pytest.approx((56 + 32 * 3) / 64)


def test_the_fastest_and_the_crossovers(run: Run) -> None:
    found = loaded(run("allreduce", "--crossovers", "--ranks", "12", "--alpha-us", "10", "--beta-gbs", "100", "--json"))
    assert [one["algorithm"] for one in found["fastest"]] == ["tree", "ring"]
    (pair,) = found["crossovers"]
    assert found["fastest"][1]["from_bytes"] == pair["bytes"]
    assert pair["time_us"] == pytest.approx(22 * 10 + 22 / 12 * pair["bytes"] / 1e5)
    text = run("allreduce", "--crossovers", "--ranks", "64", "--gpus-per-node", "8", *LEVELS)
    assert "hierarchical" in text
    assert "halving-doubling" in text


STEP = (
    "step",
    "--parameters",
    "70e9",
    "--layers",
    "80",
    "--hidden",
    "8192",
    "--sequence",
    "4096",
    "--tp",
    "8",
    "--dp",
    "8",
    "--pp",
    "8",
    "--micro-batches",
    "8",
)


def test_the_70b_example(run: Run) -> None:
    asked = (*STEP, "--activation-bytes", "64MB", "--gradient-bytes", "17.5GB", "--compute-us", "1500000")
    found = loaded(run(*asked, "--json"))
    assert found["communication_us"] == pytest.approx(757_077, abs=1)
    assert {row["parallelism"]: round(row["step_us"] / 1000, 2) for row in found["rows"]} == {
        "TP": 123.95,
        "PP": 20.56,
        "DP": 612.57,
    }
    assert found["step_us"] == found["communication_us"] + 1_500_000
    assert "50.5 % of 1500 ms of computation" in run(*asked)


def test_a_step_with_nccl_shows_the_difference(run: Run) -> None:
    asked = (*STEP, "--model", "nccl", "--machine", "dgx-h100", "--nccl", "2.28.9")
    found = loaded(run(*asked, "--json"))
    rows = {row["parallelism"]: row for row in found["rows"]}
    tp = loaded(
        _pick(("allreduce", "--machine", "dgx-h100", "--nccl", "2.28.9", "--bytes", "64MiB", "--dtype", "float16"))
    )
    assert rows["TP"]["nccl_call_us"] == pytest.approx(tp["pick"]["time_us"], rel=1e-6)
    assert rows["TP"]["nccl_pick"] == f"{tp['pick']['algorithm']}/{tp['pick']['protocol']}"
    assert rows["TP"]["difference"] == pytest.approx(rows["TP"]["alphabeta_call_us"] / tp["pick"]["time_us"] - 1)
    assert rows["TP"]["step_us"] == 320 * rows["TP"]["nccl_call_us"]
    assert rows["PP"]["nccl_call_us"] is None
    assert rows["PP"]["step_us"] == 16 * rows["PP"]["alphabeta_call_us"]
    assert found["communication_us"] == pytest.approx(sum(row["step_us"] for row in found["rows"]))
    assert found["alphabeta_us"] == pytest.approx(sum(row["alphabeta_call_us"] * row["calls"] for row in found["rows"]))
    assert "NCCL's pick" in run(*asked)
    assert "NCCL's pick" not in run(*STEP)
    assert run(*(word for word in asked if word not in ("--model", "nccl"))) == run(*asked)


def test_the_first_line_of_a_step_is_its_communication(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = (*STEP, "--machine", "dgx-h100", "--nccl", "2.28.9")
    took_ms = loaded(run(*asked, "--json"))["communication_us"] / 1000
    assert run(*asked).startswith(f"{took_ms:.2f} ms of communication in a step of ")
    monkeypatch.setenv("COLUMNS", "80")
    head = run(*asked).split("───")[0]
    assert head.count("step") == 2  # the title, and the column
    assert "share" in head


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--tp", "3"), "--tp 3 x --pp 1 = 3 GPUs of a copy of the model do not divide 512 GPUs"),
        (("--tp", "0"), "--tp 0; valid: 1 or more"),
        (("--nodes", "0"), "--nodes 0; valid: 1 or more"),
    ],
)
def test_what_a_step_cannot_be_split_into_is_said_in_options(words: tuple[str, ...], said: str) -> None:
    words = ("cost", "step", "llama-3-70b", "--nodes", "64", *words)
    assert said in command_line.run(*words, code=2).stderr


def test_gradients_are_asked_for_in_their_own_type(run: Run) -> None:
    """NVLS reduces bfloat16, not the float8 of activations."""
    asked = (
        "step",
        "--parameters",
        "70e9",
        "--layers",
        "80",
        "--hidden",
        "8192",
        "--sequence",
        "4096",
        "--dp",
        "8",
        "--dtype",
        "float8e4m3",
        "--gradient-dtype",
        "bfloat16",
        "--model",
        "nccl",
        "--machine",
        "dgx-h100",
        "--nccl",
        "2.28.9",
    )
    (gradients,) = loaded(run(*asked, "--json"))["rows"]
    assert gradients["nccl_pick"] == "NVLS/Simple"
    (activations,) = loaded(run(*(word.replace("--dp", "--tp") for word in asked), "--json"))["rows"]
    assert not activations["nccl_pick"].startswith("NVLS")


def test_a_step_of_one_gpu_communicates_nothing(run: Run) -> None:
    found = loaded(run(*STEP[:-8], "--json"))
    assert (found["gpus"], found["rows"]) == (1, [])
    assert isinstance(found["communication_us"], float)


def _pick(arguments: tuple[str, ...]) -> str:
    from click.testing import CliRunner

    return CliRunner().invoke(cli.everything, ["pick", *arguments, "--json"], catch_exceptions=False).output


def test_the_projection_prints_the_tables(run: Run) -> None:
    found = loaded(run("ideal", "--fabric", "aurora", "--profile", "tables", "--json"))
    assert [len(one["rows"]) for one in found] == [4, 9, 4, 9, 3]
    assert found[0]["rows"][0]["time_us"] == pytest.approx(108_695.65, abs=0.01)
    one = loaded(
        run(
            "ideal",
            "--fabric",
            "aurora",
            "--bytes",
            "2GB",
            "--nodes",
            "2",
            "--ranks-per-node",
            "12",
            "--path",
            "pcie",
            "--measured-ms",
            "221.8",
            "--json",
        )
    )
    assert one["efficiency"] == pytest.approx(0.23301, abs=1e-5)
    assert "NIC 13.6, PCIe 15.9" in run(
        "ideal", "--fabric", "aurora", "--bytes", "2GB", "--ranks-per-node", "12", "--path", "pcie"
    )


def test_measuring_says_what_is_usual(run: Run) -> None:
    assert "all_reduce_perf -b 4 -e 4 -n 10000" in run("fit", "alpha-beta", "--experiment")
    found = loaded(
        run(
            "fit",
            "alpha-beta",
            "--experiment",
            "beta_inter_gbs",
            "--elapsed-us",
            "1489361,1500000",
            "--ranks",
            "8",
            "--json",
        )
    )
    assert found["mean"] == pytest.approx((1.75 * 4e9 * 10 / 1489361 + 1.75 * 4e9 * 10 / 1500000) / 2000)
    assert found["usual"] is True
    assert "not as usual: 1 to 5" in run(
        "fit", "alpha-beta", "--experiment", "alpha_intra_us", "--elapsed-us", "1e6", "--ranks", "8"
    )


# From measurements


def planted(path: Path, alpha: float, beta: float, seed: int, nodes: int = 1) -> Path:
    ring = terms(CostOperation.AllReduce, "ring", 8 * nodes)
    noise = np.exp(np.random.default_rng(seed).normal(0, 0.01, len(SMALL)))
    times = ring.time_us(SMALL, level(alpha, beta)) * noise
    return nccltests_text.write(path, list(zip(SMALL, times.tolist(), strict=True)), nodes=nodes)


def test_runs_give_alpha_and_beta_with_mean_and_deviation(run: Run, tmp_path: Path) -> None:
    files = [str(planted(tmp_path / f"{seed}.txt", 3, 250, seed)) for seed in range(5)]
    found = loaded(run("fit", "alpha-beta", "--sweep", *files, "--json"))
    assert found["alpha_us"] == pytest.approx(3, rel=0.02)
    assert found["beta_gbs"] == pytest.approx(250, rel=0.02)
    assert found["r2"] > 0.99
    assert found["class"] == "excellent"
    for name, planted_value in (("alpha_us", 3), ("beta_gbs", 250)):
        runs = found["runs"][name]
        assert abs(runs["mean"] - planted_value) < 4 * runs["deviation"] < 0.2 * planted_value
    assert "mean of runs" in run("fit", "alpha-beta", "--sweep", *files)
    assert loaded(run("fit", "alpha-beta", "--sweep", files[0], "--json"))["runs"]["alpha_us"]["deviation"] is None
    tree = loaded(run("fit", "alpha-beta", "--sweep", files[0], "--algorithm", "tree", "--json"))
    assert tree["alpha_us"] == pytest.approx(14 / 6 * 3, rel=0.05)


def test_a_report_holds_each_size_against_everything(run: Run, tmp_path: Path) -> None:
    file, picture = tmp_path / "run.txt", tmp_path / "report.png"
    nccltests_text.write(file, [(1 << 10, 30.0), (1 << 20, 60.0), (1 << 30, 4500.0)], nodes=2)
    asked = ("report", str(file), "--machine", "dgx-h100", "--nodes", "2", "--plot", str(picture))
    found = loaded(run(*asked, "--json"))
    assert found["nccl"] == "2.28.9"  # the file's
    assert found["links"] == {"intra_gbs": 450.0, "inter_gbs": 400.0}
    small, middle, large = found["sizes"]
    picked = loaded(
        _pick(("allreduce", "--machine", "dgx-h100", "--nodes", "2", "--nccl", "2.28.9", "--bytes", "1K,1M,1G"))
    )
    for row, one in zip(found["sizes"], picked, strict=True):
        assert row["pick"] == f"{one['pick']['algorithm']}/{one['pick']['protocol']}"
        assert row["nccl_us"] == pytest.approx(one["pick"]["time_us"], rel=1e-6)
        assert row["nccl_error"] == pytest.approx(row["nccl_us"] / row["measured_us"] - 1)
    assert large["busbw_gbs"] == pytest.approx(2**30 * 1.875 / 4500 / 1000)
    assert large["ideal_busbw_gbs"] == pytest.approx(450 * 15 / 14)
    assert large["efficiency"] == pytest.approx(large["busbw_gbs"] / large["ideal_busbw_gbs"])
    assert large["verdict"] == "well optimised"
    assert (small["limit"], small["verdict"]) == (efficiency.LATENCY, "latency-bound")
    assert large["limit"] == efficiency.INTRA
    assert large["link_busbw_gbs"] == pytest.approx(450 / 1.125 * 1.875)  # NVLSTree
    assert (found["intra"], found["inter"]) == (
        {"alpha_us": 1.0, "beta_gbs": 450.0},
        {"alpha_us": 5.0, "beta_gbs": 50.0},
    )
    assert (middle["alphabeta_algorithm"], middle["alphabeta_us"]) == (
        "hierarchical",
        pytest.approx(14 + 10 + 2**20 * (1.75 / 450 + 1 / 8 / 50) / 1000),
    )
    assert middle["alphabeta_error"] == pytest.approx(middle["alphabeta_us"] / 60 - 1)
    assert picture.read_bytes().startswith(b"\x89PNG")
    text = run(*asked)
    assert "ideal busbw 482.1 GB/s" in text
    assert "NCCL against 3 measured sizes" in text


@pytest.mark.parametrize(
    ("program", "nodes", "gpus", "algorithm", "full_gbs"),
    [
        ("broadcast_perf", 2, 8, "tree", 400),
        ("reduce_perf", 1, 8, "tree", 450),
        ("all_gather_perf", 1, 8, "ring", 450),
        ("reduce_scatter_perf", 4, 1, "ring", 50),
    ],
)
def test_every_collective_has_a_report(
    run: Run, tmp_path: Path, program: str, nodes: int, gpus: int, algorithm: str, full_gbs: float
) -> None:
    file = nccltests_text.write(
        tmp_path / "run.txt", [(1 << 13, 40.0), (1 << 20, 50.0), (1 << 21, 60.0)], nodes, gpus, program
    )
    asked = ("report", str(file), "--machine", "dgx-h100", "--nodes", str(nodes), "--gpus-per-node", str(gpus))
    found = loaded(run(*asked, "--json"))
    first = found["sizes"][0]
    assert first["alphabeta_algorithm"] == algorithm
    assert first["link_busbw_gbs"] == pytest.approx(full_gbs)
    assert first["busbw_gbs"] == pytest.approx(first["ideal_busbw_gbs"] * first["efficiency"])
    assert loaded(run("fit", "alpha-beta", "--sweep", str(file), "--json"))["algorithm"] == algorithm


@pytest.mark.live
@pytest.mark.skipif(not A100.is_dir() or "2.27.7" not in HERE, reason="../shared/cases or libnccl is absent")
@pytest.mark.parametrize(
    ("kind", "log", "topology", "links"),
    [
        ("normal", "nccl", "nccl_topo_dump_normal", 300),
        ("fault", "nccl-fault", "nccl_topo_dump", 25),
    ],
)
def test_a_report_of_a_real_run_has_its_bandwidths(run: Run, kind: str, log: str, topology: str, links: int) -> None:
    raw, lines = A100 / "raw", (A100 / f"TIMINGS-{kind}.csv").read_text().splitlines()[1:]
    asked = (str(raw / f"{log}.log"), "--topology", str(raw / f"{topology}.xml"), "--json")
    found = loaded(run("report", *asked))["sizes"]
    printed = {int(size): float(busbw) for size, _, _, busbw, *_ in csv.reader(lines)}
    assert {row["bytes"]: row["busbw_gbs"] for row in found} == pytest.approx(printed, rel=1e-3)  # as printed
    assert {(row["executed"], row["pick"]) for row in found} == {("Ring/Simple", "Ring/Simple")}
    assert [row["link_busbw_gbs"] for row in found] == pytest.approx([links] * len(found))


def test_wrong_results_are_left_out_and_said(run: Run, tmp_path: Path) -> None:
    """Also where they are right in place: that is another measurement."""
    times_us = [(1 << power, 20.0 + (1 << power) / 3e5) for power in (10, 16, 20, 30)]
    file = nccltests_text.write(tmp_path / "a.txt", times_us)
    right = file.read_text()
    rows = [f"{1 << power} " for power in (16, 20)]
    spoilt = [
        line.replace("1.00 0 ", "1.00 7 ", 1) if line.lstrip().startswith(tuple(rows)) else line
        for line in right.splitlines()
    ]
    file.write_text("\n".join(spoilt) + "\n")
    asked = ("report", str(file), "--machine", "dgx-h100")
    found = loaded(run(*asked, "--json"))
    assert [size["bytes"] for size in found["sizes"]] == [1 << 10, 1 << 30]
    assert found["wrong_bytes"] == [1 << 16, 1 << 20]
    assert found["in_cuda_graphs"] is False
    assert "left out, as results were wrong: 64 KiB, 1 MiB" in run(*asked)
    file.write_text(right.replace("1.00 0 ", "1.00 7 "))
    assert "all sizes have wrong results (#wrong)" in run(*asked, code=2)
    file.write_text(right.replace("graph: 0", "graph: 20"))
    assert loaded(run(*asked, "--json"))["in_cuda_graphs"] is True
    assert "these times were measured in CUDA graphs; the picks, NCCL's times" in run(*asked)


def test_a_fit_says_what_it_left_out(run: Run, tmp_path: Path) -> None:
    sizes = [1 << power for power in range(10, 30, 2)]
    file = nccltests_text.write(tmp_path / "a.txt", [(size, 20.0 + size / 3e5) for size in sizes])
    file.write_text(file.read_text().replace("1.00 0 ", "1.00 7 ", 1))
    assert loaded(run("fit", "alpha-beta", "--sweep", str(file), "--json"))["wrong"] == [
        {"file": str(file), "bytes": 1 << 10}
    ]
    assert f"{file}: left out, as results were wrong: 1 KiB" in run("fit", "alpha-beta", "--sweep", str(file))


def test_a_network_that_limits_is_named(run: Run, tmp_path: Path) -> None:
    file = nccltests_text.write(tmp_path / "run.txt", [(1 << 30, 100_000.0)], nodes=2)
    asked = ("report", str(file), "--machine", "dgx-h100", "--nodes", "2", "--inter-gbs", "50", "--json")
    (row,) = loaded(run(*asked))["sizes"]
    assert "executed" in row
    assert row["limit"] == efficiency.INTER
    assert row["ideal_busbw_gbs"] == pytest.approx(50 * 15 * 2 / 16)
    assert row["verdict"] == "below what is usual"
    assert row["causes"]


def test_pictures_have_every_series(tmp_path: Path) -> None:
    from tuner.answers.charts import figures
    from tuner.scenario import Scenario
    from tuner.times.calibration.plausible import of_case

    file = nccltests_text.write(tmp_path / "run.txt", [(1 << 10, 30.0), (1 << 30, 4500.0)])
    scenario = Scenario("2.28.9", 1, machine="dgx-h100")
    found = efficiency.report(sweep.read(file), scenario, of_case(scenario))
    times, bandwidths = figures.efficiency(found).axes
    drawn = {
        one.get_label(): list(np.asarray(one.get_ydata()))
        for axes in figures.efficiency(found).axes
        for one in axes.lines
    }
    assert drawn["NCCL's prediction"] == [row.nccl_us for row in found.rows]
    assert drawn["alpha-beta"] == [row.alphabeta_us for row in found.rows]
    assert drawn["ideal"] == [450, 450]
    assert np.asarray(times.lines[0].get_ydata()).tolist() == [30, 4500]
    assert bandwidths.get_ylim()[0] == 0


LEVEL_TEXT, ONE_LEVEL, STEP_TEXT = " ".join(LEVELS), " ".join(LEVELS[:4]), " ".join(STEP[:-4])
BUSBW = "allreduce --ranks 8 --bytes 1G"
BAD = {
    "one rank": ("allreduce --ranks 1 --bytes 1G --time-us 1", "ranks: 1; valid: 2 or more"),
    "no time": (f"{BUSBW} --count 3", "--count only applies with --time-us or --busbw-gbs"),
    "no size": ("allreduce --ranks 8 --time-us 1", "--bytes or --count"),
    "time of zero": (f"{BUSBW} --time-us 0", "--time-us: 0; valid: above 0"),
    "text for a number": (f"{BUSBW} --time-us fast", "--time-us fast: not numbers; valid: numbers"),
    "not a number": (f"{BUSBW} --time-us nan", "--time-us: nan"),
    "negative size": ("allreduce --ranks 8 --bytes -5 --time-us 1", "size '-5'"),
    "operation": ("allred --ranks 8 --bytes 1G --time-us 1", "valid: AllReduce"),
    "peak": (f"{BUSBW} --time-us 1 --peak-gbs 0", "--peak-gbs: 0"),
    "NVLS of nodes": (f"{BUSBW} --gpus-per-node 4 --time-us 1 --algorithm nvls", "one node"),
    "bandwidth": ("allreduce --ranks 8 --bytes 1G --alpha-us 1 --beta-gbs -3", "--beta-gbs: -3; valid: above 0"),
    "latency": ("allreduce --ranks 8 --bytes 1G --alpha-us -1 --beta-gbs 3", "--alpha-us: -1; valid: 0 or above"),
    "half a level": ("allreduce --ranks 8 --bytes 1G --alpha-us 1", "--alpha-us and --beta-gbs"),
    "no level": ("allreduce --ranks 8 --bytes 1G", "inside a node are missing: add --alpha-us and --beta-gbs"),
    "GPUs that do not divide": (
        f"allreduce --ranks 20 --gpus-per-node 8 --bytes 1G {LEVEL_TEXT}",
        "--gpus-per-node 8 does not divide --ranks 20",
    ),
    "no power of two": (
        f"allreduce --algorithm halving-doubling --ranks 12 --bytes 1G {ONE_LEVEL}",
        "for a power of two ranks, not for 12",
    ),
    "algorithm": (
        f"allgather --algorithm tree --ranks 8 --bytes 1G {LEVEL_TEXT}",
        "halving-doubling, hierarchical",
    ),
    "contention of all": (f"allreduce --ranks 8 --bytes 1G {LEVEL_TEXT} --contention 1", "0 to below 1"),
    "one GPU": ("ideal --intra-gbs 1 --gpus-per-node 1", "GPUs in all: 1; valid: 2 or more"),
    "no network": ("ideal --intra-gbs 1 --gpus-per-node 8 --nodes 2", "inter_gbs above 0"),
    "half a GPU": ("ideal --intra-gbs 1 --gpus-per-node 1.5", "valid: whole numbers"),
    "overlap": ("step --compute-us 1 --communication-us 1 --overlap 2", "--overlap: 2; valid: 0 to 1"),
    "latency between nodes": (
        f"allreduce --ranks 8 --gpus-per-node 4 --bytes 1G {ONE_LEVEL} --inter-alpha-us x --inter-beta-gbs 3",
        "--inter-alpha-us 'x' is not a number: valid is 0 or above",
    ),
    "levels of no nodes": (f"allreduce --ranks 16 --bytes 1G {LEVEL_TEXT}", "between nodes: add --gpus-per-node"),
    "crossovers of no nodes": (f"allreduce --crossovers --ranks 16 {LEVEL_TEXT}", "add --gpus-per-node"),
    "hierarchy of one level": (f"allreduce --algorithm hierarchical --ranks 16 --bytes 1G {ONE_LEVEL}", "two levels"),
    "too many bytes per second": ("ideal --intra-gbs 1e300 --gpus-per-node 8", "above 0, from 1e-30 to 1e+30"),
    "two peaks": (f"{BUSBW} --time-us 1 --peak-gbs 1 --peak-gbps 8", "give either --peak-gbs or --peak-gbps"),
    "nodes for nothing": (f"{BUSBW} --time-us 1 --gpus-per-node 4", "--gpus-per-node needs --algorithm"),
    "switches for nothing": (f"{BUSBW} --time-us 1 --ranks-per-switch 4", "--ranks-per-switch needs --algorithm"),
    "uplinks of a tree": (f"{BUSBW} --time-us 1 --ranks-per-switch 4 --algorithm tree", "valid: ring AllReduce"),
    "switches that do not divide": (
        f"{BUSBW} --time-us 1 --ranks-per-switch 3 --algorithm ring",
        "ranks_per_switch 3 does not divide ranks 8",
    ),
    "no computation": (f"{STEP_TEXT} --compute-us 0", "--compute-us: 0; valid: above 0"),
    "overlap with nothing": (f"{STEP_TEXT} --overlap 0.5", "--overlap only applies with --compute-us"),
    "a release for nothing": (f"{STEP_TEXT} --nccl 2.28.9", "--nccl only applies with --model nccl and --machine"),
    "no iterations": (
        "fit alpha-beta --experiment alpha_intra_us --elapsed-us 1 --ranks 2 --iterations 0",
        "iterations: 0; valid: 1",
    ),
    "measured for nothing": (
        "fit alpha-beta --experiment --elapsed-us 1 --ranks 2",
        "name the PARAMETER that these measurements are for; valid: alpha_intra_us",
    ),
    "more ranks than tiles": (
        "ideal --fabric aurora --bytes 2GB --ranks-per-node 13",
        "ranks_per_node 13: valid are 1 to 12",
    ),
    "more ranks than GPUs": (
        "ideal --fabric aurora --bytes 2GB --ranks-per-node 7 --one-tile-per-gpu",
        "valid are 1 to 6",
    ),
    "stages": (f"{STEP_TEXT} --pp 7", "pp 7 does not divide layers 80"),
    "nccl of nothing": (f"{STEP_TEXT} --model nccl", "--model nccl and --machine only apply together"),
    "machine of another size": (
        f"{STEP_TEXT} --gpus-per-node 8 --model nccl --machine dgx-2",
        "gpus_per_node is 8, but",
    ),
    "fabric": ("ideal --fabric x", "no fabric 'x'; valid: aurora"),
    "profile": ("ideal --fabric aurora --profile x", "no profile 'x'; valid: nominal, measured, tables"),
    "described nodes of one rank": ("ideal --fabric aurora --bytes 2GB --nodes 1", "ranks in all: 1; valid: 2 or more"),
    "no measurement": ("fit alpha-beta --experiment alpha_intra_us --ranks 8", "--elapsed-us and --ranks"),
    "no file": ("fit alpha-beta --sweep /nowhere/x.txt", "/nowhere/x.txt: No such file"),
    "no report": ("report /nowhere/x.txt --machine dgx-h100", "/nowhere/x.txt: No such file"),
    "beta of a report": ("report x.txt --machine dgx-h100 --beta-gbs 0", "--beta-gbs: 0; valid: above 0"),
    "picture": (
        "report /nowhere/x.txt --machine dgx-h100 --plot x.gif",
        "the ending of x.gif has to name the picture's format",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_nonsense_is_one_line(run: Run, name: str) -> None:
    arguments, says = BAD[name]
    assert says in run(*arguments.split(), code=2)


NUMBERS = ("0", "-1", "nan", "inf", "-inf", "1e400", "1e300", "1e-300", "abc", "", "1,,2", "1_0", "1" + "0" * 22)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "text",
    [
        "allreduce --ranks 8 --bytes 1GB --time-us 100 --peak-gbs 50 --algorithm ring --gpus-per-node 4",
        "allgather --ranks 8 --count 100 --busbw-gbs 100 --peak-gbps 40 --algorithm pat --gpus-per-node 1 "
        "--ranks-per-switch 2",
        "ideal --intra-gbs 450 --inter-gbs 100 --gpus-per-node 8 --nodes 2 --busbw-gbs 100",
        f"allreduce --ranks 8 --gpus-per-node 4 --bytes 1MB {LEVEL_TEXT} --overhead-us 1 --gap-us 3 --software-us 9 "
        "--protocol 0.1 --contention 0.1 --copy-gbs 64 --straggler 0.1 --measured-us 100",
        f"allreduce --crossovers --ranks 64 --gpus-per-node 8 {LEVEL_TEXT}",
        f"{' '.join(STEP)} --expert-parameters 1e9 --expert-layers 16 --ep 2 --buckets 4 --micro-batch-sequences 1 "
        f"--gradient-bytes 17GB --activation-bytes 64MB {LEVEL_TEXT} --compute-us 1500000 --overlap 0.5",
        "step --compute-us 2000 --communication-us 600 --overlap 0.5",
        "ideal --fabric aurora --bytes 2GB --nodes 2 --ranks-per-node 12 --measured-ms 9",
        "fit alpha-beta --experiment beta_intra_gbs --elapsed-us 1000 --ranks 8 --iterations 10 --bytes 4",
    ],
    ids=lambda text: text.split()[0],
)
def test_any_value_of_any_option_has_an_answer_or_one_line(run: Run, text: str) -> None:
    words = text.split()
    for at in (at for at, word in enumerate(words) if word.startswith("--")):
        for number in NUMBERS:
            asked = (*words[: at + 1], number, *words[at + 2 :], "--json")
            found = run(*asked, code=None)
            assert found.startswith("nccl-tuner: ") or ("NaN" not in found and "Infinity" not in found), asked


def test_files_that_do_not_fit(run: Run, tmp_path: Path) -> None:
    file = planted(tmp_path / "a.txt", 3, 250, 1)
    two = planted(tmp_path / "b.txt", 3, 250, 1, nodes=2)
    said = run("report", str(file), "--machine", "dgx-h100", "--nodes", "2", code=2)
    assert "a.txt: was measured on 8 ranks, but 2 x dgx-h100" in said
    assert "the files differ in collective" in run("fit", "alpha-beta", "--sweep", str(file), str(two), code=2)
    assert "the NVLink bandwidth between" in run("report", str(file), "--machine", "pcie-l40s", code=2)
    few = nccltests_text.write(tmp_path / "c.txt", [(8, 1.0), (16, 1.0)])
    assert "a.txt was measured on 8 ranks, not 6: remove --ranks" in run(
        "fit", "alpha-beta", "--sweep", str(file), "--ranks", "6", code=2
    )
    silent = tmp_path / "silent.txt"
    silent.write_text("".join(line for line in file.read_text().splitlines(True) if "Rank" not in line))
    assert "does not say the number of ranks: add --ranks N" in run("fit", "alpha-beta", "--sweep", str(silent), code=2)
    for bad in ("0", "1"):
        assert f"ranks: {bad}; valid: 2 or more" in run(
            "fit", "alpha-beta", "--sweep", str(silent), "--ranks", bad, code=2
        )
    assert loaded(run("fit", "alpha-beta", "--sweep", str(silent), "--ranks", "8", "--json"))["beta_gbs"] > 0
    assert "cannot be fitted to 2 sizes: measure 3 or more" in run("fit", "alpha-beta", "--sweep", str(few), code=2)
    mixed = tmp_path / "d.txt"
    mixed.write_text(few.read_text() + few.read_text().splitlines()[-1].replace("float", "half ") + "\n")
    assert "give a file of one kind" in run("fit", "alpha-beta", "--sweep", str(mixed), code=2)
    with pytest.raises(BadMeasurement, match="no times of Broadcast"):
        sweep.read(file, Collective.Broadcast)


def test_links_of_nodes_that_differ_are_refused() -> None:
    from tuner.scenario import Scenario
    from tuner.times.calibration.plausible import of_case

    with pytest.raises(BadInput, match="nodes that differ"):
        of_case(Scenario("2.28.9", 1, machine="dgx-h100", others=(Scenario("", 1, machine="dgx-a100"),)))
    one_each = of_case(Scenario("2.28.9", 2, machine="dgx-h100", gpus_per_node=1))
    assert (one_each.intra_gbs, one_each.inter_gbs) == (None, 50)
    mesh: Any = of_case(Scenario("2.28.9", 1, machine="dgx-1v", gpus_per_node=2))
    assert mesh.intra_gbs == 25  # one link between the first two


def test_the_picture_of_a_report_has_one_legend_and_no_gap_beside_it(tmp_path: Path, run: Run) -> None:
    """Two legends beside a figure each take a width of their own."""
    pytest.importorskip("matplotlib")
    from unittest.mock import patch

    drawn = []
    with patch("tuner.answers.charts.save", lambda figure, path: drawn.append(figure)):
        log = Path(__file__).parents[2] / "docs" / "examples" / "all_reduce.log"
        run("report", str(log), "--machine", "dgx-h100", "--nccl", "2.28.9", "--plot", str(tmp_path / "x.png"))
    (efficiency,) = drawn
    (legend,) = efficiency.legends
    efficiency.canvas.draw()
    right = max(axes.get_window_extent().x1 for axes in efficiency.axes)
    assert legend.get_window_extent().x0 - right < 0.05 * efficiency.bbox.width


LLAMA = ("step", "--tp", "8", "--pp", "4", "--json")


def test_a_step_of_a_model_by_its_name(run: Run) -> None:
    by_name = run(*LLAMA, "llama-3-70b", "--nodes", "16")
    described = "--parameters", "70.6B", "--layers", "80", "--hidden", "8192", "--sequence", "8192", "--dp", "4"
    assert run(*LLAMA, *described) == by_name
    assert loaded(by_name)["gpus"] == 128
    changed = run(*LLAMA, "Llama-3-70B", "--nodes", "16", "--sequence", "4096")
    assert loaded(changed)["rows"][0]["bytes"] * 2 == loaded(by_name)["rows"][0]["bytes"]


@pytest.mark.parametrize("name", step.known_models())
def test_models_by_name_are_about_as_large_as_their_layers_say(name: str) -> None:
    """A dense layer has 12 x hidden^2 parameters or some more; what experts have, a dense model does not."""
    model = step.Model(**step.model_fields(name, {}))
    dense = float(np.asarray(model.parameters)) - model.expert_parameters
    assert (model.expert_parameters > 0) == (model.expert_layers > 0) == (model.experts_per_token > 1)
    assert 0.2 < dense / (model.layers * 12 * model.hidden**2) < 1.5
    if said := re.search(r"-(\d+)b\b", name):
        assert 0.95 < float(np.asarray(model.parameters)) / 1e9 / int(said[1]) < 1.05


def test_what_a_model_lacks_is_named_at_once() -> None:
    for words, said in {
        (
            "--layers",
            "3",
        ): "the model's parameters, hidden, sequence are missing: give all of them",
        ("llama3-71b",): "unknown model 'llama3-71b'; did you mean llama-3-70b?",
        ("llama-3-8b", "--nodes", "3", "--tp", "16"): "= 16 GPUs of a copy of the model do not divide 24 GPUs",
        ("llama-3-8b", "--nodes", "2", "--dp", "2"): "--nodes and --dp both say",
    }.items():
        assert said in command_line.run("cost", "step", *words, code=2).stderr


@pytest.mark.parametrize(
    ("spelled", "name"),
    [
        ("meta-llama/Meta-Llama-3-70B-Instruct", "llama-3-70b"),
        ("llama3-70b", "llama-3-70b"),
        ("Llama-2-7b-chat-hf", "llama-2-7b"),
        ("mistralai/Mixtral-8x7B-v0.1", "mixtral-8x7b"),
        ("deepseek-ai/DeepSeek-V3-Base", "deepseek-v3"),
        ("Llama-3.1-70B", None),  # other sequences than Llama 3
        ("meta-llama/", None),
    ],
)
def test_a_model_is_known_by_any_of_its_spellings(spelled: str, name: str | None) -> None:
    if name is None:
        with pytest.raises(BadInput, match="unknown model"):
            step.known_name(spelled)
    else:
        assert step.known_name(spelled) == name
        assert step.vocabulary(spelled) == step.vocabulary(name)


def test_a_sweep_of_several_protocols_is_no_one_line() -> None:
    """The example's times bend where NVLS takes over; its mean error alone would be called excellent."""
    example = Path(__file__).parents[2] / "docs" / "examples" / "all_reduce.log"
    found = loaded(command_line.run("fit", "alpha-beta", "--sweep", str(example), "--json").stdout)
    assert found["error"] < 0.1
    assert found["class"] == "no one line"
    assert "several algorithms or protocols" in found["causes"][0]


def digits(value: Any, like: str) -> str:
    """To as many decimals as ``like`` has."""
    return f"{float(value):.{len(like.partition('.')[2])}f}"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.text}: {row.place}")
def test_the_number_comes_out(row: Row) -> None:
    expected = row.formula or row.printed
    assert digits(row.value(), expected) == expected
    assert (row.formula is None) == (row.why is None)
    if row.formula is not None:
        assert digits(row.value(), row.printed) != row.printed, "the text is right: take formula and why away"


def test_each_place_stands_once() -> None:
    places = [(row.text, row.place) for row in ROWS]
    assert len(set(places)) == len(places)
    assert {row.text for row in ROWS} == {"000", "001", "002", "003"}
    assert set(published_numbers.PRINTED[1]) == set(published_numbers.PRINTED[3])


def test_what_is_called_cut_off_is() -> None:
    cut = [row for row in ROWS if (row.why or "").startswith("cut off")]
    assert len(cut) > 5
    for row in cut:
        value = f"{float(row.value()):.9f}"
        assert value[: len(row.printed)] == row.printed, row.place


def test_the_last_efficiencies_are_those_of_other_links() -> None:
    """16 GB/s and no MDFI give what the text prints, 15 GB/s and MDFI its times."""
    for ranks, percent, measured_ms in ((2, "74", 74.2), (4, "66", 41.5), (12, "46", 19.7)):
        other = fabric.fabric(published_numbers.AURORA, "tables", xe_gbs=16.0)
        us = other.parts_us(875_000_000, 1, ranks, "direct", ranks == 2)["Xe-link"]
        assert digits(us / 10 / measured_ms, percent) == percent
