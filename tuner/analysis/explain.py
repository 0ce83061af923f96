"""Why NCCL picks what it picks for a size: the pick's numbers step by step, what the others lack, how far it holds."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import numpy as np

from tuner.base.errors import BadInput
from tuner.base.names import AlgoProto, Algorithm, Buffers, Protocol
from tuner.base.numerics import shortest
from tuner.base.trace import Step
from tuner.emulator.ranges import FOLLOWED_BYTES, combinations
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.scenario import Scenario


def explain(scenario: Scenario, request: Request, size: int) -> dict[str, Any]:
    """The pick of ``size`` bytes as rank 0 sees it, in the form of ``nccl-tuner explain --json``.

    Errors: those of :meth:`Selection.pick`; BadInput for windows, and where NCCL_CTA_POLICY moved the pick.
    """
    if request.buffers is Buffers.window:
        raise BadInput("explain: buffers window may leave the classic path at any size; valid: plain, registered")
    selection = Selection(scenario.communicator())
    picks = selection.pick(request, size)
    pick = Algorithm(picks.algorithm[0]), Protocol(picks.protocol[0])
    time_us = shortest(picks.time_us[0])
    steps = {algo_proto: selection.steps(request, size, algo_proto) for algo_proto in selection.candidates(request)}
    if pick not in steps or last(steps[pick], "time") != time_us:
        raise BadInput(f"NCCL_CTA_POLICY moves this pick to {pick[0].name}, whatever its time; valid: without it")
    return {
        "collective": request.collective.name,
        "bytes": size,
        **scenario.constants,
        "pick": {
            **_names(pick),
            "channels": int(picks.channels[0]),
            "threads": int(picks.threads[0]),
            "time_us": time_us,
        },
        "steps": [asdict(step) for step in steps[pick]],
        "others": [*_slower(steps, pick), *_unavailable(selection, request, steps)],
        "holds": _holds(selection, request, size),
    }


def last(steps: list[Step], *quantities: str) -> float:
    """What the last step of any of the quantities left. ValueError where there is none."""
    *_, value = (step.after for step in steps if step.quantity in quantities)
    return value


def _slower(steps: dict[AlgoProto, list[Step]], pick: AlgoProto) -> Iterator[dict[str, Any]]:
    """The other candidates, the fastest first."""
    times_us = {algo_proto: last(seen, "time") for algo_proto, seen in steps.items()}
    for algo_proto in sorted(steps.keys() - {pick}, key=lambda algo_proto: (times_us[algo_proto], algo_proto)):
        seen, slower_us = steps[algo_proto], times_us[algo_proto] - times_us[pick]
        yield {
            **_names(algo_proto),
            "time_us": times_us[algo_proto],
            "latency_us": last(seen, "latency", "latency at this size"),
            "bandwidth_gbs": last(seen, "bandwidth", "bandwidth at this size"),
            "slower_us": slower_us,
            "slower_percent": 100 * slower_us / times_us[pick],
        }


def _unavailable(
    selection: Selection, request: Request, steps: dict[AlgoProto, list[Step]]
) -> Iterator[dict[str, Any]]:
    for algo_proto, reason in selection.excluded(request).items():
        if algo_proto not in steps:  # Ring stands in where nothing is left
            yield {**_names(algo_proto), "reason": reason}


def _holds(selection: Selection, request: Request, size: int) -> dict[str, int]:
    """The sizes around ``size``, 1 byte to 1 TiB or ``size``, that get the same algorithm and protocol."""

    found = combinations(selection, request, 1, max(FOLLOWED_BYTES, size))
    at = int(np.searchsorted(found.from_bytes, np.uint64(size), side="right")) - 1
    return {"from_bytes": int(found.from_bytes[at]), "to_bytes": int(found.to_bytes[at])}


def _names(algo_proto: AlgoProto) -> dict[str, str]:
    return {"algorithm": algo_proto[0].name, "protocol": algo_proto[1].name}
