"""Causes of a loss that no single modelled fault explains. They are distinguished by the shape of the loss and by the
other runs.

Each cause predicts a shape over sizes, a remaining share of the bandwidth, and which other runs in the same files it
slows down. A cause is excluded if one of its predictions is wrong; all remaining causes are named, each with the
command that would show it.
"""

from collections.abc import Iterator, Sequence
from enum import StrEnum

from tuner.base.dataclass import dataclass
from tuner.times.acceptance.evidence import LogFacts
from tuner.times.acceptance.judge import JudgedCurve
from tuner.times.acceptance.public_runs import Network
from tuner.times.acceptance.shapes import CurveLoss, LossShape


class FabricCause(StrEnum):
    """Possible causes of a loss. The code of a cause's finding is ``accept.may_be_`` followed by its name."""

    rail = "rail"
    port = "port"
    oversubscription = "oversubscription"
    node = "node"
    gpudirect = "gpudirect"
    nvls = "nvls"
    mtu = "mtu"
    algorithm = "algorithm"
    cap = "cap"
    pauses = "pauses"
    loss = "loss"
    load = "load"
    latency = "latency"


_SHAPES = {
    LossShape.plateau: (
        FabricCause.rail,
        FabricCause.port,
        FabricCause.oversubscription,
        FabricCause.node,
        FabricCause.gpudirect,
        FabricCause.nvls,
        FabricCause.mtu,
        FabricCause.algorithm,
        FabricCause.cap,
    ),
    LossShape.everywhere: (FabricCause.gpudirect, FabricCause.algorithm, FabricCause.load, FabricCause.cap),
    LossShape.falling: (FabricCause.pauses, FabricCause.loss, FabricCause.cap),
    LossShape.scattered: (FabricCause.loss, FabricCause.load),
    LossShape.alone: (FabricCause.loss, FabricCause.load),
    LossShape.middle: (FabricCause.algorithm,),
    LossShape.latency: (FabricCause.latency, FabricCause.cap),
}
_SHAPES[LossShape.single] = _SHAPES[LossShape.plateau]
_IN_A_NODE = frozenset({FabricCause.nvls, FabricCause.algorithm, FabricCause.cap, FabricCause.load})
# The part of the bandwidth that is left, at least and at most. An MTU of 1,500 or 1,024 bytes costs headers and
# messages; a clock at its lowest leaves a third of a copy's rate; data that go through the host's memory cross PCIe
# twice.
_LEFT = {
    FabricCause.mtu: (0.6, 1.0),
    FabricCause.cap: (0.3, 1.0),
    FabricCause.gpudirect: (0.0, 0.8),
    FabricCause.nvls: (0.3, 0.8),
    FabricCause.oversubscription: (0.05, 0.85),
    FabricCause.port: (0.02, 0.85),
}
_AS_MUCH = 0.1  # parts of the bandwidth that differ by less than this count as equal
_ODD_PARTS = (1 / 2, 1 / 3, 1 / 4)  # parts of the bandwidth for which uplinks are usually built


@dataclass(frozen=True, slots=True)
class FabricFacts:
    """Facts that can exclude causes. ``adapters``: the number of adapters of a node, 0 if not known. ``reduces``:
    whether the NVSwitches of a node can reduce. ``as_picked``: whether the log shows NCCL's own choice at every slow
    size.
    """

    network: Network
    adapters: int
    reduces: bool
    as_picked: bool
    log: LogFacts


def causes(
    judged: JudgedCurve, loss: CurveLoss, every: Sequence[JudgedCurve], facts: FabricFacts
) -> tuple[FabricCause, ...]:
    """The causes of a curve's loss that nothing in the same files excludes, the likeliest first.

    ``every``: all curves of the files. Returns an empty tuple if the curve passes.
    """
    if judged.passes:
        return ()
    beside = _Beside(judged, loss, every)
    found = [each for each in _SHAPES[loss.shape] if not _excluded(each, judged, loss, beside, facts)]
    return tuple(sorted(found, key=lambda each: not _typical(each, loss, beside, facts)))


class _Beside:
    """Whether other curves of the same files are slow as well."""

    def __init__(self, judged: JudgedCurve, loss: CurveLoss, every: Sequence[JudgedCurve]) -> None:
        own = judged.curve.kind
        nodes = own.shape.nodes
        large = [each for each in every if each.judged and 2 * each.curve.bytes[-1] >= loss.sizes[0]]
        self.node_passes = nodes > 1 and _all_pass(each for each in large if each.curve.kind.shape.nodes == 1)
        self.fewer_pass = _all_pass(each for each in large if 1 < each.curve.kind.shape.nodes < nodes)
        self.others_pass = _all_pass(
            each
            for each in large
            if each.curve.kind.shape.nodes == nodes and each.curve.kind.request.collective != own.request.collective
        )


def _all_pass(those: Iterator[JudgedCurve]) -> bool:
    """Whether there is at least one curve, and all of them pass."""
    found = [each.passes for each in those]
    return bool(found) and all(found)


def _excluded(cause: FabricCause, judged: JudgedCurve, loss: CurveLoss, beside: _Beside, facts: FabricFacts) -> bool:
    least, most = _LEFT.get(cause, (0.0, 1.0))
    several = judged.curve.kind.shape.nodes > 1
    if not least <= loss.share <= most or (not several and cause not in _IN_A_NODE):
        return True
    of_links = cause not in (FabricCause.nvls, FabricCause.algorithm, FabricCause.load, FabricCause.latency)
    if of_links and several and beside.others_pass:
        return True  # the other collectives use the same links and clocks
    match cause:
        case FabricCause.rail:
            return (
                facts.adapters == 1
                or (facts.adapters > 1 and loss.share < (1 - _AS_MUCH) / facts.adapters)
                or (facts.log.adapters is not None and 0 < facts.adapters <= facts.log.adapters)
            )
        case FabricCause.node | FabricCause.port:
            return beside.fewer_pass and beside.node_passes
        case FabricCause.gpudirect:
            return facts.log.gpudirect is True
        case FabricCause.nvls:
            return (
                not facts.reduces
                or facts.log.nvls is True
                or judged.curve.kind.request.collective.name != "AllReduce"
                or beside.node_passes
            )
        case FabricCause.mtu | FabricCause.pauses:
            return facts.network is not Network.rdma
        case FabricCause.algorithm:
            return facts.as_picked
        case FabricCause.cap:
            return beside.node_passes
        case _:
            return False


def _typical(cause: FabricCause, loss: CurveLoss, beside: _Beside, facts: FabricFacts) -> bool:
    """Whether there is evidence for a cause besides the shape of the loss."""
    match cause:
        case FabricCause.rail:
            parts = [left / facts.adapters for left in range(1, facts.adapters)]
            return any(abs(loss.share / part - 1) < _AS_MUCH / 2 for part in parts)
        case FabricCause.oversubscription:
            return beside.fewer_pass or any(abs(loss.share / part - 1) < _AS_MUCH / 2 for part in _ODD_PARTS)
        case FabricCause.gpudirect:
            return facts.log.gpudirect is False
        case FabricCause.nvls:
            return beside.others_pass or facts.log.nvls is False
        case FabricCause.algorithm:
            return loss.shape is LossShape.middle or facts.log.tuner is not None
        case FabricCause.cap:
            return loss.shape is LossShape.falling and not beside.fewer_pass
        case FabricCause.mtu:
            return loss.share > 1 - 2 * _AS_MUCH
        case _:
            return False
