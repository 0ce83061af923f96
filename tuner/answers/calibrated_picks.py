"""Picks with calibrated times beside NCCL's."""

from collections.abc import Sequence
from dataclasses import replace

from tuner.answers import calibrated
from tuner.answers.calibrated import NoCalibration, TimesWanted
from tuner.answers.picks import PickAnswer
from tuner.emulator.pick import Pick
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.scenario import Scenario


def with_times(
    answers: Sequence[PickAnswer], scenario: Scenario, request: Request, wanted: TimesWanted
) -> list[PickAnswer]:
    """The answers with the times of a calibration, or with the reason why there are none.

    Errors: those of :func:`tuner.answers.calibrated.answering`.
    """
    selection = Selection(scenario.communicator())
    model = calibrated.answering(wanted, scenario, selection, request.buffers)
    if isinstance(model, NoCalibration):
        return [replace(answer, calibration=calibrated.used(model)) for answer in answers]
    sizes, names = [answer.bytes for answer in answers], dict.fromkeys(name for one in answers for name in _names(one))
    estimates = calibrated.of_combinations(model, request, sizes, names)
    several = []
    for at, answer in enumerate(answers):
        own = {name: estimates[name][at] for name in _names(answer)}
        times = {name: each.time for name, each in own.items()}
        several.append(replace(answer, calibrated=times, calibration=calibrated.used(model, own.items())))
    return several


def _names(answer: PickAnswer) -> list[str]:
    """The combinations that NCCL does not ignore, and the pick, which may be none of them."""
    pick = [answer.pick.name] if isinstance(answer.pick, Pick) else []
    return list(dict.fromkeys([*answer.cost_us, *pick]))
