"""Fits constants of NCCL's model to measured times, and measures how well the fitted model explains these times."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.base.dataclass import dataclass
from tuner.base.names import Collective, DataType
from tuner.base.view import column
from tuner.times.calibration.forward import Constant, Forward, rounded, tables
from tuner.times.calibration.observations import Observations
from tuner.times.costmodels.line import OUTLIER, deviations, robust
from tuner.times.statistics import NORMAL_95

Matrix = NDArray[np.float64]
KNOWN = 0.1  # a constant is fitted if the data determine its logarithm this well, given the constants fitted before
_SETTLED = 1.5
_SHARE = 0.1  # share of the largest part below which another constant's effect is not named


@dataclass(frozen=True, slots=True)
class Known:
    """The columns of a Jacobian that are fitted. ``alike`` expresses each other column as a combination of fitted
    columns, a factor for each ({} for a column without effect).
    """

    fitted: tuple[int, ...]
    alike: dict[int, dict[int, float]]


def identify(jacobian: Matrix, after: Sequence[int], before: Collection[int] = ()) -> Known:
    """Chooses the constants that the calls determine, from the ``jacobian``, numbers indexed by [call][constant].

    The Jacobian has the derivatives of the logarithms of times, in units of their deviations. Constants with a smaller
    ``after`` are chosen first.

    The best determined constant comes first, then the constant that is best determined given the first, as in a QR
    decomposition with pivoting. The norm of a column without its parts along earlier columns is one over the constant's
    deviation. Columns that were fitted ``before`` are preferred to columns that are hardly better determined, so that
    repeated choices settle.
    """
    left, fitted = jacobian.copy(), []
    for rank in sorted(set(after)):
        columns = [column for column, place in enumerate(after) if place == rank]
        while columns:
            lengths = np.linalg.norm(left[:, columns], axis=0)
            if lengths.max() * KNOWN < 1:
                break
            lengths *= np.where(lengths * KNOWN < 1, 0, [_SETTLED if one in before else 1 for one in columns])
            best = columns[int(np.argmax(lengths))]
            columns.remove(best)
            fitted.append(best)
            direction = left[:, best] / np.linalg.norm(left[:, best])
            left -= np.outer(direction, direction @ left)
    return Known(
        tuple(fitted),
        {column: _alike(jacobian, fitted, column) for column in range(jacobian.shape[1]) if column not in fitted},
    )


def _alike(jacobian: Matrix, fitted: Sequence[int], column: int) -> dict[int, float]:
    """The effect of one column of the Jacobian, expressed as a combination of the fitted columns."""
    own = jacobian[:, column]
    if np.linalg.norm(own) * KNOWN < 1 or not fitted:
        return {}
    basis = jacobian[:, fitted]
    parts, *_ = np.linalg.lstsq(basis, own, rcond=None)
    weights = np.abs(parts) * np.linalg.norm(basis, axis=0)
    return {
        other: float(part)
        for other, part, weight in zip(fitted, parts, weights, strict=True)
        if weight >= _SHARE * weights.max()
    }


Array = NDArray[np.float64]
ROUNDS = 4  # rounds of choosing constants and fitting them; after a fit, a minimum may select other constants
WORTH = 5.0  # least gain of the log-likelihood for which caps are moved
HIGHER = 1.1
FEWEST_OF_SIZE = 8  # least number of calls of a size for which their error is estimated separately
IDENTIFIED_DEVIATION = 0.025  # of a logarithm: 95 % are then within 5 % of the value
IDENTIFIED = "identified"
ROUGH = "known roughly"
TOGETHER = "identified with others kept"
AT_LEAST = "at least, does not bind"
KEPT_ALIKE = "kept: same effect as others"
KEPT_WITHOUT_EFFECT = "kept: too little effect"
_MEDIAN_DEVIATION = 1.4826  # a normal distribution's deviation over its median absolute deviation


@dataclass(frozen=True, slots=True)
class Fitted:
    """One constant: its value, its 95 % interval if it was fitted, and otherwise why it keeps NCCL's value.

    ``alike`` names constants with the same effect, with the ratio of effects: for a fitted constant the names of
    constants that keep NCCL's value, as the fit assumes; for a constant that keeps NCCL's value, the names of fitted
    ones.
    """

    name: str
    nccl: float
    value: float
    low: float | None
    high: float | None
    status: str  # one of the six above
    alike: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Error:
    """Mean absolute errors in percent, None if there are no calls. Fields with ``held_out`` in their names are for
    sizes that were not fitted.
    """

    combination: str = field(metadata=column("combination"))
    calls: int = field(metadata=column("calls"))
    nccl_percent: float | None = field(metadata=column("NCCL", digits=2))
    fitted_percent: float | None = field(metadata=column("fitted", digits=2))
    held_out_calls: int = field(metadata=column("held out"))
    nccl_held_out_percent: float | None = field(metadata=column("NCCL there", digits=2))
    fitted_held_out_percent: float | None = field(metadata=column("fitted there", digits=2))


@dataclass(frozen=True, slots=True)
class Residual:
    """One call of ``bytes`` (nBytes): its times as measured, by NCCL's model, and by the model with the fitted
    constants.
    """

    collective: Collective
    bytes: int
    nodes: int
    ranks: int
    dtype: DataType
    combination: str
    measured_us: float
    nccl_us: float
    fitted_us: float
    held_out: bool


@dataclass(frozen=True, slots=True)
class SizeNoise:
    """Error of the times of sizes from ``from_bytes`` to twice that, in units of their deviations, and the number of
    calls.
    """

    from_bytes: int
    calls: int
    noise: float


@dataclass(frozen=True, slots=True)
class Fit:
    """Result of a fit. ``noise``: by how many of their own deviations the times are off; above 1 the model misses
    something.

    ``noise_by_size`` is the same for each doubling of sizes; sizes with a larger error get less weight.
    """

    constants: tuple[Fitted, ...]
    unreached: tuple[str, ...]
    zeros: tuple[str, ...]
    tables: Mapping[str, Any]
    noise: float
    noise_by_size: tuple[SizeNoise, ...]
    errors: tuple[Error, ...]  # by algorithm and protocol, then for all
    residuals: tuple[Residual, ...]


@dataclass(frozen=True, slots=True, eq=False)
class FitProblem:
    """The calls to fit, one element per call: logarithms of times in us, and one over these logarithms' deviations.

    ``used`` is a mask that selects these calls among all calls that :class:`Forward` computes. ``octave`` is log2 of
    each call's size, rounded down.
    """

    forward: Forward
    target: Array
    weight: Array
    used: NDArray[np.bool_]
    octave: NDArray[np.int64]

    def off(self, values: Mapping[Constant, float], noise: float | Array) -> Array:
        """Logarithms of modelled minus logarithms of measured times, in units of their deviations, one per call."""
        residuals: Array = (self.forward.log_us(values)[self.used] - self.target) * self.weight / noise
        return residuals

    def slope(self, values: Mapping[Constant, float], by: Sequence[Constant], noise: float | Array) -> Array:
        """Change of :meth:`off` with the logarithm of each constant, indexed by [call][constant]."""
        jacobian: Array = self.forward.jacobian(values, by)[self.used] * (self.weight / noise)[:, None]
        return jacobian

    def cost(self, values: Mapping[Constant, float], noise: float | Array) -> float:
        """Half the sum of the robust losses, which a fit minimises."""
        return float(np.sum(robust(self.off(values, noise)))) / 2

    def solve(
        self, values: Mapping[Constant, float], free: Sequence[Constant], noise: float | Array
    ) -> dict[Constant, float]:
        """Fits the ``free`` constants, starting from ``values``; the other constants keep their values."""
        from scipy.optimize import least_squares  # takes long to load

        if not free:
            return dict(values)

        def at(logs: Array) -> dict[Constant, float]:
            return {**values, **{constant: constant.value(log) for constant, log in zip(free, logs, strict=True)}}

        low, high = (np.array([getattr(constant, end) for constant in free]) for end in ("low", "high"))
        start = np.log([values[constant] / constant.nccl for constant in free])
        solved = least_squares(
            lambda logs: self.off(at(logs), noise),
            np.clip(start, low + 1e-6, high - 1e-6),
            jac=lambda logs: self.slope(at(logs), free, noise),
            bounds=(low, high),
            loss="soft_l1",
            f_scale=OUTLIER,
            x_scale="jac",
            ftol=1e-7,
            xtol=1e-6,
            max_nfev=100,
        )
        return at(solved.x)


@dataclass(frozen=True, slots=True)
class Settled:
    """Values of all constants: the ones in ``known`` are fitted, the others are as in ``start``.

    ``noise``: by how many of their deviations the times of a call's size are off, numbers [call].
    """

    start: dict[Constant, float]
    values: dict[Constant, float]
    known: Known
    noise: Array


def fit(observations: Observations) -> Fit:
    """A robust least-squares fit of the logarithms of times to the sizes that are not held out."""
    forward = Forward(observations)
    everything = forward.constants
    target, weight, used, octave = _flat(observations)
    problem = FitProblem(forward, target[used], weight[used], used, octave[used])
    nccl = {constant: constant.nccl for constant in everything}
    settled = _settled(problem, nccl, nccl)
    for kind in dict.fromkeys(constant.path[1] for constant in everything if constant.is_cap):
        caps = [constant for constant in everything if constant.is_cap and constant.path[1] == kind]
        shares = [each for each in _free(problem, settled) if each.is_efficiency and forward.meet([each], caps)]
        for share in shares:  # what they determine together may be divided in other ways
            factor = settled.values[share] / share.nccl
            settled = _moved(problem, settled, {**dict.fromkeys(caps, factor), **dict.fromkeys(shares, 1 / factor)})
    values = {
        constant: value if value == constant.nccl else rounded(value) for constant, value in settled.values.items()
    }
    known = settled.known
    spread = deviations(problem.slope(values, [everything[index] for index in known.fitted], settled.noise))
    no_bound = {cap for cap in everything if cap.is_cap and not _binds(problem, values, cap)}
    residuals = _residuals(observations, forward, values)
    return Fit(
        constants=tuple(_fitted(forward, values, known, spread, no_bound)),
        unreached=tuple(forward.unreached),
        zeros=tuple(forward.zeros),
        tables=tables(observations.release, values),
        noise=float(np.median(settled.noise)),
        noise_by_size=_by_size(problem, settled),
        errors=_errors(residuals),
        residuals=residuals,
    )


def _settled(
    problem: FitProblem, start: Mapping[Constant, float], first: Mapping[Constant, float], noise: Array | None = None
) -> Settled:
    """Repeats choosing constants and fitting them from ``first`` on, until the choice stays the same; others are as in
    ``start``.
    """
    everything = problem.forward.constants
    values, known, solved = dict(first), Known((), {}), None
    noise = np.ones(len(problem.target)) if noise is None else noise
    for _ in range(ROUNDS):
        jacobian = problem.slope(values, everything, noise)
        known = identify(jacobian, [constant.after for constant in everything], known.fitted)
        if solved == (set(known.fitted), noise.tolist()):
            break
        solved = set(known.fitted), noise.tolist()
        free = [everything[index] for index in known.fitted]
        values = problem.solve({**start, **{constant: values[constant] for constant in free}}, free, noise)
        off = np.abs(problem.off(values, 1.0))
        freedom = len(off) / max(1, len(off) - len(known.fitted))
        noise = _noise(off * np.sqrt(freedom), problem.octave)
    return Settled(dict(start), values, known, noise)


def _noise(off: Array, octave: NDArray[np.int64]) -> Array:
    """Error per call in units of deviations, at least 1: the median error of the times of its size.

    A size with few calls gets the median of all calls.
    """
    noise = np.full(len(off), _MEDIAN_DEVIATION * float(np.median(off)))
    for each in np.unique(octave):
        if (these := octave == each).sum() >= FEWEST_OF_SIZE:
            noise[these] = _MEDIAN_DEVIATION * np.median(off[these])
    return np.maximum(1.0, np.round(noise, 1))


def _by_size(problem: FitProblem, settled: Settled) -> tuple[SizeNoise, ...]:
    which = [(int(each), problem.octave == each) for each in np.unique(problem.octave)]
    return tuple(SizeNoise(1 << each, int(these.sum()), float(settled.noise[these][0])) for each, these in which)


def _free(problem: FitProblem, settled: Settled) -> list[Constant]:
    return [problem.forward.constants[index] for index in settled.known.fitted]


def _moved(problem: FitProblem, origin: Settled, jump: Mapping[Constant, float]) -> Settled:
    """A fit that starts after ``jump``, if it is better: if a cap does not bind, no slope leads back to it."""
    before = problem.cost(origin.values, origin.noise)
    others = [each for each in _free(problem, origin) if not each.is_latency]
    near = [each for each in others if problem.forward.meet([each], list(jump))]
    free = [each for each in others if problem.forward.meet([each], [*jump, *near])]  # also caps of other node counts
    start = {constant: constant.within(origin.values[constant] * factor) for constant, factor in jump.items()}
    moved = problem.solve({**origin.values, **start}, list(dict.fromkeys([*free, *jump])), origin.noise)
    if problem.cost(moved, origin.noise) > before - WORTH:
        return origin
    caps = {constant: moved[constant] for constant in jump if constant.is_cap}
    settled = _settled(problem, {**origin.start, **caps}, moved, origin.noise)
    return settled if problem.cost(settled.values, origin.noise) < before - WORTH else origin


def _binds(problem: FitProblem, values: Mapping[Constant, float], cap: Constant) -> bool:
    """Whether a higher cap changes the times as much as a lower one; if not, only a lower bound is known."""
    here = problem.off(values, 1.0)
    up, down = (problem.off({**values, cap: values[cap] * factor}, 1.0) - here for factor in (HIGHER, 1 / HIGHER))
    return float(np.linalg.norm(up)) > float(np.linalg.norm(down)) / 2


def _rivals(forward: Forward, values: Mapping[Constant, float], known: Known) -> dict[int, dict[str, float]]:
    """For each efficiency that was fitted below NCCL's value, the caps that do not bind: a lower cap may be the real
    cause.
    """
    everything, fitted = forward.constants, set(known.fitted)
    idle = [cap for index, cap in enumerate(everything) if cap.is_cap and index not in fitted]
    shares = {index: everything[index] for index in fitted if everything[index].is_efficiency}
    return {
        index: {str(cap): 1.0 for cap in idle if values[cap] == cap.nccl and forward.meet([share], [cap])}
        for index, share in shares.items()
        if values[share] < share.nccl
    }


def _flat(observations: Observations) -> tuple[Array, Array, NDArray[np.bool_], NDArray[np.int64]]:
    groups = observations.groups
    target = np.log(np.concatenate([group.median_us for group in groups]))
    weight = 1 / np.concatenate([group.deviation for group in groups])
    octave = np.log2(np.concatenate([group.sizes.nbytes for group in groups]).astype(np.float64)).astype(np.int64)
    return target, weight, ~np.concatenate([group.held_out for group in groups]), octave


def _fitted(
    forward: Forward, values: Mapping[Constant, float], known: Known, spread: Array, no_bound: set[Constant]
) -> list[Fitted]:
    everything, rivals = forward.constants, _rivals(forward, values, known)
    names = [str(constant) for constant in everything]
    partners: dict[int, dict[str, float]] = {index: {} for index in known.fitted}
    for kept, parts in known.alike.items():
        for index, part in parts.items():
            partners[index][names[kept]] = part
    made = []
    for index, constant in enumerate(everything):
        value, low, high, alike = values[constant], None, None, partners.get(index, {})
        if constant in no_bound and value != constant.nccl:
            status = AT_LEAST
        elif index in partners:
            deviation = spread[known.fitted.index(index)]
            factor = float(np.exp(NORMAL_95 * deviation))
            low, high = value / factor, value * factor
            if high < constant.nccl:
                alike = {**rivals.get(index, {}), **alike}
            status = TOGETHER if alike else IDENTIFIED if deviation <= IDENTIFIED_DEVIATION else ROUGH
        else:
            alike = {names[other]: part for other, part in known.alike[index].items()}
            status = KEPT_ALIKE if alike else KEPT_WITHOUT_EFFECT
        made.append(Fitted(names[index], constant.nccl, value, low, high, status, alike))
    return sorted(made, key=lambda one: one.low is None)


def _residuals(observations: Observations, forward: Forward, values: Mapping[Constant, float]) -> tuple[Residual, ...]:
    nccl_us, fitted_us = np.exp(forward.log_us({})), np.exp(forward.log_us(values))
    times = zip(nccl_us.tolist(), fitted_us.tolist(), strict=True)
    return tuple(
        Residual(
            group.request.collective,
            nbytes,
            group.communicator.nodes,
            group.communicator.ranks,
            group.request.dtype,
            f"{group.algo_proto[0].name}/{group.algo_proto[1].name}",
            measured_us,
            *next(times),
            held_out,
        )
        for group in observations.groups
        for nbytes, measured_us, held_out in zip(
            group.sizes.nbytes.tolist(), group.median_us.tolist(), group.held_out.tolist(), strict=True
        )
    )


def _errors(residuals: Sequence[Residual]) -> tuple[Error, ...]:
    """The errors for each combination, then those over all calls."""
    measured, nccl_us, fitted_us = np.array([(one.measured_us, one.nccl_us, one.fitted_us) for one in residuals]).T
    names, held_out = np.array([one.combination for one in residuals]), np.array([one.held_out for one in residuals])
    off = [100 * np.abs(times_us / measured - 1) for times_us in (nccl_us, fitted_us)]
    errors = []
    for name in [*dict.fromkeys(names.tolist()), "all"]:
        these = names == name if name != "all" else np.full(len(names), True)
        inside, outside = (
            (int(part.sum()), _mean(off[0], part), _mean(off[1], part))
            for part in (these & ~held_out, these & held_out)
        )
        errors.append(Error(name, *inside, *outside))
    return tuple(errors)


def _mean(off: Array, calls: NDArray[np.bool_]) -> float | None:
    return float(off[calls].mean()) if calls.any() else None
