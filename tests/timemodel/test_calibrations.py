"""Calibrations: the shipped ones, as files, and which one answers for which machine."""

import json
from pathlib import Path

import numpy as np
import pytest

import tuner
from tests.support.calibrations import made_up
from tests.support.command_line import run
from tuner.api import request
from tuner.base.errors import BadCalibration, BadInput
from tuner.base.names import ALGO_PROTOS
from tuner.times.calibration import calibrate
from tuner.times.timemodel import calibration
from tuner.times.timemodel.intervals import CarriedOver
from tuner.times.timemodel.predict import of_communicator

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
    "another version": '{"calibration": 3}',
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
        (b'{"calibration": 2}', "'parameters' is missing"),
        (b'{"calibration": 9, "parameters": {}}', "version 9, valid: 2"),
        (b"[1]", "a value of another kind than it has"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_in_plain_words(content: bytes, says: str, tmp_path: Path) -> None:
    path = tmp_path / "own.json"
    path.write_bytes(content)
    words = ("pick", "allreduce", "--machine", "dgx-h100", "--nccl", "2.29.2", "--bytes", "1M")
    said = run(*words, "--calibration", str(path), code=2).stderr
    assert said == f"nccl-tuner: {path}: not a calibration: {says}\n"


def test_a_file_of_the_version_before_answers_with_the_intervals_of_now(tmp_path: Path) -> None:
    """Its factors were in other units: 4.5 for another machine was 4.5 scatters."""
    record = json.loads(calibration.text(calibration.load("dgx-h100")))
    del record["spread"], record["alltoall"]["factors"], record["factors"]["network_collective"]
    path = tmp_path / "old.json"
    path.write_text(json.dumps({**record, "calibration": 1, "factors": {**record["factors"], "machine": 4.5}}), "utf-8")
    old, now = calibration.read(path), calibration.load("dgx-h100")
    assert old.factors == now.factors
    assert old.exchange is not None
    assert now.exchange is not None
    assert old.exchange.factors == now.exchange.factors
    assert old.spread.curves == ()


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
    with pytest.raises(BadInput, match="`calibration`"):
        of_communicator(tuner.communicator(machine).selection, machine)


def test_intervals_hold_the_time_and_widen_with_what_is_carried_over() -> None:
    def times(nodes: int, nccl: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        selection = tuner.communicator("dgx-h100", nodes=nodes, nccl=nccl).selection
        said = of_communicator(selection, "dgx-h100").of_algo_proto(ALLREDUCE, SIZES, ALGO_PROTOS[5])
        assert (said.low_us < said.time_us).all()
        assert (said.time_us < said.high_us).all()
        assert said.measured.all()
        width: np.ndarray[tuple[int], np.dtype[np.float64]] = said.high_us / said.low_us
        return width

    own, later, several = times(1, "2.29.2"), times(1, "2.32.3"), times(4, "2.29.2")
    assert (later >= own).all()
    assert (several > 2 * later).all()


def test_an_interval_is_as_wide_as_errors_are_near_the_call() -> None:
    """On 2 nodes of Alps, LL from 256 KiB on is off by far more than the smallest calls are."""
    selection = tuner.communicator("alps", nodes=2, nccl="2.23.4").selection
    model = of_communicator(selection, "alps")
    small, large = (model.of_algo_proto(ALLREDUCE, size, ALGO_PROTOS[at]) for size, at in ((64, 0), (1 << 19, 3)))
    assert small.measured.all()
    assert large.measured.all()
    assert np.log(large.high_us / large.time_us)[0] > 3 * np.log(small.high_us / small.time_us)[0]


def test_with_more_nodes_than_measured_an_interval_grows() -> None:
    halves = []
    for nodes in (64, 128, 1024):
        model = of_communicator(tuner.communicator("alps", nodes=nodes, nccl="2.23.4").selection, "alps")
        said = model.of_algo_proto(ALLREDUCE, [1 << 30], ALGO_PROTOS[5])
        assert CarriedOver.nodes_beyond in said.carried_over
        halves.append(np.log(said.high_us / said.time_us)[0])
    assert halves[0] < halves[1] < halves[2]
    # 1, 2 and 5 doublings of the 32 nodes that were measured; the rest is alike.
    assert halves[2] ** 2 - halves[0] ** 2 == pytest.approx(4 * (halves[1] ** 2 - halves[0] ** 2), rel=0.01)


def test_what_was_measured_on_one_node_says_little_of_several() -> None:
    """Between nodes of B200 no ReduceScatter was measured; on one node it was."""
    scatter = request("reducescatter")

    def carried(nodes: int) -> tuple[CarriedOver, ...]:
        selection = tuner.communicator("dgx-b200", nodes=nodes, nccl="2.29.7").selection
        return of_communicator(selection, "dgx-b200").of_algo_proto(scatter, [1 << 30], ALGO_PROTOS[5]).carried_over

    assert CarriedOver.network_collective in carried(4)
    assert not {CarriedOver.collective, CarriedOver.network_collective} & set(carried(1))


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
    assert CarriedOver.first_nodes in several.carried_over
    assert (several.high_us / several.time_us > 1.3 * one.high_us / one.time_us).all()
