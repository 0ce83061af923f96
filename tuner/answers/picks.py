"""An answer in the form other tools rely on; :mod:`tuner.answers.library` has the real library's."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tuner.base.names import ALGO_PROTOS, Algorithm, Protocol
from tuner.base.numerics import FloatArray, shortest
from tuner.emulator.non_classic import NonClassicPath
from tuner.emulator.request import Request
from tuner.emulator.selection import Picks, Selection
from tuner.scenario import Scenario


def from_emulator(scenario: Scenario, request: Request, sizes: Sequence[int]) -> list[dict[str, Any]]:
    """A dictionary a size: the cells NCCL does not ignore and the pick, from the model.

    A call that leaves the classic path has no cells, and a pick of its own form. ``disagreeing`` is there only where
    ranks on other nodes pick differently; NCCL needs them to pick the same.
    """
    selection, *others = map(Selection, scenario.resolve().views)
    non_classic_paths = selection.non_classic_paths(request, sizes)
    staying = [size for size, non_classic in zip(sizes, non_classic_paths, strict=True) if non_classic is None]
    answers = iter(_classic(scenario, selection, others, request, staying) if staying else [])
    return [
        next(answers) if non_classic is None else of_non_classic_path(scenario, request, size, non_classic)
        for size, non_classic in zip(sizes, non_classic_paths, strict=True)
    ]


def _classic(
    scenario: Scenario, selection: Selection, others: Sequence[Selection], request: Request, sizes: Sequence[int]
) -> list[dict[str, Any]]:
    picks = selection.pick(request, sizes)
    table = selection.cost_table(request, sizes)
    answers = [
        record(scenario, request, size, table[row], *_pick(picks, row), picks.time_us[row])
        for row, size in enumerate(sizes)
    ]
    for kind, other in zip(scenario.others, others, strict=True):
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


def of_non_classic_path(scenario: Scenario, request: Request, size: int, non_classic: NonClassicPath) -> dict[str, Any]:
    """Of a call that leaves the classic path."""
    return {
        "collective": request.collective.name,
        "bytes": int(size),
        **scenario.constants,
        "cost_us": {},
        "pick": {"leaves_for": non_classic.name, "channels": non_classic.blocks, "threads": non_classic.threads},
    }


def record(
    scenario: Scenario,
    request: Request,
    size: int,
    table_us: FloatArray,
    algorithm: Algorithm,
    protocol: Protocol,
    channels: int,
    threads: int,
    time_us: np.float32,
) -> dict[str, Any]:
    """Of a call with the cost table ``table_us`` [algorithm][protocol] and its pick."""
    cells = {f"{a.name}/{p.name}": table_us[a, p] for a, p in ALGO_PROTOS if table_us[a, p] >= 0}
    return {
        "collective": request.collective.name,
        "bytes": int(size),
        **scenario.constants,
        "cost_us": {name: shortest(value) for name, value in cells.items()},
        "pick": _pick_record(algorithm, protocol, channels, threads, time_us),
    }


def _pick_record(
    algorithm: Algorithm, protocol: Protocol, channels: int, threads: int, time_us: np.float32
) -> dict[str, Any]:
    return {
        "algorithm": algorithm.name,
        "protocol": protocol.name,
        "channels": channels,
        "threads": threads,
        "time_us": shortest(time_us),
    }
