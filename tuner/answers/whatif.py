"""A communicator before and after a change, size by size."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from tuner.answers.bypassing import AnyPick, ratio
from tuner.answers.diff import Side
from tuner.base.numerics import is_time
from tuner.base.records import json_form
from tuner.emulator.request import Request
from tuner.times.costmodels.bandwidth import bus_gbs

if TYPE_CHECKING:
    from tuner.answers.diff import CalibratedChange


@dataclass(frozen=True, slots=True)
class AtSize:
    """Both picks at one size; ``ratio`` is the predicted time after over that before, each by its own side.

    It is None where one of both bypasses the algorithms, whose model is another; bandwidths are None where no model
    says a time. ``calibrated`` are calibrated times, where they were asked for.
    """

    collective: str
    bytes: int
    before: AnyPick
    after: AnyPick
    busbw_gbs_before: float | None
    busbw_gbs_after: float | None
    ratio: float | None
    calibrated: "CalibratedChange | None" = field(default=None, metadata=json_form(optional=True))


def at_sizes(before: Side, after: Side, request: Request, sizes: Sequence[int]) -> list[AtSize]:
    """What ``sizes`` (nBytes) get, as rank 0 sees it. Errors: those of :meth:`Selection.pick`, with the side."""
    nbytes = np.array(sizes, np.uint64)
    old, new = (side.picks(request, nbytes) for side in (before, after))
    return [
        AtSize(
            request.collective.name,
            int(size),
            was,
            becomes,
            _busbw_gbs(before, request, size, was),
            _busbw_gbs(after, request, size, becomes),
            ratio((was, was.time_us), (becomes, becomes.time_us)),
        )
        for size, was, becomes in zip(sizes, old, new, strict=True)
    ]


def _busbw_gbs(side: Side, request: Request, size: int, pick: AnyPick) -> float | None:
    if not is_time(pick.time_us):
        return None
    return float(bus_gbs(request.collective, size, pick.time_us, side.selection.communicator.ranks))
