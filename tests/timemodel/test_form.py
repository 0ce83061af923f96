"""The form of calibrated times, and what measurements say beyond it: what holds for any parameters, and fits."""

from dataclasses import fields, replace

import numpy as np
import pytest

import tuner
from tuner.api import request
from tuner.base.names import ALGO_PROTOS, Algorithm, Protocol
from tuner.times.calibration import time_fit
from tuner.times.calibration.time_fit import MeasuredTimes
from tuner.times.timemodel import features, intervals, sites
from tuner.times.timemodel.features import Features
from tuner.times.timemodel.form import PARAMETERS, Form, TimesOfCalls, believed, nvls_chunk_bytes
from tuner.times.timemodel.intervals import Place

SIZES = np.array([1 << power for power in range(3, 34)], np.uint64)
SHAPES = [("dgx-a100", 1), ("dgx-h100", 1), ("dgx-h100", 4), ("dgx-b200", 2), ("gh200-4x", 8)]
ALLREDUCE = request("allreduce")


def calls(machine: str, nodes: int, collective: str = "allreduce") -> Features:
    selection = tuner.communicator(machine, nodes=nodes, nccl="2.28.9").selection
    kind = request(collective)
    return features.of_picks(selection, kind, selection.pick(kind, SIZES))


@pytest.mark.parametrize("collective", ["allreduce", "allgather", "broadcast"])
@pytest.mark.parametrize(("machine", "nodes"), SHAPES)
def test_each_combination_takes_longer_the_more_bytes(machine: str, nodes: int, collective: str) -> None:
    selection = tuner.communicator(machine, nodes=nodes, nccl="2.28.9").selection
    kind = request(collective)
    for algo_proto in selection.candidates(kind):
        times_us = Form(believed()).times_us(features.of_algo_proto(selection, kind, SIZES, algo_proto))
        assert np.isfinite(times_us).all()
        assert times_us.min() > PARAMETERS["start_us"].median
        # Channels grow with the size in steps, and may cost more than a doubled size does.
        assert (times_us[4:] > times_us[:-4]).all(), algo_proto


def test_the_features_of_picks_are_those_of_what_was_picked() -> None:
    selection = tuner.communicator("dgx-h100", nodes=2, nccl="2.28.9").selection
    picks = selection.pick(ALLREDUCE, SIZES)
    mixed = features.of_picks(selection, ALLREDUCE, picks)
    assert len(set(picks.algo_protos())) > 2
    for at, algo_proto in enumerate(picks.algo_protos()):
        one = features.of_algo_proto(selection, ALLREDUCE, SIZES[at : at + 1], algo_proto)
        for name in (field.name for field in fields(Features)):
            assert mixed.of_each(name)[at] == one.of_each(name)[0], name


def test_a_rings_time_is_the_sum_of_its_terms() -> None:
    """AllGather of 8 GPUs by LL, one pass of the threads: start, seven hops, eight steps' data."""
    selection = tuner.communicator("dgx-a100", nodes=1, nccl="2.28.9").selection
    one = features.of_algo_proto(selection, request("allgather"), np.array([65536], np.uint64), ALGO_PROTOS[3])
    p = believed("ampere")
    assert 8 * one.channels[0] * one.threads[0] >= 65536 / 8
    start_us = p["start_us"] + p["channels_start_us"] * (1 - 1 / one.channels[0])
    data_us = 65536 / 8 / (one.channels[0] * p["ll_channel_gbs"] * 1e3)
    expected_us = start_us + 7 * p["ll_hop_us"] + (7 + p["ll_extra_steps"]) * data_us
    assert Form(p).times_us(one)[0] == pytest.approx(expected_us, rel=1e-12)


def test_nvls_sends_in_chunks_as_nccl_does() -> None:
    """16 channels and 8 heads: 128 chunks a round."""
    selection = tuner.communicator("dgx-h100", nodes=1, nccl="2.28.9").selection
    sizes = np.array([1 << 20, (8 << 20) - 16, 8 << 20, (64 << 20) - 16, 64 << 20, 1 << 30, 1 << 31], np.uint64)
    kind = features.of_algo_proto(selection, ALLREDUCE, sizes, (Algorithm.NVLS, Protocol.Simple))
    chunks = nvls_chunk_bytes(kind)
    assert kind.channels[-1] * kind.heads == 128
    assert chunks[2:].tolist() == [32768, 32768, 65536, 131072, 131072]
    assert (chunks[:2] == 16384).all()


def test_times_asked_again_are_those_of_the_parameters() -> None:
    """Each parameter alone, there and back, and all together: exactly what the form says, of every formula."""
    every = [calls(machine, nodes, collective) for machine, nodes in SHAPES for collective in ("allreduce", "reduce")]
    for machine, nodes in SHAPES:
        selection = tuner.communicator(machine, nodes=nodes, nccl="2.28.9").selection
        every += [features.of_algo_proto(selection, ALLREDUCE, SIZES, each) for each in selection.candidates(ALLREDUCE)]
    mixed, rng, base = features.concatenated(every), np.random.default_rng(3), believed()
    assert len(mixed.by_algo_proto) >= 8
    times, changing = TimesOfCalls(mixed), set[str]()
    for name in PARAMETERS:
        for parameters in (base, {**base, name: base[name] * np.exp(rng.normal(0, 0.3))}, base):
            found_us = times.times_us(parameters)
            assert np.array_equal(found_us, Form(parameters).times_us(mixed)), name
            changing |= set() if np.array_equal(found_us, Form(base).times_us(mixed)) else {name}
    assert len(changing) > 40
    far = {name: value * np.exp(rng.normal(0, 0.5)) for name, value in base.items()}
    assert np.array_equal(times.times_us(far), Form(far).times_us(mixed))


@pytest.mark.parametrize("network", range(len(features.NETWORKS)))
def test_times_with_each_parameter_changed_are_those_one_after_the_other(network: int) -> None:
    """Of every formula, of one algorithm and protocol alone, and of calls on several networks."""
    every = [calls(machine, nodes, collective) for machine, nodes in SHAPES for collective in ("allreduce", "reduce")]
    for machine, nodes in SHAPES:
        selection = tuner.communicator(machine, nodes=nodes, nccl="2.28.9").selection
        every += [features.of_algo_proto(selection, ALLREDUCE, SIZES, each) for each in selection.candidates(ALLREDUCE)]
    mixed, base = features.concatenated(every), believed()
    on_several = replace(mixed, network=np.where(mixed.bytes > 1 << 20, network, 0))
    changes = np.random.default_rng(5).normal(0, 0.3, len(PARAMETERS))
    changed = {name: base[name] * float(np.exp(change)) for name, change in zip(PARAMETERS, changes, strict=True)}
    for asked in (mixed, on_several, replace(every[-1], network=network)):
        each_us = TimesOfCalls(asked).times_us_each_changed(base, changed)
        for name, found_us in zip(changed, each_us, strict=True):
            expected_us = Form({**base, name: changed[name]}).times_us(asked)
            np.testing.assert_allclose(found_us, expected_us, rtol=1e-14, err_msg=name)


@pytest.mark.parametrize(("machine", "nodes"), SHAPES)
def test_a_fit_finds_the_times_again(machine: str, nodes: int) -> None:
    """Times by parameters far from the beliefs, without noise: the fit's are within 1 % of them, held-out sizes too."""
    rng = np.random.default_rng(7)
    truth = {name: value * np.exp(rng.normal(0, 0.25)) for name, value in believed().items() if "." not in name}
    both = features.concatenated([calls(machine, nodes), calls(machine, nodes, "allgather")])
    times_us = Form({**believed(), **truth}).times_us(both)
    kept = np.arange(len(both)) % 3 != 1
    measured = MeasuredTimes(both, times_us, np.zeros(len(both), np.int64))
    fitted = time_fit.fit(measured[kept], believed())
    again_us = Form(fitted.parameters).times_us(both) * np.exp(fitted.surface.log_factors(both))
    # Between nodes rates add up in squares, which leaves a flat optimum; in a node the fit is exact but for its priors.
    assert np.abs(again_us / times_us - 1)[kept].mean() < (0.001 if nodes == 1 else 0.009)
    assert np.abs(again_us / times_us - 1)[~kept].mean() < 0.02
    start_us = Form(believed()).times_us(both)
    assert np.abs(start_us / times_us - 1).mean() > 0.05


def test_another_way_of_launching_has_a_start_of_its_own() -> None:
    one = calls("dgx-h100", 1)
    slow = Form({**believed(), "start_us": 20.0}).times_us(one)
    fast = Form(believed()).times_us(one)
    both = MeasuredTimes(features.concatenated([one, one]), np.concatenate([fast, slow]), np.repeat([0, 1], len(one)))
    fitted = time_fit.fit(both, believed())
    assert fitted.start_factors[0] == 1
    assert fitted.parameters["start_us"] == pytest.approx(6.0, rel=0.15)
    assert fitted.parameters["start_us"] * fitted.start_factors[1] == pytest.approx(20.0, rel=0.15)


def test_student_t_is_that_of_scipy() -> None:
    from scipy.stats import t as student_t  # takes long to load

    for freedom in (4.0, 5.0, 8.0, 36.0, 300.0):
        assert sites._student_t95(freedom) == pytest.approx(float(student_t.ppf(0.95, freedom)), rel=1.5e-3)


def test_many_rows_narrow_intervals_of_calls_like_them_alone() -> None:
    """A site with 96 rows of AllGather: intervals of AllReduce on the same ring are those of the process itself."""
    communicator = tuner.communicator("dgx-h100", nodes=4, nccl="2.28.9", env={"NCCL_ALGO": "Ring"})
    sizes = (1 << np.arange(10, 34)).astype(np.uint64)
    of = {}
    for collective in ("allgather", "allreduce"):
        picks = communicator.pick(collective, sizes)
        of[collective] = features.of_picks(communicator.selection, request(collective), picks)
    rows = sites.rows_of(of["allgather"], np.linspace(1.2, 1.3, len(sizes)) * of["allgather"].nccl_us, believed())
    rows = rows.joined(rows).joined(rows).joined(rows)
    assert len(rows) >= sites.MANY_ROWS
    halves = {}
    for factor in (0.5, 1.0):
        process = sites.SiteProcess(believed(), rows, {0: (1.0, 1.0), sites.MANY_ROWS: (factor, factor)})
        halves[factor] = {collective: process.corrected(calls)[1] for collective, calls in of.items()}
    assert (halves[0.5]["allgather"] < halves[1.0]["allgather"]).all()
    assert (halves[0.5]["allreduce"] == halves[1.0]["allreduce"]).all()
    other = sites.SiteProcess(believed(), rows).corrected(of["allgather"], another_release=True)
    same = sites.SiteProcess(believed(), rows).corrected(of["allgather"])
    assert (other[0] == same[0]).all()
    assert (other[1] > same[1]).all()
    one = of["allreduce"][np.array([5])]
    number = features.Features(*(float(getattr(one, each.name)[0]) for each in fields(one)))
    assert sites.SiteProcess(believed(), rows).has_measured(int(number.collective), int(number.algo_proto)) is False


RING = (Algorithm.Ring, Protocol.Simple)
MEASURED_SIZES = np.array([1 << power for power in range(20, 31)], np.uint64)


def ring(collective: str = "allreduce") -> Features:
    selection = tuner.communicator("dgx-h100", nodes=1, nccl="2.28.9").selection
    return features.of_algo_proto(selection, request(collective), MEASURED_SIZES, RING)


def test_it_says_what_was_measured_there() -> None:
    calls = ring()
    many = features.concatenated([calls] * 50)
    residuals = np.tile(np.linspace(-0.2, 0.3, len(MEASURED_SIZES)), 50)
    factors = intervals.learnt(many, residuals, 100).log_factors(calls)
    assert np.abs(factors - residuals[: len(MEASURED_SIZES)]).max() < 0.03


def test_how_large_errors_are_is_learnt_where_they_are() -> None:
    calls = ring()
    many = features.concatenated([calls] * 50)
    curves = intervals.spread(many, np.tile(np.geomspace(0.25, 4, len(MEASURED_SIZES)), 50), 100)
    spread = intervals.shared(curves, [Place("2.28.9", calls.collective, calls.algo_proto, 8, 1)])
    near = np.exp(spread.log_factors(calls))
    assert (np.diff(near) > 0).all()
    assert near[0] < 0.5
    assert near[-1] > 2.5
    assert (spread.log_factors(ring("allgather")) == 0).all()


def test_one_measurement_weighs_less_than_many() -> None:
    calls = ring()
    once = intervals.learnt(calls, np.full(len(MEASURED_SIZES), 0.3), 100).log_factors(calls)
    assert (once > 0.15).all()
    assert (once < 0.3).all()


def test_what_was_not_measured_has_none() -> None:
    learnt = intervals.learnt(ring(), np.full(len(MEASURED_SIZES), 0.3), 100)
    assert (learnt.log_factors(ring("allgather")) == 0).all()
    other = replace(ring(), protocol=int(Protocol.LL))
    assert (learnt.log_factors(other) == 0).all()
    fewer_gpus = replace(ring(), ranks=4.0)
    assert (learnt.log_factors(fewer_gpus) == 0).all()


def test_beyond_the_measured_sizes_it_fades_without_a_jump() -> None:
    many = features.concatenated([ring()] * 50)
    learnt = intervals.learnt(many, np.full(len(many), 0.6), 100)
    past = 2.0 ** np.arange(30, 41, 0.25)
    factors = learnt.log_factors(replace(ring()[np.zeros(len(past), np.intp)], bytes=past))
    assert (np.diff(factors) <= 0).all()
    assert (np.diff(factors) > -0.1).all()
    assert factors[-1] < 0.01


def test_no_more_values_than_rows_allow() -> None:
    """Curves of fewer rows than values are none; where not all may be, the best come first, the last one thinned."""
    many = features.concatenated([ring()] * 3 + [ring("allgather")] * 2 + [ring("reducescatter")[np.array([0, 10])]])
    residuals = np.full(len(many), 0.3)
    named = {
        most: [each.key[0] for each in intervals.learnt(many, residuals, most).curves] for most in (5, 10, 11, 22, 99)
    }
    allgather, allreduce = (int(request(name).collective) for name in ("allgather", "allreduce"))
    assert named == {5: [], 10: [allreduce], 11: [allreduce], 22: [allgather, allreduce], 99: [allgather, allreduce]}
