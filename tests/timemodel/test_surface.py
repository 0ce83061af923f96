"""What measurements say beyond the form: learnt where they are, none elsewhere."""

from dataclasses import replace

import numpy as np

import tuner
from tuner.api import request
from tuner.base.names import Algorithm, Protocol
from tuner.times.timemodel import features, intervals
from tuner.times.timemodel.features import Features
from tuner.times.timemodel.intervals import Place

RING = (Algorithm.Ring, Protocol.Simple)
SIZES = np.array([1 << power for power in range(20, 31)], np.uint64)


def ring(collective: str = "allreduce") -> Features:
    selection = tuner.communicator("dgx-h100", nodes=1, nccl="2.28.9").selection
    return features.of_algo_proto(selection, request(collective), SIZES, RING)


def test_it_says_what_was_measured_there() -> None:
    calls = ring()
    many = features.concatenated([calls] * 50)
    residuals = np.tile(np.linspace(-0.2, 0.3, len(SIZES)), 50)
    factors = intervals.learnt(many, residuals, 100).log_factors(calls)
    assert np.abs(factors - residuals[: len(SIZES)]).max() < 0.03


def test_how_large_errors_are_is_learnt_where_they_are() -> None:
    calls = ring()
    many = features.concatenated([calls] * 50)
    curves = intervals.spread(many, np.tile(np.geomspace(0.25, 4, len(SIZES)), 50), 100)
    spread = intervals.shared(curves, [Place("2.28.9", calls.collective, calls.algo_proto, 8, 1)])
    near = np.exp(spread.log_factors(calls))
    assert (np.diff(near) > 0).all()
    assert near[0] < 0.5
    assert near[-1] > 2.5
    assert (spread.log_factors(ring("allgather")) == 0).all()


def test_one_measurement_weighs_less_than_many() -> None:
    calls = ring()
    once = intervals.learnt(calls, np.full(len(SIZES), 0.3), 100).log_factors(calls)
    assert (once > 0.15).all()
    assert (once < 0.3).all()


def test_what_was_not_measured_has_none() -> None:
    learnt = intervals.learnt(ring(), np.full(len(SIZES), 0.3), 100)
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
