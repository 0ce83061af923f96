"""Which few combinations to force to know more: never measured, and by their calibrated interval maybe faster."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from tuner import release
from tuner.base.errors import TunerError
from tuner.base.names import AlgoProto, Collective, DataType, Op
from tuner.base.records import json_form
from tuner.emulator.request import Request
from tuner.times.calibration.measured_calls import Site
from tuner.times.comparison.judged import is_same
from tuner.times.records.samples import Combination
from tuner.times.regret.records import MeasuredArms, MeasuredCall
from tuner.times.timemodel import features, predict

FIRST_SIZES = 4


@dataclass(frozen=True, slots=True)
class NextRun:
    """A combination to force from ``low_bytes`` to ``high_bytes``: its 90 % interval reaches below the pick's time.

    At ``bytes`` the possible gain is largest: the pick took ``pick_us``, the combination may take from ``low_us`` to
    ``high_us`` by ``calibration``. ``possible_gain`` is the pick's time over ``low_us``, minus 1. ``measured`` is
    whether the calibration has measured times of such calls anywhere; without, its interval is wide.
    """

    collective: Collective
    dtype: DataType
    nodes: int
    gpus_per_node: int
    combination: Combination = field(metadata=json_form(convert=str))
    low_bytes: int
    high_bytes: int
    sizes: int
    bytes: int
    pick: Combination = field(metadata=json_form(convert=str))
    pick_us: float
    time_us: float
    low_us: float
    high_us: float
    possible_gain: float
    measured: bool
    calibration: str

    @property
    def variables(self) -> str:
        """What forces it."""
        return f"NCCL_ALGO={self.combination.algorithm.name} NCCL_PROTO={self.combination.protocol.name}"


@dataclass(frozen=True, slots=True)
class NextRuns:
    """``runs``, the largest possible gain first; ``not_answered`` says why some calls have no calibrated times.

    ``first_sizes`` are those of AllReduce, as NCCL runs it on the most nodes there are, that say most of the site's
    other calls, the best first; none on one node.
    """

    runs: tuple[NextRun, ...]
    not_answered: tuple[str, ...]
    first_sizes: tuple[int, ...] = ()


def next_runs(measured: MeasuredArms, calibration: str | None = None) -> NextRuns:
    """For all calls whose pick was measured. Errors: those of :func:`tuner.times.timemodel.predict.choose`, where a
    ``calibration`` is asked for by name or file.
    """
    groups: dict[tuple[object, ...], list[MeasuredCall]] = defaultdict(list)
    for one in measured.calls:
        groups[(*one.call.curve, one.environment)].append(one)
    best: dict[tuple[object, ...], NextRun] = {}
    reasons: dict[str, None] = {}
    for calls in groups.values():
        try:
            runs = list(_of_curve(calls, measured.site, calibration))
        except TunerError as error:
            if calibration is not None:
                raise
            reasons[str(error)] = None
            continue
        for run in runs:
            key = (run.collective, run.nodes, run.gpus_per_node, run.combination)
            if key not in best or run.possible_gain > best[key].possible_gain:
                best[key] = run
    runs_found = tuple(sorted(best.values(), key=lambda run: -run.possible_gain))
    return NextRuns(runs_found, tuple(reasons), _first_sizes(measured, calibration))


def _first_sizes(measured: MeasuredArms, calibration: str | None) -> tuple[int, ...]:
    """Sizes to measure first on the largest communicator; none on one node, or without a calibration."""
    call = max((one.call for one in measured.calls), key=lambda each: (each.nodes, each.gpus_per_node))
    if call.nodes == 1:
        return ()
    try:
        selection = measured.site.selection(call.nodes, call.gpus_per_node, {})
        model = predict.of_communicator(selection, measured.site.name, calibration)
        request = Request(Collective.AllReduce, call.dtype, Op.sum)
        sizes = np.array([1 << power for power in range(10, 35)], np.uint64)
        calls = features.of_picks(selection, request, selection.pick(request, sizes))
    except TunerError:
        return ()
    telling = model.calibration.process.telling(calls, dict(model.calibration.parameters), FIRST_SIZES)
    return tuple(int(sizes[at]) for at in telling)


def _of_curve(calls: Sequence[MeasuredCall], site: Site, calibration: str | None) -> Iterator[NextRun]:
    call = calls[0].call
    known = set(release.load(site.nccl).environment.known) - site.environment.keys() - {"NCCL_COLLNET_ENABLE"}
    read = {name: value for name, value in calls[0].environment if name in known}
    selection = site.selection(call.nodes, call.gpus_per_node, read)
    model = predict.of_communicator(selection, site.name, calibration)
    request = Request(call.collective, call.dtype, Op.sum)
    sizes = [one.call.bytes for one in calls]
    for algo_proto, times in model.of_candidates(request, sizes).items():
        open_at = [
            (index, pick_us)
            for index, one in enumerate(calls)
            if (pick_us := _pick_us(one)) is not None
            and not _is_measured(one, algo_proto)
            and times.low_us[index] < pick_us
        ]
        if not open_at:
            continue
        best, pick_us = max(open_at, key=lambda each: each[1] / times.low_us[each[0]])
        yield NextRun(
            collective=call.collective,
            dtype=call.dtype,
            nodes=call.nodes,
            gpus_per_node=call.gpus_per_node,
            combination=Combination(*algo_proto),
            low_bytes=sizes[open_at[0][0]],
            high_bytes=sizes[open_at[-1][0]],
            sizes=len(open_at),
            bytes=sizes[best],
            pick=calls[best].pick.plain,
            pick_us=pick_us,
            time_us=float(times.time_us[best]),
            low_us=float(times.low_us[best]),
            high_us=float(times.high_us[best]),
            possible_gain=float(pick_us / times.low_us[best] - 1),
            measured=bool(np.all(times.measured)),
            calibration=model.reason,
        )


def _pick_us(one: MeasuredCall) -> float | None:
    if one.default is not None:
        return one.default.time_us
    same = [arm.time_us for arm in one.forced if is_same(arm.combination, one.pick)]
    return same[0] if same else None


def _is_measured(one: MeasuredCall, algo_proto: AlgoProto) -> bool:
    forced = [arm for arm in one.arms if arm.combination.algo_proto == algo_proto]
    return bool(forced) or one.pick.algo_proto == algo_proto
