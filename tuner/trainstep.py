"""A training step's collectives as NCCL predicts them, beside the alpha-beta model."""

from dataclasses import dataclass, replace
from functools import cache

from tuner.analytic import step
from tuner.analytic.step import Cluster, Model, Plan, Traffic
from tuner.case import Case
from tuner.errors import BadInput
from tuner.names import Algorithm, Collective, DataType, Op, Protocol
from tuner.rules.request import Request
from tuner.selection import Selection


@dataclass(frozen=True, slots=True)
class Row:
    """``nccl_us`` of a call and ``pick`` are None where NCCL has no model of it: sends, and all-to-all made of them."""

    traffic: Traffic
    alphabeta_us: float
    nccl_us: float | None = None
    pick: str | None = None

    @property
    def call_us(self) -> float:
        """NCCL's where there is one."""
        return self.alphabeta_us if self.nccl_us is None else self.nccl_us

    @property
    def step_us(self) -> float:
        return self.call_us * self.traffic.calls

    @property
    def alphabeta_step_us(self) -> float:
        return self.alphabeta_us * self.traffic.calls

    @property
    def difference(self) -> float | None:
        """The alpha-beta model's time over NCCL's, minus 1."""
        return None if self.nccl_us is None else self.alphabeta_us / self.nccl_us - 1


def rows(
    model: Model, plan: Plan, cluster: Cluster, case: Case | None, dtype: DataType, gradient_dtype: DataType
) -> list[Row]:
    """Of one size each. ``case`` describes a node and the release, and its number of nodes does not count.

    Without one there is only alpha-beta.
    """
    if case is not None and case.gpus() != cluster.gpus_per_node:
        raise BadInput(f"gpus_per_node: {cluster.gpus_per_node}, but {case.name} has {case.gpus()}; valid: the same")

    @cache
    def selection(gpus: int, nodes: int) -> Selection:
        assert case is not None
        return Selection(replace(case, nodes=nodes, gpus_per_node=gpus).communicator())

    found = []
    for each in step.traffic(model, plan):
        alphabeta_us = float(step.time_us(each, cluster))
        if case is None or each.operation.name not in Collective.__members__:
            found.append(Row(each, alphabeta_us))
            continue
        request = Request(Collective[each.operation.name], gradient_dtype if each.gradients else dtype, Op.sum)
        picks = selection(*each.shape(cluster.gpus_per_node)).pick(request, max(1, round(float(each.bytes))))
        pick = f"{Algorithm(picks.algorithm[0]).name}/{Protocol(picks.protocol[0]).name}"
        found.append(Row(each, alphabeta_us, float(picks.time_us[0]), pick))
    return found
