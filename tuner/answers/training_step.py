"""A training step's collectives as NCCL predicts them, and by the alpha-beta model."""

from collections.abc import Sequence
from dataclasses import field, replace

from tuner.answers import calibrated
from tuner.answers.calibrated import CalibrationUsed, NoCalibration, TimesWanted, merged, together
from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput
from tuner.base.names import Algorithm, Collective, DataType, Op, Protocol
from tuner.base.nouns import TimeInterval
from tuner.base.records import json_form
from tuner.base.sizes import named_bytes
from tuner.base.view import as_ms, as_percent, column
from tuner.emulator.request import Request
from tuner.emulator.selection import Picks, Selection
from tuner.scenario import Scenario
from tuner.times.costmodels import step
from tuner.times.costmodels.step import Cluster, Parallelism, Traffic


@dataclass(frozen=True, slots=True)
class StepCall:
    """One collective of a step: its shape, its bytes, and the times of a call and of all ``calls``.

    NCCL's pick, its time and its ``channels`` are None if NCCL has no model of the operation: sends, and all-to-all
    made from them. ``step_us`` then comes from the alpha-beta model. ``difference`` is alpha-beta's time over NCCL's,
    minus 1; ``share`` is the part of the step's communication time. ``calibration`` says which calibration answered, or
    why none did.
    """

    parallelism: str = field(metadata=column("for"))
    operation: str = field(metadata=column("collective"))
    ranks: int
    gpus_per_node: int
    nodes: int
    bytes: float = field(metadata=column("size", text=named_bytes))
    calls: int = field(metadata=column("calls", spare=7))
    sent_bytes: float
    alphabeta_call_us: float = field(metadata=column("alpha-beta ms", text=as_ms(".3f"), spare=1))
    nccl_call_us: float | None = field(metadata=column("NCCL ms", text=as_ms(".3f")))
    nccl_pick: str | None = field(metadata=column("NCCL's pick", spare=5))
    step_us: float = field(metadata=column("step ms", text=as_ms(".2f")))
    difference: float | None = field(metadata=column("difference", text=as_percent("+.1f"), spare=2))
    share: float = field(metadata=column("share", text=as_percent(".1f")))
    channels: int | None = field(default=None, metadata=json_form(optional=True))
    calibrated_call: TimeInterval | None = field(default=None, metadata=json_form(optional=True))
    calibration: CalibrationUsed | None = field(default=None, metadata=json_form(omitted=True))


@dataclass(frozen=True, slots=True)
class Types:
    """Data types that are sent: ``dtype`` for activations and parameters, ``gradient_dtype`` for gradients."""

    dtype: DataType
    gradient_dtype: DataType


def rows(
    traffics: Sequence[Traffic],
    cluster: Cluster,
    types: Types,
    scenario: Scenario | None = None,
    times: TimesWanted | None = None,
) -> list[StepCall]:
    """One row for each element of :func:`tuner.times.costmodels.step.traffic`, whose ``share`` of the total
    :func:`report` computes.

    ``scenario`` describes a node and the release; its number of nodes does not matter. Without a scenario, the rows
    have only the times of the alpha-beta model. Calibrated ``times`` are added if wanted. BadInput if the cluster's
    nodes differ from the scenario's, or if no calibration answers. BadCalibration if a calibration is invalid.
    """
    if scenario is None:
        return [_call(each, cluster) for each in traffics]
    scenario.check_gpu_for_each_rank("a training step")
    if scenario.gpus() != cluster.gpus_per_node:
        raise BadInput(
            f"gpus_per_node is {cluster.gpus_per_node}, but {scenario.name} has {scenario.gpus()}: both have to be "
            "equal"
        )
    machine = _Machine(scenario, cluster, types, times)
    return [machine.row(each) for each in traffics]


class _Machine:
    """Predicts by NCCL's model on parts of a cluster; makes the communicator of each part once."""

    def __init__(self, scenario: Scenario, cluster: Cluster, types: Types, times: TimesWanted | None) -> None:
        self._scenario, self._cluster, self._types, self._times = scenario, cluster, types, times
        self._selections: dict[tuple[int, int], Selection] = {}

    def row(self, traffic: Traffic) -> StepCall:
        """The row of a call, with NCCL's pick and its time."""
        if traffic.operation.name not in Collective.__members__:
            return _call(traffic, self._cluster)
        dtype = self._types.gradient_dtype if traffic.gradients else self._types.dtype
        request = Request(Collective[traffic.operation.name], dtype, Op.sum)
        selection = self._selection(*traffic.shape(self._cluster.gpus_per_node))
        picks = selection.pick(request, max(1, round(float(traffic.bytes))))
        pick = f"{Algorithm(picks.algorithm[0]).name}/{Protocol(picks.protocol[0]).name}"
        row = _call(traffic, self._cluster, float(picks.time_us[0]))
        row = replace(row, nccl_pick=pick, channels=int(picks.channels[0]))
        return row if self._times is None else self._calibrated(row, pick, selection, request, picks)

    def _selection(self, gpus: int, nodes: int) -> Selection:
        if (gpus, nodes) not in self._selections:
            part = replace(self._scenario, nodes=nodes).with_gpus(gpus)
            self._selections[gpus, nodes] = Selection(part.communicator())
        return self._selections[gpus, nodes]

    def _calibrated(self, row: StepCall, pick: str, selection: Selection, request: Request, picks: Picks) -> StepCall:
        assert self._times is not None
        model = calibrated.answering(self._times, self._scenario, selection)
        if isinstance(model, NoCalibration):
            return replace(row, calibration=calibrated.used(model))
        (estimate,) = calibrated.estimates(model, request, picks)
        return replace(row, calibrated_call=estimate.time, calibration=calibrated.used(model, [(pick, estimate)]))


@dataclass(frozen=True, slots=True)
class Overlapped:
    """A step with its computation. ``of_compute``: communication time over computation time. ``speedup``: how many
    times faster the step is with the overlap than without.
    """

    compute_us: float
    overlap: float
    of_compute: float
    step_us: float
    speedup: float


@dataclass(frozen=True, slots=True)
class StepReport:
    """A step on ``gpus`` GPUs: time of its collectives made one after the other, in us, and the same by only the
    alpha-beta model.

    ``calibrated`` is the calibrated time of the calls for which NCCL has algorithms, if calibrated times were asked
    for.
    """

    gpus: int
    communication_us: float
    alphabeta_us: float
    rows: tuple[StepCall, ...]
    calibrated: TimeInterval | None = field(default=None, metadata=json_form(optional=True))
    calibration: CalibrationUsed | None = field(default=None, metadata=json_form(optional=True))
    overlapped: Overlapped | None = field(default=None, metadata=json_form(merged=True, optional=True))
    nccl: str | None = field(default=None, metadata=json_form(optional=True))


def report(
    rows: Sequence[StepCall],
    plan: Parallelism,
    nccl: str | None = None,
    compute_us: float | None = None,
    overlap: float = 0.0,
) -> StepReport:
    """Report on the rows of this plan; ``nccl`` is the release whose predictions the rows have.

    ``compute_us`` is the computation time of a step, ``overlap`` the share (0 to 1) of the communication that overlaps
    it.
    """
    total_us = float(sum(row.step_us for row in rows))
    known = [row.calibrated_call.times(row.calls) for row in rows if row.calibrated_call]
    used = [row.calibration for row in rows if row.calibration]
    return StepReport(
        plan.gpus,
        total_us,
        float(sum(row.alphabeta_call_us * row.calls for row in rows)),
        tuple(replace(row, share=row.step_us / total_us) for row in rows),
        together(known) if known else None,
        merged(used) if used else None,
        None if compute_us is None else _overlapped(compute_us, overlap, total_us),
        nccl,
    )


def _overlapped(compute_us: float, share: float, total_us: float) -> Overlapped:
    return Overlapped(
        compute_us,
        share,
        total_us / compute_us,
        float(step.step_us(compute_us, total_us, share)),
        float(step.speedup(compute_us, total_us, share)),
    )


def _call(one: Traffic, cluster: Cluster, nccl_us: float | None = None) -> StepCall:
    alphabeta_us = float(step.time_us(one, cluster))
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
        alphabeta_call_us=alphabeta_us,
        nccl_call_us=nccl_us,
        nccl_pick=None,
        step_us=(alphabeta_us if nccl_us is None else nccl_us) * one.calls,
        difference=None if nccl_us is None else alphabeta_us / nccl_us - 1,
        share=0.0,
    )
