"""A training step's collectives as NCCL predicts them, beside the alpha-beta model."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tuner.answers import calibrated
from tuner.answers.calibrated import CalibratedTime, CalibrationUsed, NoCalibration, TimesWanted
from tuner.base.errors import BadInput
from tuner.base.names import Algorithm, Collective, DataType, Op, Protocol
from tuner.emulator.request import Request
from tuner.emulator.selection import Picks, Selection
from tuner.scenario import Scenario
from tuner.times.costmodels import step
from tuner.times.costmodels.step import Cluster, Traffic


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
    """One for each of :func:`tuner.times.costmodels.step.traffic`, of one size each.

    ``scenario`` describes a node and the release, and its number of nodes does not count. Without one there is only
    alpha-beta. Calibrated ``times`` where wanted. BadInput where the cluster has other nodes than the scenario, and as
    :func:`tuner.answers.calibrated.answering`.
    """
    if scenario is None:
        return [StepRow(each, float(step.time_us(each, cluster))) for each in traffics]
    scenario.check_gpu_for_each_rank("a training step")
    if scenario.gpus() != cluster.gpus_per_node:
        raise BadInput(
            f"gpus_per_node: {cluster.gpus_per_node}, but {scenario.name} has {scenario.gpus()}; valid: the same"
        )
    machine = _Machine(scenario, cluster, types, times)
    return [machine.row(each) for each in traffics]


class _Machine:
    """NCCL's predictions on parts of a cluster, each part's communicator made once."""

    def __init__(self, scenario: Scenario, cluster: Cluster, types: Types, times: TimesWanted | None) -> None:
        self._scenario, self._cluster, self._types, self._times = scenario, cluster, types, times
        self._selections: dict[tuple[int, int], Selection] = {}

    def row(self, traffic: Traffic) -> StepRow:
        """What NCCL picks for the call, and takes."""
        plain = StepRow(traffic, float(step.time_us(traffic, self._cluster)))
        if traffic.operation.name not in Collective.__members__:
            return plain
        dtype = self._types.gradient_dtype if traffic.gradients else self._types.dtype
        request = Request(Collective[traffic.operation.name], dtype, Op.sum)
        selection = self._selection(*traffic.shape(self._cluster.gpus_per_node))
        picks = selection.pick(request, max(1, round(float(traffic.bytes))))
        pick = f"{Algorithm(picks.algorithm[0]).name}/{Protocol(picks.protocol[0]).name}"
        row = replace(plain, nccl_us=float(picks.time_us[0]), pick=pick, channels=int(picks.channels[0]))
        return row if self._times is None else self._calibrated(row, pick, selection, request, picks)

    def _selection(self, gpus: int, nodes: int) -> Selection:
        if (gpus, nodes) not in self._selections:
            part = replace(self._scenario, nodes=nodes).with_gpus(gpus)
            self._selections[gpus, nodes] = Selection(part.communicator())
        return self._selections[gpus, nodes]

    def _calibrated(self, row: StepRow, pick: str, selection: Selection, request: Request, picks: Picks) -> StepRow:
        assert self._times is not None
        model = calibrated.answering(self._times, self._scenario, selection)
        if isinstance(model, NoCalibration):
            return replace(row, calibration=calibrated.used(model))
        (estimate,) = calibrated.estimates(model, request, picks)
        return replace(row, calibrated=estimate.time, calibration=calibrated.used(model, [(pick, estimate)]))
