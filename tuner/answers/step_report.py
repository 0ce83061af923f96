"""A training step in all: its calls, their sum, and what the computation beside them makes of it."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from tuner.answers.calibrated import CalibratedTime, CalibrationUsed, merged, together
from tuner.answers.training_step import StepRow
from tuner.base.records import json_form
from tuner.times.costmodels import overlap, step
from tuner.times.costmodels.step import Cluster, Plan


@dataclass(frozen=True, slots=True)
class StepCall:
    """One collective of a step: its shape, its bytes, and the times of a call and of all ``calls``.

    What NCCL picks and takes is None where it has no model of the operation; ``channels`` and ``calibrated_call`` as in
    :class:`tuner.answers.training_step.StepRow`. ``difference`` is alpha-beta's time over NCCL's, minus 1; ``share``
    is of the step's communication.
    """

    parallelism: str
    operation: str
    ranks: int
    gpus_per_node: int
    nodes: int
    bytes: float
    calls: int
    sent_bytes: float
    alphabeta_call_us: float
    nccl_call_us: float | None
    nccl_pick: str | None
    step_us: float
    difference: float | None
    share: float
    channels: int | None = field(default=None, metadata=json_form(optional=True))
    calibrated_call: CalibratedTime | None = field(default=None, metadata=json_form(optional=True))


@dataclass(frozen=True, slots=True)
class Computation:
    """The computation of a step, in us, and the share of the communication that runs beside it: 0 to 1."""

    compute_us: float
    overlap: float


@dataclass(frozen=True, slots=True)
class Overlapped:
    """A step with its computation; ``of_compute`` is the communication over it, ``speedup`` that of the overlap."""

    compute_us: float
    overlap: float
    of_compute: float
    step_us: float
    speedup: float


@dataclass(frozen=True, slots=True)
class StepReport:
    """A step on ``gpus``: the time of its collectives one after the other, in us, and by the alpha-beta model alone.

    ``calibrated`` is that of the calls that NCCL has algorithms for, where a calibration was wanted: ``calibration``.
    """

    gpus: int
    communication_us: float
    alphabeta_us: float
    rows: tuple[StepCall, ...]
    calibrated: CalibratedTime | None = field(default=None, metadata=json_form(optional=True))
    calibration: CalibrationUsed | None = field(default=None, metadata=json_form(optional=True))
    overlapped: Overlapped | None = field(default=None, metadata=json_form(merged=True, optional=True))
    nccl: str | None = field(default=None, metadata=json_form(optional=True))


def report(
    rows: Sequence[StepRow],
    plan: Plan,
    cluster: Cluster,
    computation: Computation | None = None,
    nccl: str | None = None,
) -> StepReport:
    """Of :func:`tuner.answers.training_step.rows` of this plan; ``nccl`` is the release whose times they are."""
    total_us = float(sum(row.step_us for row in rows))
    known = [row.calibrated.times(row.traffic.calls) for row in rows if row.calibrated]
    used = [row.calibration for row in rows if row.calibration]
    return StepReport(
        plan.gpus,
        total_us,
        float(sum(row.alphabeta_step_us for row in rows)),
        tuple(_call(row, cluster, total_us) for row in rows),
        together(known) if known else None,
        merged(used) if used else None,
        None if computation is None else _overlapped(computation, total_us),
        nccl,
    )


def _overlapped(computation: Computation, total_us: float) -> Overlapped:
    compute_us, share = computation.compute_us, computation.overlap
    return Overlapped(
        compute_us,
        share,
        total_us / compute_us,
        float(overlap.step_us(compute_us, total_us, share)),
        float(overlap.speedup(compute_us, total_us, share)),
    )


def _call(row: StepRow, cluster: Cluster, total_us: float) -> StepCall:
    one = row.traffic
    gpus, nodes = one.shape(cluster.gpus_per_node)
    return StepCall(
        parallelism=one.parallelism,
        operation=one.operation.name,
        ranks=one.ranks,
        gpus_per_node=gpus,
        nodes=nodes,
        bytes=float(one.bytes),
        calls=one.calls,
        sent_bytes=float(step.per_gpu_bytes(one)),
        alphabeta_call_us=row.alphabeta_us,
        nccl_call_us=row.nccl_us,
        nccl_pick=row.pick,
        step_us=row.step_us,
        difference=row.difference,
        share=row.step_us / total_us,
        channels=row.channels,
        calibrated_call=row.calibrated,
    )
