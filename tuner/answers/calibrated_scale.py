"""Calibrated times at the ends of ranges of node counts."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from tuner.answers import calibrated
from tuner.answers.calibrated import CalibratedTime, CalibrationUsed, NoCalibration, TimesWanted
from tuner.answers.scale import Range, Scale
from tuner.emulator.pick import Pick
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.scenario import Scenario


def with_times(
    emulated: Scale, scenario: Scenario, requests: Sequence[Request], wanted: TimesWanted, *, per_rank: bool = False
) -> Scale:
    """The ranges with calibrated times at both ends; ``per_rank`` as it was where they were found.

    Errors: those of :func:`tuner.answers.calibrated.answering`.
    """
    by_end: dict[tuple[int, str], list[int]] = defaultdict(list)  # places of ranges by nodes and collective
    for at, each in enumerate(emulated.ranges):
        if each.algorithm is not None:
            for nodes in {each.from_nodes, each.to_nodes}:
                by_end[nodes, each.collective].append(at)
    times: dict[tuple[int, int], CalibratedTime] = {}  # by place and nodes
    used: dict[str, list[CalibrationUsed]] = defaultdict(list)
    for nodes in sorted({nodes for nodes, _ in by_end}):
        selection = Selection(scenario.with_nodes(nodes).communicator())
        model = calibrated.answering(wanted, scenario, selection, requests[0].buffers)
        if isinstance(model, NoCalibration):
            used[model.reason].append(calibrated.used(model))
            continue
        for request in requests:
            places = by_end.get((nodes, request.collective.name), [])
            parts = request.parts(selection.communicator.ranks) if per_rank else 1
            picks = [_pick(emulated.ranges[at]) for at in places]
            estimates = calibrated.of_launches(
                model, request, [emulated.ranges[at].bytes * parts for at in places], picks
            )
            times |= {(at, nodes): each.time for at, each in zip(places, estimates, strict=True)}
            named = zip((pick.name for pick in picks), estimates, strict=True)
            used[model.reason].append(calibrated.used(model, named))
    ranges = (
        replace(
            each,
            calibrated_from=times.get((at, each.from_nodes)),
            calibrated_to=times.get((at, each.to_nodes)),
        )
        for at, each in enumerate(emulated.ranges)
    )
    return replace(
        emulated, ranges=tuple(ranges), calibrations=tuple(calibrated.merged(several) for several in used.values())
    )


def _pick(each: Range) -> Pick:
    assert each.algorithm is not None
    assert each.protocol is not None
    return Pick(each.algorithm, each.protocol, each.channels, each.threads, each.time_us_from or 0.0)
