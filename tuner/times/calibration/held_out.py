"""What a fit says of times that it did not see: those of a session, and of a communicator."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tuner.times.calibration import fit as model
from tuner.times.calibration.observations import ObservationGroup, Observations

EVERY = 3  # sessions: one of them is held out


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Mean absolute errors in percent of ``calls`` that were not fitted, by NCCL's constants and by those of a fit to
    all others. ``what`` says which: ``sessions``, or a communicator.
    """

    what: str
    calls: int
    nccl_percent: float
    fitted_percent: float


def held_out(observations: Observations) -> tuple[HeldOut, ...]:
    """Every third session of each communicator, where it has three; and each communicator, where there are several."""
    return tuple(_sessions(observations)) + tuple(_shapes(observations))


def _sessions(observations: Observations) -> Iterable[HeldOut]:
    sessions: dict[int, set[int | None]] = {}
    for group in observations.of_sessions:
        sessions.setdefault(group.shape, set()).add(group.session)
    if all(len(those) < EVERY for those in sessions.values()):
        return
    several = [group for group in observations.of_sessions if len(sessions[group.shape]) >= EVERY]
    whole = [group for group in observations.groups if len(sessions.get(group.shape, ())) < EVERY]
    out = [group for group in several if group.session is not None and group.session % EVERY == EVERY - 1]
    rest = [group for group in several if group not in out]
    yield _error("sessions", observations, [*rest, *whole], out)


def _shapes(observations: Observations) -> Iterable[HeldOut]:
    shapes = list(dict.fromkeys(group.shape for group in observations.groups))
    titles = list(dict.fromkeys(scenario.title for scenario in observations.cases))
    for shape in shapes if len(shapes) > 1 else ():
        out = [group for group in observations.groups if group.shape == shape]
        rest = [group for group in observations.groups if group.shape != shape]
        yield _error(titles[shape], observations, rest, out)


def _error(
    what: str, observations: Observations, fitted: Sequence[ObservationGroup], out: Sequence[ObservationGroup]
) -> HeldOut:
    def marked(groups: Sequence[ObservationGroup], are_out: bool) -> list[ObservationGroup]:
        return [replace(group, held_out=np.full(len(group.median_us), are_out)) for group in groups]

    *_, all_errors = model.fit(replace(observations, groups=(*marked(fitted, False), *marked(out, True)))).errors
    assert all_errors.nccl_held_out_percent is not None
    assert all_errors.fitted_held_out_percent is not None
    return HeldOut(
        what, all_errors.held_out_calls, all_errors.nccl_held_out_percent, all_errors.fitted_held_out_percent
    )
