"""Parameters of the times of sends and receives from measured tables."""

from collections.abc import Mapping, Sequence

import numpy as np

from tuner.base.dataclass import dataclass
from tuner.base.errors import TunerError
from tuner.emulator.communicator import Communicator
from tuner.times.calibration.measured_calls import Site
from tuner.times.calibration.time_fit import softened
from tuner.times.measured import MeasuredRow, MeasuredTable
from tuner.times.timemodel import point_to_point
from tuner.times.timemodel.features import Array, Ints, Which
from tuner.times.timemodel.point_to_point import MODELLED, PARAMETERS, Exchanges

_SCATTER = 0.05  # how far a measured time may lie from the form before it counts less, natural log
_BELIEVED_SCATTER, _BELIEVED_ROWS = 0.06, 10


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredExchanges:
    """Rows of sends and receives: the calls, what they took in us, GPUs of a node, [row]."""

    rows: tuple[MeasuredRow, ...]
    calls: Exchanges
    times_us: Array
    gpus_per_node: Ints

    def __getitem__(self, which: Which) -> "MeasuredExchanges":
        chosen = np.arange(len(self.rows))[which]
        rows = tuple(self.rows[at] for at in chosen.tolist())
        return MeasuredExchanges(rows, self.calls[which], self.times_us[which], self.gpus_per_node[which])


def of_tables(tables: Sequence[MeasuredTable], sites: Sequence[Site]) -> MeasuredExchanges | None:
    """The rows of tables, each on its site, that are modelled; None where there are none."""
    rows: list[MeasuredRow] = []
    calls: list[Exchanges] = []
    for table, site in zip(tables, sites, strict=True):
        communicators: dict[tuple[int, int], Communicator | None] = {}
        for row in table.rows:
            key = row.nodes, row.gpus_per_node
            if row.collective not in MODELLED or row.in_place:
                continue
            if key not in communicators:
                try:
                    communicators[key] = site.selection(*key, {}).communicator
                except TunerError:
                    communicators[key] = None
            if (communicator := communicators[key]) is not None:
                rows.append(row)
                sizes = np.array([row.bytes], np.uint64)
                calls.append(point_to_point.of_communicator(communicator, sizes))
    if not rows:
        return None
    together = Exchanges(*(np.concatenate([getattr(each, name) for each in calls]) for name in Exchanges.__slots__))
    return MeasuredExchanges(
        tuple(rows),
        together,
        np.array([row.time_us for row in rows]),
        np.array([row.gpus_per_node for row in rows], np.int64),
    )


def fit(measured: MeasuredExchanges) -> Mapping[str, float]:
    """The parameters that explain the times best, beliefs counted. Loss: soft absolute differences of logarithms."""
    names = list(PARAMETERS)
    believed = np.log([PARAMETERS[name].median for name in names])
    widths = np.array([PARAMETERS[name].log_sd for name in names])

    def residuals(vector: Array) -> Array:
        values = dict(zip(names, np.exp(vector).tolist(), strict=True))
        off = np.log(point_to_point.times_us(values, measured.calls) / measured.times_us) / _SCATTER
        return np.concatenate([softened(off), (vector - believed) / widths])

    from scipy.optimize import least_squares  # slow to load

    return dict(zip(names, np.exp(least_squares(residuals, believed).x).tolist(), strict=True))


def scatter(measured: MeasuredExchanges, parameters: Mapping[str, float]) -> float:
    """Mean absolute logarithm of measured times over the form's, a few rows weighed against what others show."""
    off = np.abs(np.log(point_to_point.times_us(parameters, measured.calls) / measured.times_us))
    return float((off.sum() + _BELIEVED_ROWS * _BELIEVED_SCATTER) / (len(off) + _BELIEVED_ROWS))
