"""What a site's rows say of its other calls, and which calls say most: properties over all tables that are shipped."""

import json
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tuner
from tests.scripts import fit_network
from tests.support.command_line import run
from tuner.base.errors import BadInput
from tuner.base.names import AlgoProto, Algorithm, Collective, DataType, Op, Protocol
from tuner.base.nouns import Shape
from tuner.base.spelling import Spelling, spelled_for
from tuner.emulator.request import Request
from tuner.times import measured
from tuner.times.calibration import calibrate
from tuner.times.calibration.measured_calls import splits_file
from tuner.times.placement import Site
from tuner.times.telling import telling_calls
from tuner.times.timemodel import calibration, features, predict, sites
from tuner.times.timemodel.features import Features
from tuner.times.timemodel.form import Form, believed, learnt_between_nodes

RING: AlgoProto = (Algorithm.Ring, Protocol.Simple)
SIZES = (1 << np.arange(13, 34)).astype(np.uint64)


def calls_of(collective: Collective, nodes: int, gpus: int) -> Features:
    selection = tuner.communicator("dgx-h100", nodes=nodes, gpus_per_node=gpus, nccl="2.28.9").selection
    return features.of_algo_proto(selection, Request(collective, DataType.float32, Op.sum), SIZES, RING)


def half_widths(process: sites.SiteProcess, calls: Features) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.asarray(process.corrected(calls)[1])


@pytest.mark.slow
def test_an_own_row_never_widens_the_interval_at_its_own_place() -> None:
    """Over every call of every table between nodes, slow sites too: whatever the row says."""
    for site in fit_network.all_sites().values():
        for name, table in site.tables.items():
            first, _ = fit_network.first_of_kinds(table.measured.calls)
            calls, times_us = table.measured.calls[first], table.measured.times_us[first]
            without = half_widths(sites.SiteProcess(site.nodes), calls)
            for at in range(0, len(first), 3):
                one = np.array([at])
                rows = sites.rows_of(calls[one], times_us[one], site.nodes)
                with_row = half_widths(sites.SiteProcess(site.nodes, rows), calls[one])
                assert with_row[0] <= without[at] * (1 + 1e-9), (name, at)


@pytest.mark.parametrize("factor", [0.2, 1.0, 5.0])
def test_a_row_says_less_of_calls_the_further_away_they_are(factor: float) -> None:
    """Its own shape, then other GPUs of a node and other numbers of nodes: what is left grows with the distance."""
    parameters = believed()
    own = calls_of(Collective.AllGather, 4, 8)
    rows = sites.rows_of(own, factor * own.nccl_us, parameters)
    process = sites.SiteProcess(parameters, rows)
    for shapes in (((4, 8), (4, 4), (4, 2), (4, 1)), ((4, 8), (8, 8), (32, 8), (128, 8))):
        left = [float(np.median(process.left(calls_of(Collective.AllGather, *shape)))) for shape in shapes]
        assert left == sorted(left), (shapes, left)
        assert left[-1] > 2 * left[0]


TYPES = [name for name in calibration.names() if calibration.load(name).instances]


@pytest.mark.parametrize("name", TYPES)
def test_other_clusters_of_a_type_speak_of_their_collectives_and_sizes_alone(name: str) -> None:
    of_type = calibration.load(name)
    assert of_type.between is not None
    without = sites.SiteProcess(of_type.parameters)
    process = sites.SiteProcess(of_type.parameters, type_rows=of_type.between)
    measured = set(of_type.between.collective.tolist())
    for collective in (Collective.AllReduce, Collective.AllGather, Collective.ReduceScatter):
        calls = calls_of(collective, 2, 8)
        (known_us, known), (log_us, half) = process.corrected(calls), without.corrected(calls)
        if collective not in measured:
            assert np.array_equal(known_us, log_us)
            assert np.array_equal(known, half)
            continue
        assert (known <= half).all()
        assert (known / half).min() < 0.98  # of Ring, where most rows are of NVLSTree
        log2_bytes = of_type.between.log2_bytes[of_type.between.collective == collective]
        far = np.log2(calls.bytes) < log2_bytes.min() - 5
        assert np.allclose(known_us[far], np.asarray(log_us)[far], atol=1e-4)
        assert not np.allclose(known_us, log_us, atol=1e-3)


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("factor", [0.3, 1.0, 4.0])
def test_an_own_row_counts_beside_those_of_other_clusters(name: str, factor: float) -> None:
    """It moves its own call to what it says, and widens no interval at its place, whatever it says."""
    of_type = calibration.load(name)
    calls = calls_of(Collective.AllReduce, 2, 8)
    without = half_widths(sites.SiteProcess(of_type.parameters, type_rows=of_type.between), calls)
    for at in range(0, len(calls), 4):
        one = np.array([at])
        rows = sites.rows_of(calls[one], factor * calls.nccl_us[one], of_type.parameters)
        process = sites.SiteProcess(of_type.parameters, rows, type_rows=of_type.between)
        log_us, half = process.corrected(calls[one])
        assert np.asarray(half)[0] <= without[at] * (1 + 1e-9)
        of_row = np.log(factor * calls.nccl_us[at])
        others = sites.SiteProcess(of_type.parameters, type_rows=of_type.between).corrected(calls[one])[0]
        assert abs(np.asarray(log_us)[0] - of_row) <= 0.35 * abs(np.asarray(others)[0] - of_row) + 1e-9


def test_times_on_an_instance_type_rest_on_its_other_clusters_and_judgements_do_not() -> None:
    words = ("pick", "allreduce", "--nodes", "2", "--nccl", "2.22.3", "--bytes", "1G", "--time", "both", "--json")
    of_type, named, other = (
        json.loads(run(*words, *more).stdout)["picks"][0]["calibrated"]["NVLSTree/Simple"]
        for more in (
            ("--machine", "aws-p5-rdma"),
            ("--machine", "aws-p5-rdma", "--calibration", "p5.48xlarge"),
            ("--machine", "aws-p5en"),  # over the same network
        )
    )
    assert of_type["time_us"] == named["time_us"]
    assert of_type["high_us"] / of_type["time_us"] < 0.95 * other["high_us"] / other["time_us"]
    assert of_type["time_us"] == pytest.approx(4590, rel=0.03)  # both tables of p5 have 4,566 to 4,635
    shown = run(*words[:-1], "--machine", "aws-p5-rdma").stdout.replace("\n", " ")
    assert "2 runs of other clusters of p5.48xlarge" in shown
    selection = tuner.communicator("aws-p5-rdma", nodes=2, nccl="2.22.3").selection
    assert predict.of_communicator(selection, "aws-p5-rdma").calibration.type_rows is None


def test_the_covariances_of_calls_of_all_kinds_can_be() -> None:
    """No negative eigenvalue, so that no rows give a variance below 0."""
    parameters = believed()
    parts = [calls_of(collective, nodes, gpus) for collective, nodes, gpus in MIXED]
    calls = features.concatenated(parts)
    rows = sites.rows_of(calls, calls.nccl_us * np.linspace(0.5, 3, len(calls)), parameters)
    process = sites.SiteProcess(parameters, rows)
    assert np.isfinite(process.log_likelihood)
    assert (process.left(calls) >= -1e-9).all()


MIXED = [
    (Collective.AllReduce, 2, 8),
    (Collective.AllReduce, 16, 1),
    (Collective.AllGather, 2, 4),
    (Collective.ReduceScatter, 64, 8),
]


def test_what_is_measured_first_says_ever_more_and_names_its_commands() -> None:
    found = telling_calls(Site("dgx-h100", "2.28.9"), Shape(4, 8), 5)
    errors = [found.error_before, *(each.error_after for each in found.calls)]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.6 * errors[0]
    for each in found.calls:
        assert each.command.startswith("mpirun -np 32 -N 8 ")
        assert f"_perf -b {each.command.split()[-5]} " in each.command
    with spelled_for(Spelling.COMMAND_LINE), pytest.raises(BadInput, match="--nodes 2 or more"):
        telling_calls(Site("dgx-h100", "2.28.9"), Shape(1, 8), 5)


def test_the_command_says_what_to_measure_and_what_it_needs() -> None:
    words = ("measured", "--next", "3", "--machine", "dgx-h100", "--nodes", "2")
    printed = run(*words).stdout
    found = json.loads(run(*words, "--json").stdout)
    assert [each["command"] in printed for each in found["calls"]] == [True] * 3
    joined = printed.replace("\\\n      ", "")
    assert found["measure_command"] in joined
    assert found["fit_command"] in joined
    assert "--machine NAME" in run("measured", "--next", "3", "--nodes", "2", code=2).stderr


def test_what_it_says_to_measure_can_be_measured_and_fitted(tmp_path: Path) -> None:
    """With simulated GPUs, which take no mpirun, and as many nodes as the communicator has."""
    found = json.loads(run("measured", "--next", "2", "--machine", "dgx-h100", "--nodes", "2", "--json").stdout)
    ranks, measure = found["measure_command"].split(" nccl-tuner ")
    assert ranks == "mpirun -np 16 -N 8"
    simulated = ("--backend", "simulated", "--machine", "dgx-h100", "--nodes", "2", "--rounds", "3")
    rows, own = tmp_path / "rows.jsonl", tmp_path / "own.json"
    run(*measure.replace("rows.jsonl", str(rows)).split(), *simulated)
    fit = found["fit_command"].replace("rows.jsonl", str(rows)).replace("own.json", str(own))
    assert "updated by" in run(*fit.split()[1:]).stdout
    assert own.is_file()


@pytest.mark.slow
def test_what_sites_have_in_common_is_what_they_teach() -> None:
    """The shipped medians, widths and factors of intervals are those that the script finds."""
    found = tomllib.loads(fit_network.learnt())
    shipped = learnt_between_nodes()
    for part in ("parameters", "widening"):
        assert found[part].keys() == shipped[part].keys()
        for name, pair in found[part].items():
            assert pair == pytest.approx(shipped[part][name], rel=0.02), name


def test_networks_differ_by_their_factors_alone() -> None:
    """Calls over several networks at once: each has the time that it has alone, and other software takes longer."""
    calls = calls_of(Collective.AllReduce, 4, 8)
    parameters = believed()
    each = [replace(calls, network=np.full(len(calls), number)) for number in range(len(features.NETWORKS))]
    alone_us = [Form(parameters).times_us(one) for one in each]
    together_us = Form(parameters).times_us(features.concatenated(each))
    assert np.allclose(together_us, np.concatenate(alone_us), rtol=1e-12)
    without = {name: value for name, value in parameters.items() if name.partition(".")[2] not in features.NETWORKS}
    for one, of_factors_us in zip(each, alone_us, strict=True):
        assert np.array_equal(Form(without).times_us(one), alone_us[0])
        if one is not each[0]:
            assert (of_factors_us[:4] > alone_us[0][:4]).all()


KEPT = json.loads((Path(__file__).parents[2] / "tables" / "sites.json").read_text("utf-8"))
SUMMARY, BEFORE = KEPT["summary"], KEPT["before"]["summary"]


def test_sites_that_nothing_was_learnt_from_are_nearer_than_by_nccl_or_its_time_with_a_factor() -> None:
    """Nothing was learnt from the tables of ``unfitted`` or chosen by them, from the others' without their site. With
    one row of large calls one factor is as near there: within a tenth."""
    for group in ("unfitted", "healthy", "fitted"):
        for given in ("0 none", "1 random", "4 random"):
            found = SUMMARY[group][given]
            assert found["error"] <= min(found["nccl"], found["one_factor"]), (group, given)
            assert found["large_error"] <= min(found["large_nccl"], 1.1 * found["large_one_factor"]), (group, given)
    for given in ("0 none", "1 random", "4 random"):
        for name in ("error", "large_error"):
            assert SUMMARY["unfitted"][given][name] <= 1.1 * BEFORE["unfitted"][given][name], (given, name)
    assert SUMMARY["unfitted"]["0 none"]["error"] <= 0.8 * BEFORE["unfitted"]["0 none"]["error"]


def test_large_calls_of_healthy_sites_have_narrow_intervals_that_hold_them() -> None:
    found = SUMMARY["healthy"]["0 none"]
    assert found["huge_upper"] <= 1.6
    assert 0.85 <= found["huge_inside"] <= 0.97
    assert BEFORE["fitted"]["0 none"]["huge_upper"] > 2 * found["huge_upper"]
    assert KEPT["widened"] == {}


def test_chosen_rows_say_more_than_random_ones() -> None:
    for given in (1, 4):
        chosen, random = (SUMMARY["healthy"][f"{given} {how}"] for how in ("chosen", "random"))
        assert chosen["error"] <= 0.85 * random["error"]
        assert chosen["large_error"] <= 0.75 * random["large_error"]


@pytest.mark.parametrize("given", ["0 none", "1 random", "1 chosen", "4 random", "4 chosen"])
def test_intervals_hold_calls_of_every_size_and_number_of_nodes(given: str) -> None:
    """Of sites that are left out: means over tables, of sizes and nodes that six tables or more have.

    Without the smallest size, with which runs begin: their first call takes longer.
    """
    places = KEPT["coverage"][given]
    for by in ("bytes", "nodes"):
        for place, share in places[by].items():
            if places[f"tables_by_{by}"][place] >= 6 and (by, place) != ("bytes", "2^2"):
                assert share >= 0.84, (by, place)


def test_a_table_is_nearer_by_the_other_clusters_of_its_type() -> None:
    """Medians over tables, each predicted without its own rows; with its own ones it is not further off."""
    of_types = KEPT["instance_types"]
    for given, of_all, of_large in ((0, 0.9, 0.4), (1, 0.95, 0.6), (4, 0.8, 0.85)):
        of_given = [each for each in of_types if each["given"] == given]
        for known, without, part in (("error", "without", of_all), ("large_error", "large_without", of_large)):
            medians = (np.median([each[name] for each in of_given]) for name in (known, without))
            assert next(medians) <= part * next(medians), (given, known)
        assert np.mean([each["inside"] for each in of_given]) >= 0.85
    shown = {each["table"] for each in of_types}
    for source in calibrate.sources():
        clusters = {measured.load(table).header.site for table in source.tables if source.instances}
        assert shown & set(source.tables if source.instances else ()) == set(source.tables if len(clusters) > 1 else ())


def test_errors_are_as_large_as_was_expected() -> None:
    """Before a call is measured, and after one and four: medians over healthy tables."""
    for given, each in KEPT["expected"].items():
        assert 0.67 <= each["found"] / each["expected"] <= 1.5, given
        assert 0.75 <= each["ratio"] <= 1.33, given


def test_with_instance_types_errors_are_this_part_of_those_of_the_model_before() -> None:
    for given, part, large in (("0 none", 0.67, 0.56), ("1 random", 0.87, 0.75), ("4 random", 0.8, 0.9)):
        found, before = SUMMARY["fitted, with instance types"][given], BEFORE["fitted"][given]
        assert found["error"] <= part * before["error"], given
        assert found["large_error"] <= large * before["large_error"], given


def test_every_table_is_shown_bad_ones_too() -> None:
    shown = {(each["table"], each["given"]) for each in KEPT["tables"]}
    every = {table for site in splits_file()["sites"].values() for table, *_ in site["tables"]}
    assert {table for table, given in shown if given == 0} == every


def test_the_picture_of_accuracy_shows_what_is_kept(tmp_path: Path) -> None:
    out = tmp_path / "accuracy.svg"
    shown = json.loads(run("plot", "accuracy", "--out", str(out), "--json").stdout)
    of_all = {each["given"]: each for each in shown["classes"] if each["gpu"] == "all"}
    kept = {0: "0 none", 1: "1 random", 4: "4 random"}
    for given, name in kept.items():
        assert of_all[given]["error"] == pytest.approx(SUMMARY["healthy"][name]["error"], abs=0.001)
        assert of_all[given]["tables"] == SUMMARY["healthy"][name]["tables"]
    assert "calibrated" in out.read_text()
    assert "remove the argument" in run("plot", "accuracy", "allreduce", "--json", code=2).stderr
