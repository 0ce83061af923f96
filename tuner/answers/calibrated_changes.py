"""Calibrated times of changes: what the new pick takes beside the old one, by measurements."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tuner.answers import calibrated
from tuner.answers.bypassing import AnyPick
from tuner.answers.calibrated import Answering, CalibratedTime, CalibrationUsed, Estimate, NoCalibration, TimesWanted
from tuner.answers.calibrated_ratio import CalibratedRatio, ratio
from tuner.base.names import Buffers
from tuner.emulator.pick import Pick
from tuner.emulator.request import Request

if TYPE_CHECKING:
    from tuner.answers.diff import Change, Side
    from tuner.answers.whatif import AtSize


@dataclass(frozen=True, slots=True)
class CalibratedChange:
    """Both sides' calibrated times, each of its own pick, and the one after over the one before.

    Without a calibration for a side its time and the ratio are None.
    """

    before: CalibratedTime | None
    after: CalibratedTime | None
    ratio: CalibratedRatio | None
    calibration_before: CalibrationUsed
    calibration_after: CalibrationUsed


class CalibratedSides:
    """What answers for both sides. Errors: those of :func:`tuner.answers.calibrated.answering`."""

    def __init__(self, wanted: TimesWanted, before: "Side", after: "Side", buffers: Buffers = Buffers.plain) -> None:
        self._models = [
            calibrated.answering(wanted, side.scenario, side.selection, buffers) for side in (before, after)
        ]

    def changes(self, request: Request, changes: "Sequence[Change]") -> "list[Change]":
        """The changes with calibrated times at their middle."""
        sizes = [each.at_bytes for each in changes]
        of_both = self._of(request, sizes, [each.before for each in changes], [each.after for each in changes])
        return [replace(each, calibrated=times) for each, times in zip(changes, of_both, strict=True)]

    def sizes(self, request: Request, ones: "Sequence[AtSize]") -> "list[AtSize]":
        """The sizes with calibrated times."""
        sizes = [each.bytes for each in ones]
        of_both = self._of(request, sizes, [each.before for each in ones], [each.after for each in ones])
        return [replace(each, calibrated=times) for each, times in zip(ones, of_both, strict=True)]

    def _of(
        self, request: Request, sizes: Sequence[int], before: Sequence[AnyPick], after: Sequence[AnyPick]
    ) -> list[CalibratedChange]:
        olds, news = (
            _estimates(model, request, sizes, picks) for model, picks in zip(self._models, (before, after), strict=True)
        )
        return [
            CalibratedChange(
                None if old is None else old.time,
                None if new is None else new.time,
                ratio(old, new) if old and new else None,
                *(
                    calibrated.used(model, _named(pick, estimate))
                    for model, pick, estimate in zip(self._models, picks, (old, new), strict=True)
                ),
            )
            for *picks, old, new in zip(before, after, olds, news, strict=True)
        ]


def _estimates(
    model: Answering, request: Request, sizes: Sequence[int], picks: Sequence[AnyPick]
) -> list[Estimate | None]:
    """None of what bypasses the algorithms, and where nothing answers."""
    if isinstance(model, NoCalibration):
        return [None] * len(sizes)
    launched = [(size, pick) for size, pick in zip(sizes, picks, strict=True) if isinstance(pick, Pick)]
    known = iter(calibrated.of_launches(model, request, [at for at, _ in launched], [pick for _, pick in launched]))
    return [next(known) if isinstance(pick, Pick) else None for pick in picks]


def _named(pick: AnyPick, estimate: Estimate | None) -> list[tuple[str, Estimate]]:
    return [(pick.name, estimate)] if estimate else []
