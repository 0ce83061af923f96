"""Calibrated times for Python users, and what is sure of one beside another."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tuner
from tests.support import calibrations
from tuner.answers import calibrated
from tuner.answers.calibrated import CalibratedEstimate, TimesWanted, difference, ratio
from tuner.base.errors import BadCalibration, BadInput
from tuner.base.names import Collective, DataType, Op
from tuner.emulator.request import Request
from tuner.times.timemodel import predict
from tuner.times.timemodel.intervals import CarriedOver
from tuner.times.timemodel.predict import TimeModel

H100 = tuner.communicator("dgx-h100", nodes=2, nccl="2.28.9")
SIZES = [8, 1 << 10, 1 << 20, 1 << 28]
ALLREDUCE = Request(Collective.AllReduce, DataType.float32, Op.sum)
STEP = Path(__file__).parents[2] / "docs" / "examples" / "step.csv"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return calibrations.file(tmp_path)


def test_calibrated_times_of_the_picks(file: Path) -> None:
    found, picks = H100.calibrated("allreduce", SIZES, file), H100.pick("allreduce", SIZES)
    model = predict.of_communicator(H100.selection, "dgx-h100", str(file))
    for at, algo_proto in enumerate(picks.algo_protos()):
        times = model.of_algo_proto(ALLREDUCE, [SIZES[at]], algo_proto)
        assert found.time_us[at] == pytest.approx(times.time_us[0])
        assert (found.low_us[at], found.high_us[at]) == pytest.approx((times.low_us[0], times.high_us[0]))
        assert found.measured[at] == times.measured[0]
    assert (found.algorithm == picks.algorithm).all()
    assert (found.protocol == picks.protocol).all()
    assert found.calibration == "made-up, as asked for"
    assert found.launch == "a process a GPU"
    assert not found.measured.any()  # between nodes
    assert found.carried_over == ("another site",)
    assert list(found.to_pandas()) == ["bytes", "algorithm", "protocol", "time_us", "low_us", "high_us", "measured"]


def test_no_sizes_have_no_calibrated_times(file: Path) -> None:
    assert len(H100.calibrated("allreduce", [], file).time_us) == 0


def test_where_no_calibration_fits_it_is_said(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="joined by"):
        tuner.communicator("pcie-l40s", nccl="2.28.9").calibrated("allreduce", SIZES)
    with pytest.raises(BadInput, match="only plain buffers were measured"):
        H100.calibrated("allreduce", SIZES, buffers="registered")
    (tmp_path / "none.json").write_text("[]")
    with pytest.raises(BadCalibration, match="not a calibration"):
        H100.calibrated("allreduce", SIZES, tmp_path / "none.json")
    with pytest.raises(BadInput, match="unknown calibrated; valid: settings, tables, measured, calibration"):
        tuner.budget(STEP, H100, calibrated=file)  # type: ignore[call-overload]


def test_a_budget_has_both(file: Path) -> None:
    shipped, own = tuner.budget(STEP, H100), tuner.budget(STEP, H100, calibration=file)
    used = [budget.variants[0].calibration for budget in (shipped, own)]
    assert [each and each.name for each in used] == ["dgx-h100", "made-up"]
    assert shipped.variants[0].total_us == own.variants[0].total_us
    by_measurements = own.variants[0].calibrated
    assert by_measurements is not None
    assert by_measurements.total.low_us < by_measurements.total.time_us < by_measurements.total.high_us
    without = tuner.budget(STEP, tuner.communicator("pcie-l40s", nodes=2, nccl="2.28.9"))
    assert without.variants[0].calibrated is None
    assert "joined by" in str(without.variants[0].calibration)


def estimates(communicator: tuner.Communicator, file: Path, sizes: list[int]) -> list[CalibratedEstimate]:
    wanted = TimesWanted(False, str(file))
    model = calibrated.answering(wanted, communicator.scenario, communicator.selection)
    assert isinstance(model, TimeModel)
    return calibrated.estimates(model, ALLREDUCE, communicator.selection.pick(ALLREDUCE, sizes))


def test_the_same_call_takes_the_same_time_whatever_else_differs(file: Path) -> None:
    (before,), (after,) = (
        estimates(tuner.communicator("dgx-h100", nodes=2, nccl=nccl), file, [1 << 20]) for nccl in ("2.28.9", "2.29.2")
    )
    assert (ratio(before, after).low, ratio(before, after).high) == (1, 1)
    assert difference([(before, after, 7)]).difference_high == 0


def test_bounds_of_different_combinations_are_added(file: Path) -> None:
    before, after = estimates(tuner.communicator("dgx-h100", nccl="2.28.9"), file, [1 << 20, 1 << 28])
    found = ratio(before, after)
    assert found.low == pytest.approx(after.time.low_us / before.time.high_us, rel=1e-4)
    assert found.high == pytest.approx(after.time.high_us / before.time.low_us, rel=1e-4)
    assert not found.measured
    several = difference([(before, after, 3)])
    assert several.difference_us == pytest.approx(3 * (after.time.time_us - before.time.time_us))
    assert several.difference_low_us == pytest.approx(3 * (after.time.low_us - before.time.high_us), rel=1e-4)
    assert several.difference_high_us == pytest.approx(3 * (after.time.high_us - before.time.low_us), rel=1e-4)
    assert several.difference == pytest.approx(found.ratio - 1, abs=1e-4)
    assert several.difference_low == pytest.approx(found.low - 1, abs=1e-4)
    assert several.difference_high == pytest.approx(found.high - 1, abs=1e-4)


@pytest.mark.parametrize(
    ("others", "left"),
    [
        ({"nccl": "2.29.2"}, []),  # on both sides a release and a number of GPUs that were not measured, but the same
        ({"nccl": "2.29.3"}, [CarriedOver.release]),
        ({"nccl": "2.29.2", "gpus_per_node": 2}, [CarriedOver.gpus]),
    ],
)
def test_what_both_carry_over_to_the_same_cancels_in_one_combination_on_one_node(
    file: Path, others: dict[str, Any], left: list[CarriedOver]
) -> None:
    forced = {"NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple"}
    fewer = {**forced, "NCCL_MAX_NCHANNELS": "8"}
    base = tuner.communicator("dgx-h200", gpus_per_node=4, nccl="2.29.2", env=forced)
    other = tuner.communicator("dgx-h200", **{"gpus_per_node": 4, **others}, env=fewer)
    (before,), (after,) = estimates(base, file, [1 << 28]), estimates(other, file, [1 << 28])
    expected = 2 * calibrations.half_width(*left)
    found = ratio(before, after)
    assert math.log(found.high / found.ratio) == pytest.approx(expected, abs=1e-4)
    assert math.log(found.ratio / found.low) == pytest.approx(expected, abs=1e-4)


def test_between_nodes_what_calls_of_one_site_have_in_common_cancels(file: Path) -> None:
    forced = {"NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple"}
    base, other = (
        tuner.communicator("dgx-h100", nodes=8, nccl="2.28.9", env={**forced, **more})
        for more in ({}, {"NCCL_MAX_NCHANNELS": "8"})
    )
    (before,), (after,) = estimates(base, file, [1 << 28]), estimates(other, file, [1 << 28])
    apart = math.log(before.time.high_us / before.time.time_us)
    assert 0 < math.log(ratio(before, after).high / ratio(before, after).ratio) < apart
    assert ratio(before, before).high == 1


def test_estimates_are_in_the_order_of_their_calls(file: Path) -> None:
    sizes = [1 << 28, 8, 1 << 20, 16]
    mixed, alone = estimates(H100, file, sizes), [estimates(H100, file, [size])[0] for size in sizes]
    assert [each.time for each in mixed] == [each.time for each in alone]
    assert np.argsort([each.time.time_us for each in mixed]).tolist() == [1, 3, 2, 0]
