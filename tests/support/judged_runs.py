"""Public runs that ship, each judged by the runs of all other tables."""

from dataclasses import replace
from functools import cache

import numpy as np

from tuner.base.names import Collective, DataType, Op
from tuner.emulator.request import Request
from tuner.times.acceptance import judge, public_runs
from tuner.times.acceptance.curves import Curve, CurveKind, Exchange
from tuner.times.acceptance.expected import Expected, by_public_runs
from tuner.times.acceptance.judge import JudgedCurve
from tuner.times.acceptance.public_runs import ComparedCurve, PublicCurve
from tuner.times.costmodels.operations import CostOperation
from tuner.times.placement import ConfiguredShape

RUNS = tuple(each for each in public_runs.shipped() if each.machine.network is not public_runs.Network.sockets)


@cache
def others(table: str) -> tuple[PublicCurve, ...]:
    return tuple(each for each in public_runs.shipped() if each.table != table)


@cache
def expectation(curve: PublicCurve) -> Expected | None:
    compared = ComparedCurve(
        curve.machine,
        curve.nodes,
        curve.gpus_per_node,
        curve.collective,
        curve.forced,
        np.array(curve.bytes, np.uint64),
        np.array(curve.model_us),
    )
    return by_public_runs(compared, others(curve.table))


def judged(curve: PublicCurve) -> JudgedCurve | None:
    sizes = np.array(curve.bytes, np.uint64)
    expected = expectation(replace(curve, time_us=()))  # no time of its own changes it
    if expected is None:
        return None
    request: Request | Exchange = Exchange(DataType.float32, CostOperation[curve.collective])
    if curve.collective in Collective.__members__:
        request = Request(Collective[curve.collective], DataType.float32, Op.sum)
    kind = CurveKind(ConfiguredShape(curve.nodes, curve.gpus_per_node), request, curve.in_place)
    lines = tuple((at,) for at in range(len(sizes)))
    return judge.judge(Curve(curve.table, kind, sizes, np.array(curve.time_us), lines), expected, np.zeros(len(sizes)))
