"""Texts for calibrated times: intervals, and the calibration that they come from."""

from collections.abc import Iterable

from tuner.answers.calibrated import CalibratedRatio, CalibrationUsed, merged
from tuner.base.nouns import TimeInterval
from tuner.cli.output import NotedCell

INTERVAL = "90 % interval"
TELLING = 0.05  # part of a time: bounds on both sides of none that are wider say nothing
ALONE = "predicted times are for calls that run alone, with no computation at the same time"
COST_UNKNOWN = "how much sharing a GPU slows calls and computation is not known"


def interval(time: TimeInterval | None, scale: float = 1, digits: int = 2) -> str | NotedCell:
    """Text of both bounds divided by ``scale``: ``41.20 to 55.10``; with a note on what the time is extrapolated
    over."""
    if time is None:
        return "-"
    bounds = f"{time.low_us / scale:.{digits}f} to {time.high_us / scale:.{digits}f}"
    return NotedCell(bounds, f"extrapolated: {time.extrapolated}") if time.extrapolated else bounds


def central(time: TimeInterval | None, scale: float = 1, digits: int = 2) -> str:
    """Text of the time divided by ``scale``: ``47.65``."""
    return "-" if time is None else f"{time.time_us / scale:.{digits}f}"


def change(times: CalibratedRatio | None) -> str | NotedCell:
    """Text of the bounds of a ratio of times, as a change: ``-9.1 to -2.0 %``; with a note on what is extrapolated."""
    if times is None:
        return "-"
    bounds = change_between(times.low - 1, times.high - 1)
    over = times.extrapolated.replace("both: ", "both sides: ", 1)
    return NotedCell(bounds, f"extrapolated, {over}") if over else bounds


def change_between(low: float, high: float) -> str:
    """Text of a change between bounds that are given as shares; says so if there may be no change, or if the bounds say
    nothing.
    """
    if low < 0 < high and max(-low, high) > TELLING:
        return "cannot be told"
    both = f"{100 * low:+.1f} %" if low == high else f"{100 * low:+.1f} to {100 * high:+.1f} %"
    return f"{both}, maybe none" if low < 0 < high else both


def whose(used: CalibrationUsed) -> str:
    """Sentences on the calibration that the times come from, what was carried over, and which combinations are
    extrapolated."""
    if used.name is None:
        return f"calibrated times: none; {used.reason}"
    parts = [f"calibrated times come from the calibration {used.reason}; its calls were launched by {used.launch}"]
    if used.carried_over:
        parts.append(f"the 90 % intervals allow for carrying measured times over to: {', '.join(used.carried_over)}")
    if used.not_measured:
        parts.append(f"extrapolated, as they were never measured: {', '.join(used.not_measured)}")
    return "\n".join(parts)


def whose_of_all(several: Iterable[CalibrationUsed]) -> str:
    """Sentences on the calibrations of several answers, once for each calibration or reason."""
    by_reason: dict[str, list[CalibrationUsed]] = {}
    for each in several:
        by_reason.setdefault(each.reason, []).append(each)
    return "\n".join(whose(merged(alike)) for alike in by_reason.values())
