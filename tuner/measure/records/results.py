"""Measurements summed up: a result for everything that was asked for at each point."""

from collections.abc import Iterable
from dataclasses import dataclass

from tuner.measure.records.plan import Task
from tuner.measure.records.samples import Combination, Point, Visit
from tuner.measure.statistics import Estimate, estimate


@dataclass(frozen=True, slots=True)
class Result:
    """``ran`` is what the last visit executed; no ``estimate`` where no time counts. ``wrong`` counts results."""

    point: Point
    asked: Combination | None
    ran: Combination | None
    estimate: Estimate | None
    visits: int
    replaced: int
    wrong: int


def results(visits: Iterable[Visit]) -> list[Result]:
    """By point, NCCL's own choice first and then from the fastest on, what has no time last."""
    by_task: dict[Task, list[Visit]] = {}
    for visit in visits:
        if visit.table is None:
            by_task.setdefault(Task(visit.point, visit.asked), []).append(visit)
    return sorted((_result(task, found) for task, found in by_task.items()), key=_place)


def _result(task: Task, visits: list[Visit]) -> Result:
    times_us = [time_us for visit in visits if visit.counts for time_us in visit.times_us]
    return Result(
        task.point,
        task.asked,
        visits[-1].ran,
        estimate(times_us) if times_us else None,
        len(visits),
        sum(visit.replaced for visit in visits),
        sum(visit.wrong for visit in visits),
    )


def _place(result: Result) -> tuple[Point, bool, float]:
    return result.point, result.asked is not None, result.estimate.median_us if result.estimate else float("inf")
