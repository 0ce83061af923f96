"""Measurements summed up: a result for everything that was requested at each point."""

from collections.abc import Iterable
from dataclasses import dataclass

from tuner.measure.plan import Task
from tuner.measure.records.samples import Combination, Point, SampleBlock
from tuner.measure.statistics import Estimate, estimate


@dataclass(frozen=True, slots=True)
class Result:
    """``executed`` is that of the last block; no ``estimate`` where no time counts. ``wrong`` counts results."""

    point: Point
    requested: Combination | None
    executed: Combination | None
    estimate: Estimate | None
    blocks: int
    replaced: int
    wrong: int


def results(blocks: Iterable[SampleBlock]) -> list[Result]:
    """By point, NCCL's own choice first and then from the fastest on, what has no time last."""
    by_task: dict[Task, list[SampleBlock]] = {}
    for block in blocks:
        if block.table is None:
            by_task.setdefault(Task(block.point, block.requested), []).append(block)
    return sorted((_result(task, found) for task, found in by_task.items()), key=_place)


def _result(task: Task, blocks: list[SampleBlock]) -> Result:
    times_us = [time_us for block in blocks if block.counts for time_us in block.times_us]
    return Result(
        task.point,
        task.requested,
        blocks[-1].executed,
        estimate(times_us) if times_us else None,
        len(blocks),
        sum(block.replaced for block in blocks),
        sum(block.wrong for block in blocks),
    )


def _place(result: Result) -> tuple[Point, bool, float]:
    return result.point, result.requested is not None, result.estimate.median_us if result.estimate else float("inf")
