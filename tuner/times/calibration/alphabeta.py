"""The textbook's model: each collective and combination has a latency (alpha) and a bandwidth (beta), and no more."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from tuner.base.names import Algorithm, Collective, Protocol
from tuner.emulator.request import Sizes
from tuner.plugin.table.records import Cost, Interval, Line, Table
from tuner.times.calibration.observations import ObservationGroup, Observations
from tuner.times.costmodels import line

LARGEST_DEVIATION = 0.25  # of a value, for it to be known


@dataclass(frozen=True, slots=True)
class AlphaBeta:
    """``alpha_us + bytes / (1000 * beta_gbs)``, each with its standard deviation.

    ``known``: the sizes reach both; small ones say nothing of bandwidths, large ones of latencies. ``r2`` is of
    logarithms of times, with outliers counting as in the fit; errors are mean absolute ones in percent.
    """

    collective: Collective
    algorithm: Algorithm
    protocol: Protocol
    ranks: int
    nodes: int
    calls: int
    alpha_us: float
    alpha_deviation_us: float
    beta_gbs: float
    beta_deviation_gbs: float
    r2: float
    error_percent: float
    held_out_error_percent: float | None
    known: bool


def fit(observations: Observations) -> tuple[list[AlphaBeta], list[str]]:
    """What could be fitted, then what has too few sizes to be."""
    fits, without = [], []
    for group in _of_all_types(observations.groups):
        if len(np.unique(group.sizes.nbytes[~group.held_out])) < line.LEAST_SIZES:
            name = f"{group.request.collective.name} {group.algo_proto[0].name}/{group.algo_proto[1].name}"
            without.append(f"{name}: too few sizes; needed: {line.LEAST_SIZES} that are not held out")
        else:
            fits.append(_fit(group))
    return fits, without


def cost_table(fits: Iterable[AlphaBeta], provenance: dict[str, str]) -> Table:
    """Rows for the plugin: known times instead of NCCL's, on the shapes that were measured."""
    costs = tuple(
        Cost(
            one.collective,
            one.algorithm,
            one.protocol,
            Line(one.alpha_us, one.beta_gbs),
            ranks=Interval(one.ranks, one.ranks),
            nodes=Interval(one.nodes, one.nodes),
        )
        for one in fits
        if one.known
    )
    return Table(costs=costs, provenance=provenance)


def _of_all_types(groups: Iterable[ObservationGroup]) -> Iterable[ObservationGroup]:
    """The textbook does not know types and operations."""
    same: dict[object, list[ObservationGroup]] = {}
    for group in groups:
        same.setdefault((id(group.communicator), group.request.collective, group.algo_proto), []).append(group)
    for first, *others in same.values():
        every = [first, *others]
        yield replace(
            first,
            sizes=Sizes(np.concatenate([group.sizes.nbytes for group in every])),
            median_us=np.concatenate([group.median_us for group in every]),
            deviation=np.concatenate([group.deviation for group in every]),
            held_out=np.concatenate([group.held_out for group in every]),
        )


def _fit(group: ObservationGroup) -> AlphaBeta:
    used = ~group.held_out
    fitted = line.fit(group.sizes.nbytes, group.median_us, group.deviation, used)
    request, shape, error = group.request, group.communicator, 100 * np.abs(fitted.error)
    return AlphaBeta(
        request.collective,
        *group.algo_proto,
        shape.ranks,
        shape.nodes,
        int(used.sum()),
        fitted.fixed_us,
        fitted.fixed_deviation_us,
        fitted.gbs,
        fitted.gbs_deviation,
        fitted.r2,
        float(error[used].mean()),
        float(error[~used].mean()) if (~used).any() else None,
        max(fitted.fixed_deviation_us / fitted.fixed_us, fitted.gbs_deviation / fitted.gbs) <= LARGEST_DEVIATION,
    )
