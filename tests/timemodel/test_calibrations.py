"""Calibrations: the shipped ones, as files, and which one answers for which machine."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tuner
from tests.support.calibrations import made_up
from tests.support.command_line import run
from tuner.api import request
from tuner.base.errors import BadCalibration, BadInput
from tuner.base.names import ALGO_PROTOS
from tuner.machine import catalogue
from tuner.times.calibration import calibrate
from tuner.times.timemodel import calibration, features, sites
from tuner.times.timemodel.form import PARAMETERS, believed
from tuner.times.timemodel.intervals import CarriedOver
from tuner.times.timemodel.predict import CalibrationChoice, TimeModel, of_communicator

ALLREDUCE = request("allreduce")
SIZES = [8, 1 << 16, 1 << 20, 1 << 26, 1 << 30]


def test_each_shipped_one_is_made_of_what_its_sources_say() -> None:
    assert set(calibration.names()) == {source.name for source in calibrate.sources()}
    for source in calibrate.sources():
        assert tuple(file.name for file in calibration.load(source.name).measured) == source.tables


@pytest.mark.parametrize("name", calibration.names())
def test_a_file_reads_back_as_it_was(name: str, tmp_path: Path) -> None:
    path = tmp_path / "own.json"
    path.write_text(calibration.text(calibration.load(name)), "utf-8")
    assert calibration.text(calibration.read(path)) == path.read_text("utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("name", calibration.names())
def test_a_fit_anew_gives_the_shipped_one(name: str) -> None:
    """Another processor may round otherwise: times agree to a thousandth."""
    (source,) = (each for each in calibrate.sources() if each.name == name)
    shipped = calibration.load(name)
    anew = calibrate.shipped(source, calibrate.known_widths())
    assert anew.scope == shipped.scope
    selection = tuner.communicator(shipped.machine, nodes=1).selection
    for each in (shipped, anew):
        path_us = of_communicator(selection, shipped.machine).of_candidates(ALLREDUCE, SIZES)
        assert path_us, each.name
    for parameter, value in shipped.parameters.items():
        assert anew.parameters[parameter] == pytest.approx(value, rel=0.02), parameter


BROKEN = {
    "not JSON": "{",
    "a list": "[]",
    "another version": '{"calibration": 5}',
    "nothing else": '{"calibration": 1}',
    "a number": "7",
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_no_calibration_is_one_error(name: str, tmp_path: Path) -> None:
    path = tmp_path / "broken.json"
    path.write_text(BROKEN[name], "utf-8")
    with pytest.raises(BadCalibration, match=r"broken\.json: not a calibration"):
        calibration.read(path)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"\x93NUMPY\x01\x00\xff\xfe", "not JSON"),
        (b"{]", "not JSON"),
        (b'{"calibration": 6}', "'parameters' is missing"),
        (b'{"calibration": 2, "parameters": {}}', "version 2, valid: 6; fit it anew with this version"),
        (b"[1]", "a value of another kind than it has"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_in_plain_words(content: bytes, says: str, tmp_path: Path) -> None:
    path = tmp_path / "own.json"
    path.write_bytes(content)
    words = ("pick", "allreduce", "--machine", "dgx-h100", "--nccl", "2.29.2", "--bytes", "1M")
    said = run(*words, "--calibration", str(path), code=2).stderr
    assert said == f"nccl-tuner: {path}: not a calibration: {says}\n"


@pytest.mark.parametrize(
    ("key", "value"),
    [("start_us", -1), ("start_us", 0), ("start_us", float("inf")), ("spare_us", 1.0), ("start_us", "x")],
)
def test_a_parameter_that_cannot_be_is_refused(key: str, value: object, tmp_path: Path) -> None:
    record = json.loads(calibration.text(made_up()))
    record["parameters"][key] = value
    path = tmp_path / "broken.json"
    path.write_text(json.dumps(record), "utf-8")
    with pytest.raises(BadCalibration):
        calibration.read(path)


@pytest.mark.parametrize(
    ("machine", "nodes", "name"),
    [
        ("dgx-h100", 1, "dgx-h100"),
        ("dgx-h200", 1, "dgx-h100"),
        ("aws-p5", 1, "dgx-h100"),
        ("azure-nd-a100-v4", 2, "dgx-a100"),
        ("aws-p5", 3, "dgx-h100"),
        ("dgx-b200", 16, "dgx-b200"),
        ("gh200-4x", 8, "gh200-4x"),
        ("alps", 8, "alps"),
    ],
)
def test_the_machines_own_answers_or_the_nearest_of_its_generation(machine: str, nodes: int, name: str) -> None:
    model = of_communicator(tuner.communicator(machine, nodes=nodes).selection, machine)
    assert model.calibration.name == name
    carried = model.of_picks(ALLREDUCE, model.selection.pick(ALLREDUCE, SIZES)).carried_over
    assert (CarriedOver.machine in carried) == (machine != model.calibration.machine)


@pytest.mark.parametrize("machine", ["pcie-l40s", "dgx-1v"])
def test_a_machine_without_measured_times_of_its_kind_is_refused(machine: str) -> None:
    with pytest.raises(BadInput, match="calibration="):
        of_communicator(tuner.communicator(machine).selection, machine)


def test_intervals_hold_the_time_and_widen_with_what_is_carried_over() -> None:
    def width(nodes: int, nccl: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        selection = tuner.communicator("dgx-h100", nodes=nodes, nccl=nccl).selection
        said = of_communicator(selection, "dgx-h100").of_algo_proto(ALLREDUCE, SIZES, ALGO_PROTOS[5])
        assert (said.low_us < said.time_us).all()
        assert (said.time_us < said.high_us).all()
        assert said.measured.all() == (nodes == 1)
        return np.asarray(said.high_us / said.low_us)

    own, later, several = width(1, "2.29.2"), width(1, "2.32.3"), width(4, "2.29.2")
    assert (later >= own).all()
    assert (several > 1.5 * later).all()


def site(name: str, nodes: int, nccl: str, machine: str) -> TimeModel:
    return of_communicator(tuner.communicator(machine, nodes=nodes, nccl=nccl).selection, machine, name)


@pytest.mark.parametrize(
    ("machine", "nodes", "name"), [("dgx-h100", 1, None), ("dgx-a100", 4, None), ("alps", 8, None)]
)
@pytest.mark.parametrize("collective", ["allreduce", "reducescatter"])
def test_one_call_alone_has_the_time_that_it_has_among_many(
    machine: str, nodes: int, name: str | None, collective: str
) -> None:
    model = of_communicator(tuner.communicator(machine, nodes=nodes).selection, machine, name)
    sizes = np.array([8, 1 << 12, 100_000, 1 << 20, 7 << 20, 1 << 28, 1 << 36], np.uint64)
    many = model.of_picks(request(collective), model.selection.pick(request(collective), sizes))
    for at in range(len(sizes)):
        one = model.of_picks(request(collective), model.selection.pick(request(collective), sizes[at : at + 1]))
        for name_of in ("time_us", "low_us", "high_us"):
            assert getattr(one, name_of)[0] == pytest.approx(getattr(many, name_of)[at], rel=1e-12)
        assert (one.measured[0], one.why(0)) == (many.measured[at], many.why(at))
        assert set(one.carried_over) <= set(many.carried_over)


def test_a_site_that_nobody_measured_is_said_in_each_row_and_wide() -> None:
    simple = ALGO_PROTOS[5]
    unknown = site("dgx-b200", 4, "2.29.7", "dgx-b200").of_algo_proto(ALLREDUCE, [1 << 31], simple)
    known = site("together-use3a", 4, "2.29.7", "dgx-b200").of_algo_proto(ALLREDUCE, [1 << 31], simple)
    assert unknown.why(0) == "another site"
    assert CarriedOver.site in unknown.carried_over
    assert known.why(0) == ""
    assert np.log(unknown.high_us / unknown.time_us)[0] > 2 * np.log(known.high_us / known.time_us)[0]


def test_an_interval_grows_away_from_what_the_site_was_measured_with() -> None:
    """Sizes from 1 MiB to 8 GiB, 2 to 64 nodes, no Broadcast."""

    def half(nodes: int, size: int, collective: str = "allreduce") -> tuple[float, str]:
        model = site("together-use3a", nodes, "2.29.7", "dgx-b200")
        said = model.of_algo_proto(request(collective), [size], ALGO_PROTOS[5])
        return float(np.log(said.high_us / said.time_us)[0]), said.why(0)

    (known, nothing), (small, of_size), (many, of_nodes), (never, of_call) = (
        half(8, 1 << 31),
        half(8, 1 << 12),
        half(1024, 1 << 31),
        half(8, 1 << 31, "broadcast"),
    )
    assert nothing == ""
    assert "sizes beyond" in of_size
    assert "nodes that the site was not measured with" in of_nodes
    assert "calls that the site was not measured with" in of_call
    assert known < min(small, many, never)


def test_one_row_moves_what_is_like_it() -> None:
    """A site where bandwidth is half of what sites have: AllGather by the same ring follows one row of AllReduce."""
    model = of_communicator(tuner.communicator("dgx-h100", nodes=4, nccl="2.29.2").selection, "dgx-h100")
    ring, size, gather = ALGO_PROTOS[5], [1 << 32], request("allgather")
    calls = features.of_algo_proto(model.selection, ALLREDUCE, np.array(size, np.uint64), ring)
    before = model.of_algo_proto(gather, size, ring)
    twice_us = 2 * model.of_algo_proto(ALLREDUCE, size, ring).time_us
    rows = sites.rows_of(calls, twice_us, dict(model.calibration.parameters))
    own = replace(model.calibration, between=rows, site="own")
    updated = TimeModel(CalibrationChoice(own, same_machine=True, reason=""), model.selection)
    after = updated.of_algo_proto(gather, size, ring)
    assert 1.6 < after.time_us[0] / before.time_us[0] < 2
    assert after.high_us[0] / after.low_us[0] < 0.8 * before.high_us[0] / before.low_us[0]
    small_us = [each.of_algo_proto(ALLREDUCE, [64], ALGO_PROTOS[0]).time_us[0] for each in (updated, model)]
    assert small_us[0] / small_us[1] < 1.3


@pytest.mark.parametrize("name", [each for each in catalogue.names() if catalogue.load(each).gpus_per_node > 1])
def test_times_are_sane_on_every_machine(name: str) -> None:
    """Not below what links take, longer with more bytes and nodes, within 3x of NCCL's own between nodes, which are
    asked without the latency that adapters do not have; over other networks than NCCL's own within 5x, as what NCCL
    says of latency was measured over InfiniBand."""
    sizes = np.array([1 << power for power in range(10, 35, 2)], np.uint64)
    machine, before = catalogue.load(name), None
    for nodes in (2, 4, 16):
        try:
            model = of_communicator(tuner.communicator(name, nodes=nodes).selection, name)
        except BadInput:  # no calibration for such GPUs or links
            return
        if model.calibration.site:  # what was measured is what it is
            return
        for algo_proto in model.selection.candidates(ALLREDUCE):
            said = model.of_algo_proto(ALLREDUCE, sizes, algo_proto)
            calls = features.of_algo_proto(model.selection, ALLREDUCE, sizes, algo_proto)
            nccl_us = calls.nccl_us - calls.adapter_us * (1 - calls.adapter_share)
            assert (said.time_us[1:] > said.time_us[:-1]).all(), algo_proto
            furthest = 5 if model.selection.communicator.network in features.NETWORKS[1:] else 3
            assert (np.abs(np.log(said.time_us / nccl_us)) < np.log(furthest)).all(), algo_proto
            if not machine.trays:
                net_gbs = sum(net.speed_mbps for net in machine.topology.nets) / 8000
                assert (said.low_us >= sizes / (net_gbs * 1e3) * 0.999).all(), algo_proto
        ring = model.of_algo_proto(ALLREDUCE, sizes, ALGO_PROTOS[5]).time_us
        assert before is None or (ring >= before * 0.999).all()
        before = ring


@pytest.mark.parametrize("name", calibration.names())
def test_parameters_are_within_what_is_believed(name: str) -> None:
    fitted = calibration.load(name)
    beliefs = believed(fitted.generation)
    for parameter, value in fitted.parameters.items():
        off = np.log(value / beliefs[parameter]) / PARAMETERS[parameter].log_sd
        assert abs(off) < 2.5, (parameter, value)


@pytest.mark.parametrize("name", calibration.names())
def test_a_calibration_has_fewer_numbers_than_rows(name: str) -> None:
    made = calibration.load(name)
    rows = sum(each.rows for each in made.measured)
    if made.base:
        assert len(made.between or ()) <= rows
    else:
        beliefs = believed(made.generation)
        fitted = sum(value != beliefs[name] for name, value in made.parameters.items())
        spread = {each.key[1]: each for each in made.spread.curves}
        values = sum(len(each.values) for each in (*made.surface.curves, *spread.values()))
        assert fitted + values + len(made.between or ()) < rows


def test_all_to_all_has_a_time_where_it_was_measured() -> None:
    model = of_communicator(tuner.communicator("dgx-h100", nodes=1).selection, "dgx-h100")
    said = model.all_to_all([1 << 10, 1 << 20, 1 << 28])
    assert (np.diff(said.time_us) > 0).all()
    assert said.measured.all()
    with pytest.raises(BadInput, match="AllToAll"):
        of_communicator(tuner.communicator("alps", nodes=2).selection, "alps").all_to_all([8])


def test_all_to_all_between_nodes_that_nobody_measured_has_a_wide_interval() -> None:
    one, several = (
        of_communicator(tuner.communicator("dgx-h100", nodes=nodes).selection, "dgx-h100").all_to_all(
            [1 << 20, 1 << 30]
        )
        for nodes in (1, 4)
    )
    assert not several.measured.any()
    assert CarriedOver.site in several.carried_over
    assert (several.high_us / several.time_us > 1.3 * one.high_us / one.time_us).all()


def test_the_rows_that_say_most_are_spread_over_sizes() -> None:
    """Four of 2 nodes: what bounds large calls says little of small ones; and each narrows more than the next."""
    model = of_communicator(tuner.communicator("dgx-h100", nodes=2, nccl="2.29.2").selection, "dgx-h100")
    sizes = np.array([1 << power for power in range(10, 35)], np.uint64)
    calls = features.of_picks(model.selection, ALLREDUCE, model.selection.pick(ALLREDUCE, sizes))
    chosen = model.calibration.process.telling(calls, 4)
    assert len(set(chosen)) == 4
    bytes_chosen = sorted(int(sizes[at]) for at in chosen)
    assert bytes_chosen[0] < 1 << 20 < 1 << 26 < bytes_chosen[-1]
