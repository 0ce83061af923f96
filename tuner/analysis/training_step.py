"""A training step's collectives as NCCL predicts them, beside the alpha-beta model."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from tuner.analysis import calibrated
from tuner.analysis.calibrated import CalibratedTime, CalibrationUsed, NoCalibration, TimesWanted
from tuner.base.errors import BadInput
from tuner.base.names import Algorithm, Collective, DataType, Op, Protocol
from tuner.costmodels import step
from tuner.costmodels.step import Cluster, Traffic
from tuner.emulator.request import Request
from tuner.emulator.selection import Picks, Selection
from tuner.scenario import Scenario


@dataclass(frozen=True, slots=True)
class StepRow:
    """``nccl_us`` of a call and ``pick`` are None where NCCL has no model of it: sends, and all-to-all made of them.

    So are the pick's ``channels``, and its calibrated time where none is wanted or none answers: ``calibration`` is the
    one that answered, or the reason why none did.
    """

    traffic: Traffic
    alphabeta_us: float
    nccl_us: float | None = None
    pick: str | None = None
    channels: int | None = None
    calibrated: CalibratedTime | None = None
    calibration: CalibrationUsed | None = None

    @property
    def call_us(self) -> float:
        """NCCL's where there is one."""
        return self.alphabeta_us if self.nccl_us is None else self.nccl_us

    @property
    def step_us(self) -> float:
        """All calls of a step one after the other, us, by NCCL's prediction."""
        return self.call_us * self.traffic.calls

    @property
    def alphabeta_step_us(self) -> float:
        """The same, us, by the alpha-beta model."""
        return self.alphabeta_us * self.traffic.calls

    @property
    def difference(self) -> float | None:
        """The alpha-beta model's time over NCCL's, minus 1."""
        return None if self.nccl_us is None else self.alphabeta_us / self.nccl_us - 1


@dataclass(frozen=True, slots=True)
class Types:
    """What is sent: types of activations and parameters, and of gradients."""

    dtype: DataType
    gradient_dtype: DataType


def rows(
    traffics: Sequence[Traffic],
    cluster: Cluster,
    types: Types,
    scenario: Scenario | None = None,
    times: TimesWanted | None = None,
) -> list[StepRow]:
    """One for each of :func:`tuner.costmodels.step.traffic`, of one size each.

    ``scenario`` describes a node and the release, and its number of nodes does not count. Without one there is only
    alpha-beta. Calibrated ``times`` where wanted. BadInput where the cluster has other nodes than the scenario, and as
    :func:`tuner.analysis.calibrated.answering`.
    """
    if scenario is not None and scenario.gpus() != cluster.gpus_per_node:
        raise BadInput(
            f"gpus_per_node: {cluster.gpus_per_node}, but {scenario.name} has {scenario.gpus()}; valid: the same"
        )

    @cache
    def selection(gpus: int, nodes: int) -> Selection:
        assert scenario is not None
        return Selection(replace(scenario, nodes=nodes, gpus_per_node=gpus).communicator())

    def estimated(row: StepRow, selected: Selection, request: Request, picks: Picks) -> StepRow:
        if times is None or scenario is None or row.pick is None:
            return row
        model = calibrated.answering(times, scenario, selected)
        if isinstance(model, NoCalibration):
            return replace(row, calibration=calibrated.used(model))
        (estimate,) = calibrated.estimates(model, request, picks)
        return replace(row, calibrated=estimate.time, calibration=calibrated.used(model, [(row.pick, estimate)]))

    found = []
    for each in traffics:
        alphabeta_us = float(step.time_us(each, cluster))
        if scenario is None or each.operation.name not in Collective.__members__:
            found.append(StepRow(each, alphabeta_us))
            continue
        request = Request(
            Collective[each.operation.name], types.gradient_dtype if each.gradients else types.dtype, Op.sum
        )
        selected = selection(*each.shape(cluster.gpus_per_node))
        picks = selected.pick(request, max(1, round(float(each.bytes))))
        pick = f"{Algorithm(picks.algorithm[0]).name}/{Protocol(picks.protocol[0]).name}"
        row = StepRow(each, alphabeta_us, float(picks.time_us[0]), pick, int(picks.channels[0]))
        found.append(estimated(row, selected, request, picks))
    return found
