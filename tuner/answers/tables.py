"""The tuning table, a record a cell."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tuner.base.names import ALGO_PROTOS, Algorithm, Collective, Protocol
from tuner.base.numerics import shortest
from tuner.base.records import json_form
from tuner.emulator.model import Tables

if TYPE_CHECKING:
    from tuner.answers.calibrated_tables import CalibratedCell


@dataclass(frozen=True, slots=True)
class TableCell:
    """The model's numbers of one combination; ``reason`` says why a bandwidth is 0 where the emulator knows.

    ``fitted`` are the constants that were fitted to measurements, as a scenario's :class:`ConstantsUsed` has them;
    ``calibrated`` is what such calls take by a calibration, where that was asked for and they may run.
    """

    collective: Collective
    algorithm: Algorithm
    protocol: Protocol
    latency_us: float
    bandwidth_gbs: float
    max_threads: int
    thread_threshold_bytes: int
    reason: str | None
    fitted: object = field(default=None, metadata=json_form("layer", optional=True))
    calibrated: "CalibratedCell | None" = field(default=None, metadata=json_form(optional=True))


def cells(tables: Tables, algorithms: int, fitted: object = None) -> list[TableCell]:
    """Of the ``algorithms`` that the release has, in NCCL's order, exact."""
    return [
        TableCell(
            collective=collective,
            algorithm=algorithm,
            protocol=protocol,
            latency_us=shortest(tables.latency_us[collective, algorithm, protocol]),
            bandwidth_gbs=shortest(tables.bandwidth_gbs[collective, algorithm, protocol]),
            max_threads=int(tables.max_threads[algorithm, protocol]),
            thread_threshold_bytes=int(tables.thread_thresholds_bytes[algorithm, protocol]),
            reason=tables.reasons.get((collective, algorithm, protocol)),
            fitted=fitted,
        )
        for collective in Collective
        for algorithm, protocol in ALGO_PROTOS
        if algorithm < algorithms
    ]
