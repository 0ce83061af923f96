"""Why NCCL picks what it picks for a size: the pick's numbers step by step, what the others lack, how far it holds."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import numpy as np

from tuner.case import Case
from tuner.cfloat import shortest
from tuner.errors import BadInput
from tuner.names import Algorithm, Buffers, Protocol
from tuner.ranges import FOLLOWED_BYTES, combinations
from tuner.rules.request import Request
from tuner.selection import Cell, Selection
from tuner.watch import Step


def explain(case: Case, request: Request, size: int) -> dict[str, Any]:
    """The pick of ``size`` bytes as rank 0 sees it, in the form of ``nccl-tuner explain --json``.

    Errors: those of :meth:`Selection.pick`; BadInput for windows, and where NCCL_CTA_POLICY moved the pick.
    """
    if request.buffers is Buffers.window:
        raise BadInput("explain: buffers window may leave the classic path at any size; valid: plain, registered")
    selection = Selection(case.communicator())
    picks = selection.pick(request, size)
    pick = Algorithm(picks.algorithm[0]), Protocol(picks.protocol[0])
    time_us = shortest(picks.time_us[0])
    steps = {cell: selection.steps(request, size, cell) for cell in selection.candidates(request)}
    if pick not in steps or last(steps[pick], "time") != time_us:
        raise BadInput(f"NCCL_CTA_POLICY moves this pick to {pick[0].name}, whatever its time; valid: without it")
    return {
        "collective": request.collective.name,
        "bytes": size,
        **case.constants,
        "pick": {
            **_names(pick), "channels": int(picks.channels[0]), "threads": int(picks.threads[0]), "time_us": time_us,
        },
        "steps": [asdict(step) for step in steps[pick]],
        "others": [*_slower(steps, pick), *_unavailable(selection, request, steps)],
        "holds": _holds(selection, request, size),
    }


def last(steps: list[Step], *quantities: str) -> float:
    """What the last step of any of the quantities left. ValueError where there is none."""
    *_, value = (step.after for step in steps if step.quantity in quantities)
    return value


def _slower(steps: dict[Cell, list[Step]], pick: Cell) -> Iterator[dict[str, Any]]:
    """The other candidates, the fastest first."""
    times_us = {cell: last(seen, "time") for cell, seen in steps.items()}
    for cell in sorted(steps.keys() - {pick}, key=lambda cell: (times_us[cell], cell)):
        seen, slower_us = steps[cell], times_us[cell] - times_us[pick]
        yield {
            **_names(cell),
            "time_us": times_us[cell],
            "latency_us": last(seen, "latency", "latency at this size"),
            "bandwidth_gbs": last(seen, "bandwidth", "bandwidth at this size"),
            "slower_us": slower_us,
            "slower_percent": 100 * slower_us / times_us[pick],
        }


def _unavailable(
    selection: Selection, request: Request, steps: dict[Cell, list[Step]]
) -> Iterator[dict[str, Any]]:
    for cell, reason in selection.excluded(request).items():
        if cell not in steps:  # Ring stands in where nothing is left
            yield {**_names(cell), "reason": reason}


def _holds(selection: Selection, request: Request, size: int) -> dict[str, int]:
    """The sizes around ``size``, 1 byte to 1 TiB or ``size``, that get the same algorithm and protocol."""

    found = combinations(selection, request, 1, max(FOLLOWED_BYTES, size))
    at = int(np.searchsorted(found.from_bytes, np.uint64(size), side="right")) - 1
    return {"from_bytes": int(found.from_bytes[at]), "to_bytes": int(found.to_bytes[at])}


def _names(cell: Cell) -> dict[str, str]:
    return {"algorithm": cell[0].name, "protocol": cell[1].name}
