"""The frozen splits reach what docs/accuracy.json says of them; and what calibrated times promise."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.scripts import fit_network, write_accuracy
from tests.support import exchange_accuracy
from tests.support.command_line import run
from tuner.times import measured
from tuner.times.calibration import calibrate
from tuner.times.calibration.accuracy import evaluate, splits
from tuner.times.calibration.accuracy.evaluate import Scores, learn, of_others
from tuner.times.calibration.accuracy.splits import Split
from tuner.times.timemodel import calibration
from tuner.times.timemodel.intervals import CarriedOver

KEPT = write_accuracy.read()
POINTS = 0.002  # by how much a mean error may be worse than what is kept
# Mean absolute errors that calibrated times promise, over machines.
PROMISED = {
    "sizes": 0.035,
    "gpus": 0.06,
    "release": 0.04,
    "machine": 0.05,
    "collective": 0.05,
    "one_run": 0.08,
    "nodes_between": 0.10,
    "nodes_beyond": 0.16,
    "sizes_beyond": 0.10,
    "domain": 0.12,
}


@pytest.mark.slow
@pytest.mark.parametrize("at", range(len(splits.splits())))
def test_no_split_gets_worse(at: int) -> None:
    split, kept = splits.splits()[at], KEPT["splits"][at]
    assert (split.kind, split.title) == (kept["kind"], kept["title"])
    error, rows = evaluate.error_of(split)
    assert rows == kept["rows"]
    assert error <= kept["errors"][evaluate.MODEL] + POINTS


def test_all_splits_are_kept() -> None:
    assert len(KEPT["splits"]) == len(splits.splits())


@pytest.mark.parametrize("kind", PROMISED)
def test_what_is_kept_is_what_is_promised(kind: str) -> None:
    summary = KEPT["summary"][kind]
    assert summary[evaluate.MODEL] <= PROMISED[kind]
    others = [
        error for name, error in summary.items() if name in ("NCCL's model", "one factor", "alpha-beta") and error
    ]
    assert summary[evaluate.MODEL] < min(others)


@pytest.mark.parametrize("kind", PROMISED)
def test_intervals_hold_as_many_times_as_they_promise(kind: str) -> None:
    """90 % of the held-out times, over the splits of a kind: 85 to 95 %, as they are learnt on other machines; to 97 %
    between nodes, where all calls of a table may be off alike."""
    covered = [each["coverage"] for each in KEPT["splits"] if each["group"] == kind]
    # Of domains there is one split.
    most = {"domain": 1.0, "nodes_between": 0.97, "nodes_beyond": 0.97}.get(kind, 0.95)
    assert 0.85 <= np.mean(covered) <= most


@pytest.mark.parametrize("group", [*PROMISED, "sizes, several nodes", "collective, several nodes"])
def test_intervals_are_hardly_wider_than_three_times_the_error(group: str) -> None:
    """A little over four times on more nodes than were measured: how a network grows is what no fit has seen."""
    own = [each for each in KEPT["splits"] if each["group"] == group]
    most = 4.3 if group == "nodes_beyond" else 3.4
    assert np.mean([each["half_width"] for each in own]) <= most * KEPT["summary"][group][evaluate.MODEL]


@pytest.mark.parametrize("kept", [each for each in KEPT["splits"] if each["kind"] in ("site", "first_nodes")])
def test_a_site_that_nobody_measured_is_nearer_than_by_nccl_and_covered(kept: dict[str, Any]) -> None:
    """Its network is told by nothing: NCCL's own error may be exceeded where that happens to be small, as at sophia."""
    by_nccl = kept["errors"]["NCCL's model"]
    assert kept["errors"][evaluate.MODEL] <= max(by_nccl * 1.05, 0.24 if by_nccl < 0.15 else 0.2)
    assert kept["coverage"] >= 0.85


def test_few_rows_of_a_site_say_much_of_it() -> None:
    """Of sites that nothing was learnt from: errors fall with the rows given, intervals hold."""
    of_given = {given: [each for each in KEPT["updates"] if each["given"] == given] for given in (0, 1, 4)}
    errors = {given: float(np.median([each["error"] for each in kept])) for given, kept in of_given.items()}
    assert errors[4] < 0.11 < errors[1] < 0.16 < errors[0] < 0.2
    widths = {given: float(np.median([each["half_width"] for each in kept])) for given, kept in of_given.items()}
    assert widths[4] < 0.4 < min(widths[0], widths[1])
    assert max(widths[0], widths[1]) < 1
    better = [each for each in of_given[4] if each["error"] < each["nccl_error"]]
    assert len(better) >= 0.9 * len(of_given[4])


@pytest.mark.slow
def test_sites_that_are_left_out_are_predicted_as_is_kept() -> None:
    for found, kept in zip(write_accuracy.updates(), KEPT["updates"], strict=True):
        assert (found["table"], found["given"], found["rows"]) == (kept["table"], kept["given"], kept["rows"])
        assert found["error"] == pytest.approx(kept["error"], abs=0.01)


def test_the_shipped_intervals_are_those_of_the_splits() -> None:
    for source in calibrate.sources():
        shipped = calibration.load(source.name)
        for kind, factor in shipped.factors.items():
            assert factor == pytest.approx(KEPT["factors"][kind.name], rel=1e-4), (source.name, kind)


@pytest.mark.parametrize(
    ("kind", "machine"), [("sizes", "dgx-a100"), ("one_run", "dgx-h100"), ("nodes_beyond", "alps")]
)
def test_no_interval_is_learnt_from_what_it_is_judged_by(kind: str, machine: str) -> None:
    """Errors of the split's own machine that are a hundred times as large change nothing of its widths."""

    def scores(split: Split, factor: float) -> Scores:
        off = np.linspace(0.01, 0.1, 20) * factor
        return Scores(factor_of(split), split, split.machine, off, np.full(20, 0.05), np.full(20, 0.05))

    def factor_of(split: Split) -> CarriedOver:
        return CarriedOver.nodes if split.is_between_nodes else CarriedOver[split.kind]

    every = splits.splits()
    judged = next(each for each in every if (each.kind, each.machine) == (kind, machine))
    learnt = []
    for factor in (1.0, 100.0):
        changed = [scores(each, factor if each.machine == machine else 1.0) for each in every]
        learnt.append(learn(of_others(changed, judged))[factor_of(judged)])
    assert learnt[0] == learnt[1]


@pytest.mark.parametrize("split", splits.splits(), ids=lambda split: f"{split.kind} {split.machine}")
def test_what_is_held_out_is_not_fitted_to(split: Split) -> None:
    fit, test = splits.halves(split)
    assert len(fit) > 0
    assert len(test) > 0
    if not split.test:
        assert not {row.line for row in fit.rows} & {row.line for row in test.rows}


def test_times_of_all_to_all_reach_what_is_kept_and_promised() -> None:
    found = exchange_accuracy.run()
    assert len(KEPT["alltoall"]) == len(found)
    for each, kept in zip(found, KEPT["alltoall"], strict=True):
        assert (each.kind, each.title, each.rows) == (kept["kind"], kept["title"], kept["rows"])
        assert each.error <= kept["error"] + POINTS
        assert each.coverage == pytest.approx(kept["coverage"], abs=0.05)
    covered = [each["coverage"] for each in KEPT["alltoall"]]
    assert 0.85 <= np.mean(covered) <= 0.95
    for kind, promised in {"sizes": 0.06, "gpus": 0.10, "release": 0.09}.items():
        errors = [each["error"] for each in KEPT["alltoall"] if each["kind"] == kind and "aicr" not in each["title"]]
        assert np.mean(errors) <= promised


H100 = "h100-8x__2.29.2__aiconfigurator"


def columns_file(folder: Path, factor: float = 1.0) -> Path:
    path = folder / "h100.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["collective", "dtype", "gpus", "bytes", "time_us"])
        for row in measured.load(H100).blocks:
            writer.writerow(
                [row.point.name, row.point.dtype.name, row.gpus_per_node, row.point.bytes, factor * row.median_us]
            )
    return path


def test_a_file_in_bare_columns_is_held_against_the_machines_calibration(tmp_path: Path) -> None:
    words = ("fit", "accuracy", str(columns_file(tmp_path)), "--machine", "dgx-h100", "--nccl", "2.29.2", "--json")
    answer = json.loads(run(*words).stdout)
    assert answer["rows"] == 378
    assert answer["mean_absolute_error"] < 0.02
    assert answer["coverage_90"] > 0.9
    assert answer["nccl_model_error"] == pytest.approx(0.139, abs=0.001)
    assert answer["calibration"] == "dgx-h100"
    assert answer["skipped"] == {}
    assert answer["point_to_point"]["rows"] == 126
    assert answer["point_to_point"]["mean_absolute_error"] < 0.08


def test_milliseconds_for_microseconds_are_refused(tmp_path: Path) -> None:
    words = ("fit", "accuracy", str(columns_file(tmp_path, 0.001)), "--machine", "dgx-h100", "--nccl", "2.29.2")
    assert "milliseconds for microseconds?" in run(*words, code=2).stderr


def test_times_that_are_twice_as_long_are_found_out(tmp_path: Path) -> None:
    words = ("fit", "accuracy", str(columns_file(tmp_path, 2.0)), "--machine", "dgx-h100", "--nccl", "2.29.2", "--json")
    answer = json.loads(run(*words).stdout)
    assert answer["mean_absolute_error"] == pytest.approx(0.5, abs=0.02)
    assert answer["coverage_90"] == 0


@pytest.mark.parametrize(
    ("factor", "says"),
    [
        (1000.0, "all times are 1e+03 times what is expected"),
        (8.0, "bits for bytes?"),
        (2.0, "clocks, a wrong unit or factor, or another machine?"),
    ],
)
def test_times_that_are_all_off_alike_are_said_with_the_rows(factor: float, says: str, tmp_path: Path) -> None:
    words = ("fit", "accuracy", str(columns_file(tmp_path, factor)), "--machine", "dgx-h100", "--nccl", "2.29.2")
    (note,) = [line for line in run(*words).stdout.splitlines() if "all times are" in line]
    assert says in note
    assert "(lines 2, 3, 4, 5, 6, 7 and 372 more)" in note
    assert "all times are" not in run("fit", "accuracy", H100).stdout


@pytest.mark.slow
def test_a_calibration_of_ones_own_is_used(tmp_path: Path) -> None:
    sweep, own = str(columns_file(tmp_path, 2.0)), str(tmp_path / "own.json")
    machine = ("--machine", "dgx-h100", "--nccl", "2.29.2")
    run("fit", "calibration", sweep, *machine, "-o", own)
    answer = json.loads(run("fit", "accuracy", sweep, *machine, "--calibration", own, "--json").stdout)
    assert answer["mean_absolute_error"] < 0.02
    assert answer["calibration"] == "own"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "--machine, --topology"),
        (("--machine", "dgx-h100"), "--nccl"),
        (("--machine", "pcie-l40s", "--nccl", "2.29.2"), "joined by"),
        (("--machine", "dgx-h100", "--nccl", "2.29.2", "--calibration", "nothing"), "no calibration 'nothing'"),
    ],
)
def test_what_is_missing_is_said_in_one_line(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    assert said in run("fit", "accuracy", str(columns_file(tmp_path)), *words, code=2).stderr


def test_forced_rows_are_predicted_as_forced(tmp_path: Path) -> None:
    """The same call by LL and by Simple: other times, each near its own."""
    path = tmp_path / "forced.csv"
    rows = "allgather,half,1,8,67108864,{time},0,Ring,{protocol},,"
    head = "source_id,collective,dtype,nodes,gpus_per_node,bytes,time_us,in_place,algorithm,protocol,channels,notes"
    times = {}
    for protocol in ("LL", "Simple"):
        path.write_text(f"{head}\nx,{rows.format(time=150.0, protocol=protocol)}\n", "utf-8")
        words = ("fit", "accuracy", str(path), "--machine", "dgx-h100", "--nccl", "2.29.2", "--json")
        times[protocol] = 1 + json.loads(run(*words).stdout)["mean_absolute_error"]
    assert times["LL"] > 1.5 * times["Simple"]
    assert np.isfinite(list(times.values())).all()


def test_a_file_of_all_to_all_alone_has_its_errors(tmp_path: Path) -> None:
    path = tmp_path / "exchanges.csv"
    path.write_text("collective,dtype,gpus,bytes,time_us\nalltoall,half,8,67108864,200\n", "utf-8")
    words = ("fit", "accuracy", str(path), "--machine", "dgx-h100", "--nccl", "2.29.2")
    answer = json.loads(run(*words, "--json").stdout)
    assert (answer["rows"], answer["mean_absolute_error"], answer["skipped"]) == (0, None, {})
    assert answer["point_to_point"]["rows"] == 1
    assert "point to point" in run(*words).stdout


def test_rows_of_all_to_all_in_place_are_counted_as_left_out(tmp_path: Path) -> None:
    path = tmp_path / "exchanges.csv"
    head = "collective,dtype,nodes,gpus_per_node,bytes,time_us,in_place,algorithm,protocol,channels,run"
    rows = [f"alltoall,half,1,8,67108864,200,{in_place},,,," for in_place in (0, 1)]
    path.write_text("\n".join([head, *rows, "allreduce,half,1,8,67108864,300,0,,,,"]) + "\n", "utf-8")
    words = ("fit", "accuracy", str(path), "--machine", "dgx-h100", "--nccl", "2.29.2", "--json")
    answer = json.loads(run(*words).stdout)
    assert (answer["rows"], answer["point_to_point"]["rows"], answer["skipped"]) == (1, 1, {"in place": 1})


def test_a_row_is_left_out_for_one_reason(tmp_path: Path) -> None:
    path = tmp_path / "short.csv"
    rows = [f"allreduce,half,8,67108864,{time}" for time in (0.001, 300)]
    path.write_text("\n".join(["collective,dtype,gpus,bytes,time_us", *rows]) + "\n", "utf-8")
    words = ("fit", "accuracy", str(path), "--machine", "dgx-h100", "--nccl", "2.29.2", "--json")
    answer = json.loads(run(*words).stdout)
    assert (answer["rows"], sum(answer["skipped"].values())) == (1, 1)


@pytest.mark.parametrize("content", [None, b"\x93\x00\xff not XML"])
def test_a_topology_that_cannot_be_read_is_said_in_one_line(content: bytes | None, tmp_path: Path) -> None:
    topology = tmp_path / "tray.xml"
    if content is not None:
        topology.write_bytes(content)
    for words in (("fit", "accuracy", "--nccl", "2.29.2"), ("measured",)):
        said = run(*words, str(columns_file(tmp_path)), "--topology", str(topology), code=2).stderr
        assert said.startswith(f"nccl-tuner: {topology}")
        assert said.count("\n") == 1


def test_what_a_table_says_otherwise_is_said() -> None:
    answer = json.loads(run("fit", "accuracy", H100, "--machine", "dgx-b200", "--nccl", "2.28.9", "--json").stdout)
    assert answer["problems"][-2:] == [
        "the file says NCCL 2.29.2, and is held against 2.28.9",
        "the file says dgx-h100, and is held against dgx-b200, which has other GPUs",
    ]


def test_calls_of_less_than_an_element_a_rank_have_times() -> None:
    words = ("pick", "allgather", "--machine", "a100-4x-2nic", "--nodes", "4", "--nccl", "2.21.5", "--time", "both")
    of_whole, of_part = (
        json.loads(run(*words, "--bytes", size, "--json").stdout)["picks"][0]["calibrated"] for size in ("64", "8")
    )
    for combination, times in of_part.items():
        assert 0 < times["low_us"] < times["time_us"] < times["high_us"]
        assert times["time_us"] <= of_whole[combination]["time_us"]


def test_a_calibration_of_several_machines_is_refused(tmp_path: Path) -> None:
    words = ("fit", "calibration", H100, "a100-8x__2.27.3__aiconfigurator", "-o", str(tmp_path / "own.json"))
    assert (
        "a100-8x__2.27.3__aiconfigurator was measured on dgx-a100, but the calibration is for dgx-h100"
        in run(*words, code=2).stderr
    )


def test_a_calibration_of_another_release_than_its_table_says_is_refused(tmp_path: Path) -> None:
    words = ("fit", "calibration", H100, "--nccl", "2.30.7", "-o", str(tmp_path / "own.json"))
    assert f"{H100} says NCCL 2.29.2, not 2.30.7" in run(*words, code=2).stderr
    assert not (tmp_path / "own.json").exists()
    run("fit", "calibration", H100, "--nccl", "2.29.2", "-o", str(tmp_path / "own.json"))


@pytest.mark.live
def test_a_calibration_of_a_topology_answers_for_it_as_for_its_own_machine(tmp_path: Path) -> None:
    topology, sweep, own = tmp_path / "tray.xml", columns_file(tmp_path), tmp_path / "own.json"
    topology.write_text(run("machines", "dgx-h100").stdout, "utf-8")
    words = ("--topology", str(topology), "--nccl", "2.29.2")
    said = run("fit", "calibration", str(sweep), *words, "-o", str(own)).stdout
    assert said.startswith(f"{own}: tray.xml ")
    by_topology, by_name = (
        json.loads(run("fit", "accuracy", str(sweep), *place, "--calibration", str(own), "--json").stdout)
        for place in (words, ("--machine", "dgx-h100", "--nccl", "2.29.2"))
    )
    assert by_topology["mean_absolute_error"] == by_name["mean_absolute_error"] < 0.02
    assert by_topology["half_width_90"] < by_name["half_width_90"]  # by name it is another machine
    both = ("--machine", "dgx-h100", "--topology", str(topology), "--nccl", "2.29.2")
    assert "both describe the node" in run("fit", "calibration", str(sweep), *both, "-o", str(own), code=2).stderr


def test_a_mistyped_table_is_pointed_to_the_list(tmp_path: Path) -> None:
    wrong = "h100-8x__2.29.2__aiconfigurater"
    calibration = ("fit", "calibration", wrong, "-o", str(tmp_path / "own.json"))
    for words in (("fit", "accuracy", wrong), calibration, ("accept", wrong)):
        machine = () if words == calibration else ("--machine", "dgx-h100")
        said = run(*words, *machine, code=2).stderr
        assert f"did you mean {H100}?" in said
        assert "nccl-tuner measured" in said


def test_a_calibration_of_milliseconds_is_refused(tmp_path: Path) -> None:
    words = ("fit", "calibration", str(columns_file(tmp_path, 0.001)), "--machine", "dgx-h100", "--nccl", "2.29.2")
    assert "milliseconds for microseconds?" in run(*words, "-o", str(tmp_path / "own.json"), code=2).stderr


@pytest.mark.parametrize("given", [0, 1, 4])
def test_intervals_hold_nine_of_ten_times_of_healthy_sites_that_were_left_out(given: int) -> None:
    """Over tables: widths are learnt of all other sites, so that a network unlike all of them is held least.

    No more than two are held by less than half, TCPXO (a3mega) and two racks of GH200 (cscs) among them, and no more
    than one of six by less than three quarters.
    """
    kept = [each for each in KEPT["updates"] if not each["known_slow"] and each["given"] == given]
    assert len({each["table"] for each in kept}) >= 34
    assert 0.9 <= np.mean([each["coverage"] for each in kept]) <= 0.97
    assert sum(each["coverage"] < 0.5 for each in kept) <= 2
    assert sum(each["coverage"] < 0.75 for each in kept) <= len(kept) / 6


@pytest.mark.slow
def test_ratios_of_two_releases_lie_in_their_interval_at_a_site_that_was_left_out() -> None:
    tables = ("a100-4x-540n__2.21.5__polaris", "a100-4x-540n__2.18.3__polaris")
    inside = fit_network.ratios_inside("polaris", tables)
    assert min(inside.values()) >= 0.85, inside
