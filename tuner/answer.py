"""An answer in the form other tools rely on; :mod:`tuner.libraryanswer` has the real library's."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tuner.case import Case
from tuner.cfloat import FloatArray, shortest
from tuner.departure import Departure
from tuner.names import Algorithm, Protocol
from tuner.rules.request import Request
from tuner.selection import ALL_CELLS, Picks, Selection


def from_emulator(case: Case, request: Request, sizes: Sequence[int]) -> list[dict[str, Any]]:
    """A dictionary a size: the cells NCCL does not ignore and the pick, from the model.

    A call that leaves the classic path has no cells, and a pick of its own form. ``disagreeing`` is there only where
    ranks on other nodes pick differently; NCCL needs them to pick the same.
    """
    selection, *others = map(Selection, case.views())
    departures = selection.departures(request, sizes)
    staying = [size for size, departure in zip(sizes, departures, strict=True) if departure is None]
    answers = iter(_classic(case, selection, others, request, staying) if staying else [])
    return [
        next(answers) if departure is None else departed(case, request, size, departure)
        for size, departure in zip(sizes, departures, strict=True)
    ]


def _classic(
    case: Case, selection: Selection, others: Sequence[Selection], request: Request, sizes: Sequence[int]
) -> list[dict[str, Any]]:
    picks = selection.pick(request, sizes)
    table = selection.cost_table(request, sizes)
    answers = [
        record(case, request, size, table[row], *_pick(picks, row), picks.time_us[row])
        for row, size in enumerate(sizes)
    ]
    for kind, other in zip(case.others, others, strict=True):
        _disagree(answers, picks, other.pick(request, sizes), kind.name)
    return answers


def _pick(picks: Picks, row: int) -> tuple[Algorithm, Protocol, int, int]:
    algorithm, protocol = Algorithm(picks.algorithm[row]), Protocol(picks.protocol[row])
    return algorithm, protocol, int(picks.channels[row]), int(picks.threads[row])


def _disagree(answers: list[dict[str, Any]], picks: Picks, others: Picks, nodes: str) -> None:
    """Adds what the ranks on other nodes pick where that is not what rank 0 picks."""
    for row, answer in enumerate(answers):
        theirs = _pick(others, row)
        if theirs != _pick(picks, row):
            answer.setdefault("disagreeing", []).append({"nodes": nodes, **_pick_record(*theirs, others.time_us[row])})


def runner_up(answer: dict[str, Any]) -> tuple[str, float] | None:
    """The fastest cell besides the pick and by how many percent it is slower; None where there is no other."""
    pick = f"{answer['pick']['algorithm']}/{answer['pick']['protocol']}"
    others = {name: time_us for name, time_us in answer["cost_us"].items() if name != pick}
    if not others:
        return None
    name = min(others, key=others.__getitem__)
    return name, 100 * (others[name] / answer["pick"]["time_us"] - 1)


def departed(case: Case, request: Request, size: int, departure: Departure) -> dict[str, Any]:
    """Of a call that leaves the classic path."""
    return {
        "collective": request.collective.name,
        "bytes": int(size),
        **case.constants,
        "cost_us": {},
        "pick": {"leaves_for": departure.name, "channels": departure.blocks, "threads": departure.threads},
    }


def record(
    case: Case, request: Request, size: int, table_us: FloatArray, algorithm: Algorithm, protocol: Protocol,
    channels: int, threads: int, time_us: np.float32,
) -> dict[str, Any]:
    """Of a call with the cost table ``table_us`` [A, 3] and its pick."""
    cells = {f"{a.name}/{p.name}": table_us[a, p] for a, p in ALL_CELLS if table_us[a, p] >= 0}
    return {
        "collective": request.collective.name,
        "bytes": int(size),
        **case.constants,
        "cost_us": {name: shortest(value) for name, value in cells.items()},
        "pick": _pick_record(algorithm, protocol, channels, threads, time_us),
    }


def _pick_record(
    algorithm: Algorithm, protocol: Protocol, channels: int, threads: int, time_us: np.float32
) -> dict[str, Any]:
    return {
        "algorithm": algorithm.name, "protocol": protocol.name, "channels": channels, "threads": threads,
        "time_us": shortest(time_us),
    }
