"""A communicator before and after a change, size by size."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from tuner.analysis.diff import Side
from tuner.base.numerics import shortest
from tuner.base.records import json_form
from tuner.costmodels.bandwidth import bus_gbs
from tuner.emulator.pick import Pick, of_picks
from tuner.emulator.request import Request

if TYPE_CHECKING:
    from tuner.analysis.calibrated_changes import CalibratedChange


@dataclass(frozen=True, slots=True)
class AtSize:
    """Both picks at one size; ``ratio`` is the predicted time after over that before, each by its own side.

    ``calibrated`` are calibrated times, where they were asked for.
    """

    collective: str
    bytes: int
    before: Pick
    after: Pick
    busbw_gbs_before: float
    busbw_gbs_after: float
    ratio: float
    calibrated: "CalibratedChange | None" = field(default=None, metadata=json_form(optional=True))


def at_sizes(before: Side, after: Side, request: Request, sizes: Sequence[int]) -> list[AtSize]:
    """What ``sizes`` (nBytes) get, as rank 0 sees it. Errors: those of :meth:`Selection.pick`, with the side."""
    nbytes = np.array(sizes, np.uint64)
    old, new = (side.pick(request, nbytes) for side in (before, after))
    ratios = new.time_us / old.time_us
    return [
        AtSize(
            request.collective.name,
            int(size),
            was,
            becomes,
            _busbw_gbs(before, request, size, was),
            _busbw_gbs(after, request, size, becomes),
            shortest(ratio),
        )
        for size, was, becomes, ratio in zip(sizes, of_picks(old), of_picks(new), ratios, strict=True)
    ]


def _busbw_gbs(side: Side, request: Request, size: int, pick: Pick) -> float:
    return float(bus_gbs(request.collective, size, pick.time_us, side.selection.communicator.ranks))
