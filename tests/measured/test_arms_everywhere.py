"""Runs of nccl-tests, forced by NCCL's variables, in every command that takes measurements."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from tests.support import command_line, nccl_tests_text, trace_files
from tuner.base.errors import BadInput, BadMeasurement, TunerError
from tuner.base.names import Algorithm, Collective, DataType, Op
from tuner.cli import everything
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.plugin.table import parse
from tuner.scenario import Scenario
from tuner.times.placement import Site
from tuner.times.regret import arms, workflow
from tuner.times.regret.workflow import RunsQuery

SIZES = [1 << power for power in range(10, 29)]
RING_GAINS = 0.7  # of NCCL's time of the arm: Ring is faster than the model says
SLOWER = {"Ring": RING_GAINS, "Tree": 1.1, "NVLSTree": 1.2}
EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
Writer = Callable[[Path, list[tuple[int, float]], str], Path]


def model_us(algorithm: str | None = None, nodes: int = 2) -> list[tuple[int, float]]:
    """What NCCL takes by its own model, forced or not, with a little noise."""
    environment = {"NCCL_ALGO": algorithm} if algorithm else {}
    scenario = Scenario(nccl="2.28.9", machine="dgx-h100", nodes=nodes, environment=environment)
    request = Request(Collective.AllReduce, DataType.float32, Op.sum)
    picks = Selection(scenario.communicator()).pick(request, np.array(SIZES, np.uint64))
    noise = np.random.default_rng(len(algorithm or "")).normal(1.0, 0.003, len(SIZES))
    factor = SLOWER.get(algorithm or "", 1.0) * noise
    return [(size, float(time_us)) for size, time_us in zip(SIZES, picks.time_us * factor, strict=True)]


def as_text(path: Path, times_us: list[tuple[int, float]], algorithm: str) -> Path:
    """With the launcher's command line above, as batch logs have it."""
    nccl_tests_text.write(path, times_us, nodes=2)
    said = f"mpirun -np 16 -x NCCL_ALGO={algorithm} all_reduce_perf\n" if algorithm else ""
    path.write_text(said + path.read_text())
    return path


def as_json(path: Path, times_us: list[tuple[int, float]], algorithm: str) -> Path:
    return nccl_tests_text.write_json(path, times_us, 2, (f"NCCL_ALGO={algorithm}",) if algorithm else ())


@pytest.fixture(params=[as_text, as_json], ids=["text", "json"])
def runs(request: pytest.FixtureRequest, tmp_path: Path) -> list[Path]:
    write: Writer = request.param
    return [write(tmp_path / (name or "plain"), model_us(name or None), name) for name in ("", *SLOWER)]


def run(*arguments: str | Path, code: int = 0) -> str:
    done = CliRunner().invoke(everything, list(map(str, arguments)))
    assert done.exit_code == code, (done.output, done.exception)
    return done.stdout


def refused(*arguments: str | Path) -> str:
    done = CliRunner().invoke(everything, list(map(str, arguments)))
    assert isinstance(done.exception, TunerError), (done.output, done.exception)
    return str(done.exception)


PLACE = ("--machine", "dgx-h100")


def test_arms_are_what_the_variables_forced(runs: list[Path]) -> None:
    placed = workflow.read(RunsQuery(files=tuple(runs), site=Site("dgx-h100")))
    (measured,) = arms.of_arms(placed)
    assert measured.header.scenario is not None
    assert measured.header.scenario.title == "2 x dgx-h100, 8 GPUs each, NCCL 2.28.9"
    of_one_size = [block for block in measured.blocks if block.point.bytes == SIZES[-1] and not block.point.in_place]
    requested = {block.requested.algorithm for block in of_one_size if block.requested is not None}
    assert requested == {Algorithm.Ring, Algorithm.Tree, Algorithm.NVLSTree}
    (own,) = (block for block in of_one_size if block.requested is None)
    assert own.executed is not None
    assert own.executed.algorithm is Algorithm.NVLSTree


def test_decide_makes_rows_of_what_is_faster(runs: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "pod.table"
    record = json.loads(run("decide", *runs, *PLACE, "--no-gate", "--out", out, "--json"))
    assert {row["choice"].split("/")[0] for row in record["kept"]} == {"Ring"}
    assert record["gate"] is False
    assert record["regret_after"] < record["regret_before"] / 2
    table = parse.read(out)
    assert len(table.decisions) == len(record["kept"]) > 0
    assert "no A/B run" in table.provenance["gate"]
    assert f"{runs[0]} sha256" in table.provenance["measured-1"]


def test_decide_finds_nothing_where_nothing_is_faster(tmp_path: Path) -> None:
    runs = [as_text(tmp_path / name, model_us(name if name != "plain" else None), "") for name in ("plain", "Tree")]
    out = tmp_path / "pod.table"
    said = run("decide", runs[0], "--arm", f"Tree={runs[1]}", *PLACE, "--no-gate", "--out", out, code=1)
    assert "no row stays: NCCL's default is the best" in said
    assert "no row: NCCL's default" in out.read_text()


def test_decide_judges_nothing_where_one_choice_was_measured(runs: list[Path], tmp_path: Path) -> None:
    said = refused("decide", runs[0], *PLACE, "--no-gate", "--out", tmp_path / "pod.table")
    assert said == "cannot be judged: no size can be decided: nothing else was measured"
    assert not (tmp_path / "pod.table").exists()


def test_fit_takes_the_arms(runs: list[Path], tmp_path: Path) -> None:
    record = json.loads(run("fit", "constants", *runs, *PLACE, "--out", tmp_path / "pod.toml", "--json"))
    assert record["communicators"] == ["2 x dgx-h100, 8 GPUs each, NCCL 2.28.9"]
    of = {each["combination"].split("/")[0] for each in record["errors"]}
    assert {"Ring", "Tree", "NVLSTree"} <= of
    assert (tmp_path / "pod.toml").exists()
    if runs[1].read_bytes().startswith(b"{"):  # the text has times in place, which take twice as long
        (share,) = (each for each in record["constants"] if each["name"] == "efficiency.ring.ll128")
        assert share["low"] < 1 / RING_GAINS < share["high"]
    textbook = json.loads(run("fit", "alpha-beta", *runs, *PLACE, "--json"))
    assert {each["algorithm"] for each in textbook["fits"]} >= {"Ring", "Tree"}


def test_plot_measured_shows_the_arms(runs: list[Path]) -> None:
    record = json.loads(run("plot", "measured", *runs, *PLACE, "--json"))["kinds"]
    assert {each["nodes"] for each in record} == {2}
    assert {series["algorithm"] for each in record for series in each["series"]} == {"Ring", "Tree", "NVLSTree"}


def test_budget_judges_the_picks_by_the_arms(runs: list[Path]) -> None:
    given = [word for path in runs for word in ("--measured", path)]
    place = (*PLACE, "--nodes", "2", "--nccl", "2.28.9", "--json")
    record = json.loads(run("budget", EXAMPLES / "inspector.log", *given, *place))
    regret = record["variants"][0]["regret"]
    assert regret["calls"] == 6
    assert regret["regret"] > 0.1
    one = [entry["prices"][0]["measured"] for entry in record["entries"] if entry["bytes"] == 256 << 20]
    assert one[0]["best"].startswith("Ring/")


def test_a_single_forced_file_is_no_choice_of_nccls(runs: list[Path]) -> None:
    """Its times are Ring's, not the pick's."""
    place = (*PLACE, "--nodes", "2", "--nccl", "2.28.9", "--json")
    record = json.loads(run("budget", EXAMPLES / "inspector.log", "--measured", runs[1], *place))
    reasons = [entry["prices"][0]["measured"].get("reason") for entry in record["entries"]]
    assert "NVLSTree/Simple was not measured" in reasons
    assert any("used as if they were from 2 x dgx-h100" in note for note in record["notes"])


def test_verify_takes_the_communicator_of_a_log(tmp_path: Path) -> None:
    plain = as_text(tmp_path / "plain", model_us(), "")
    ring = as_text(tmp_path / "ring", model_us("Ring"), "Ring")
    log = ("--log", EXAMPLES / "nccl.log", "--comp-cap", "8.0")
    record = json.loads(run("verify", plain, ring, *log, "--json"))
    assert record["nccl"] == "2.28.9"
    assert {one["pick"] for one in record["sizes"]}
    decided = json.loads(run("decide", plain, ring, *log, "--no-gate", "--out", tmp_path / "t", "--json"))
    assert decided["files"][0]["ranks"] == 16


def test_refusals_say_what_is_missing(runs: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "pod.table"
    for words in (("fit", "constants"), ("decide", "--no-gate", "--out", out)):
        assert "does not say where it was measured; add --machine NAME" in refused(*words, runs[1])
    assert "valid: with --machine NAME" in refused("verify", runs[1])
    assert "add --no-gate" in refused("decide", *runs, *PLACE, "--out", out)
    assert "without --arm and --machine" in refused("decide", *runs, *PLACE, "--out", out, "--no-gate", "--interpolate")
    assert "Ring was forced, but --arm says" in refused("fit", "constants", "--arm", f"Tree={runs[1]}", *PLACE)
    several: tuple[str | Path, ...] = ("plot", "measured", *runs, "--json")
    assert "need --machine NAME" in refused(*several)
    assert "2 nodes, but --nodes says 4" in refused(*several, *PLACE, "--nodes", "4")
    job: tuple[str | Path, ...] = (
        "budget",
        EXAMPLES / "inspector.log",
        "--measured",
        runs[0],
        "--measured",
        runs[1],
        *PLACE,
        "--ranks",
        "16",
    )
    assert "measured on 16 ranks on 2 nodes" in refused(*job)


def test_exports_of_a_budget(tmp_path: Path) -> None:
    polars: Any = pytest.importorskip("polars")
    words = ("budget", trace_files.inspector(tmp_path / "x"), *PLACE, "--nodes", "2", "--nccl", "2.28.9")
    header, *rows = run(*words, "--csv").splitlines()
    assert header.startswith("collective,dtype,op,bytes,calls,variant,algorithm,protocol,channels,time_us,total_us")
    assert len(rows) == 4
    run(*words, "--parquet", tmp_path / "b.parquet")
    frame = polars.read_parquet(tmp_path / "b.parquet")
    assert frame["bytes"].to_list() == [int(row.split(",")[3]) for row in rows]
    lines = run(*words, "--prometheus").splitlines()
    totals = [line for line in lines if line.startswith("nccl_tuner_budget_microseconds{")]
    assert (
        'collective="AllReduce",dtype="float32",op="sum",bytes="268435456",algo_proto="NVLS_TREE_SIMPLE"' in totals[3]
    )
    total = next(line for line in lines if line.startswith("nccl_tuner_budget_total_microseconds{"))
    assert float(total.split()[-1]) == pytest.approx(sum(float(line.split()[-1]) for line in totals), rel=1e-6)
    assert "only one of" in refused(*words, "--csv", "--prometheus")
    assert "b.parquet" in refused(*words, "--parquet", tmp_path / "none" / "b.parquet")


def test_exports_of_a_decision(tmp_path: Path) -> None:
    runs = [as_text(tmp_path / (name or "plain"), model_us(name or None), name) for name in ("", "Ring")]
    words: tuple[str | Path, ...] = ("decide", *runs, *PLACE, "--no-gate", "--out", tmp_path / "t")
    header, *rows = run(*words, "--csv").splitlines()
    assert header == "collective,low_bytes,high_bytes,choice,ranks,nodes,gain,probability,gain_low,gain_high,reason"
    metrics = run(*words, "--prometheus", "--parquet", tmp_path / "d.parquet")
    gains = [line for line in metrics.splitlines() if line.startswith("nccl_tuner_decide_gain_ratio{")]
    assert len(gains) == len(rows) > 0
    assert 'kept="true"' in gains[0]
    assert (tmp_path / "d.parquet").stat().st_size > 0


def test_parquet_without_polars_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "polars", None)
    words = ("budget", trace_files.inspector(tmp_path / "x"), *PLACE, "--nodes", "2", "--parquet", tmp_path / "b")
    assert refused(*words).endswith("parquet needs polars: pip install 'nccl-tuner[parquet]'")


def test_labels_are_escaped() -> None:
    from tuner.cli.exports import gauge

    (_, _, line) = gauge("a", "b", [({"x": 'c"d\\e\nf'}, 1.0), ({"x": "unknown"}, None)])
    assert line == 'a{x="c\\"d\\\\e\\nf"} 1'


def test_errors_are_of_the_file_that_is_wrong(tmp_path: Path) -> None:
    wrong = as_text(tmp_path / "wrong", [(size, time_us / 20) for size, time_us in model_us()], "Ring")
    with pytest.raises(BadMeasurement, match=r"above the links|times too short"):
        workflow.read(RunsQuery(files=(wrong,), site=Site("dgx-h100")))
    with pytest.raises(BadInput, match="nothing to judge"):
        workflow.read(RunsQuery(site=Site("dgx-h100")))


def test_columns_of_public_runs_go_the_same_way() -> None:
    """Ring, Tree and what NCCL chose on 16 nodes of B200, of a table that is shipped."""
    table = Path(__file__).parents[2] / "tables" / "measured" / "b200-8x-64n__2.29.7__together.csv"
    place = ("--machine", "dgx-b200", "--nodes", "16", "--nccl", "2.29.7", "--json")
    record = json.loads(run("plot", "measured", table, "--collective", "allreduce", *place))["kinds"]
    assert len({series["algorithm"] for each in record for series in each["series"]}) > 1


OF_FILES = (
    ("verify", "PLAIN", "RING"),
    ("decide", "PLAIN", "RING", "--no-gate", "--out", "OUT"),
    ("fit", "constants", "PLAIN", "RING", "--out", "OUT"),
    ("fit", "calibration", "PLAIN", "-o", "OUT"),
    ("fit", "accuracy", "PLAIN"),
    ("accept", "PLAIN"),
    ("plot", "measured", "PLAIN", "-o", "OUT.svg"),
)


@pytest.mark.slow
@pytest.mark.parametrize("words", OF_FILES, ids=lambda words: " ".join(words[:2]))
@pytest.mark.parametrize(("version", "known"), [("22905", True), ("29905", False)])
def test_the_nearest_patch_release_stands_for_one_that_is_not_known(
    words: tuple[str, ...], version: str, known: bool, tmp_path: Path
) -> None:
    """2.29.5, of which 2.29.2, 2.29.3 and 2.29.7 are known; of 2.99 none is."""
    files = {"OUT": tmp_path / "out", "OUT.svg": tmp_path / "out.svg"}
    for name, example in (("PLAIN", "all_reduce.log"), ("RING", "all_reduce-ring.log")):
        files[name] = tmp_path / example
        files[name].write_text((EXAMPLES / example).read_text("utf-8").replace("22902", version), "utf-8")
    code = {("accept", True): 1, ("accept", False): 3}.get((words[0], known), 0 if known else 2)
    done = command_line.run(*(str(files.get(word, word)) for word in words), "--machine", "dgx-h100", code=code)
    said = " ".join(f"{done.stdout} {done.stderr}".split())
    assert ("NCCL 2.29.5 is not in the catalogue: the nearest, 2.29.3, stands for it" in said) is known
    assert known or "NCCL 2.99.5" in said
    if words[0] == "decide" and known:
        # The plugin ignores a table of another release than the one that runs.
        assert "# nccl: 2.29.5\n" in files["OUT"].read_text("utf-8")
