"""The constants of NCCL's model that explain measured times best, as a layer, and how well they do."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.fit.constants import Constant, rounded, tables
from tuner.fit.forward import Forward
from tuner.fit.identify import Known, deviations, identify
from tuner.fit.observations import Observations

Array = NDArray[np.float64]
ROUNDS = 4  # of choosing constants and fitting them: other constants count where a minimum changes sides
OUTLIER = 2.0  # deviations from which a call counts less
IDENTIFIED = "identified"
TOGETHER = "identified with others kept"
KEPT_ALIKE = "kept: same effect as others"
KEPT_WITHOUT_EFFECT = "kept: too little effect"
_NORMAL_95 = 1.96
_MEDIAN_DEVIATION = 1.4826  # a normal distribution's deviation over its median absolute deviation


@dataclass(frozen=True, slots=True)
class Fitted:
    """One constant: its value, the 95 % interval where it was fitted, and why not where it keeps NCCL's value.

    ``alike`` names constants of the same effect with the factor by which theirs counts: of a fitted one those that keep
    NCCL's value, which its own value presumes; of one that keeps it, the fitted ones.
    """

    name: str
    nccl: float
    value: float
    low: float | None
    high: float | None
    status: str  # of the four above
    alike: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Error:
    """Mean absolute errors in percent, None of no calls; ``held_out`` sizes were not fitted."""

    combination: str
    calls: int
    nccl_percent: float | None
    fitted_percent: float | None
    held_out_calls: int
    nccl_held_out_percent: float | None
    fitted_held_out_percent: float | None


@dataclass(frozen=True, slots=True)
class Fit:
    """``noise`` is how many of their own deviations the times are off; above 1 the model misses something."""

    constants: tuple[Fitted, ...]
    unreached: tuple[str, ...]
    zeros: tuple[str, ...]
    tables: Mapping[str, Any]
    noise: float
    errors: tuple[Error, ...]  # by algorithm and protocol, then all
    residuals: tuple[Mapping[str, Any], ...]


def fit(observations: Observations) -> Fit:
    """A robust least-squares fit of the logarithms of times to the sizes that are not held out."""
    forward = Forward(observations)
    everything = forward.constants
    target, weight, used = _flat(observations)
    values = {constant: constant.nccl for constant in everything}
    noise, known, solved = 1.0, Known((), {}), None
    for _ in range(ROUNDS):
        jacobian = forward.jacobian(values, everything)[used] * (weight[used] / noise)[:, None]
        known = identify(jacobian, [constant.after for constant in everything], known.fitted)
        if solved == (set(known.fitted), noise):
            break
        solved = set(known.fitted), noise
        values = _solve(forward, values, [everything[index] for index in known.fitted], target, weight, used, noise)
        off = np.abs((forward.log_us(values) - target) * weight)[used]
        freedom = len(off) / max(1, len(off) - len(known.fitted))
        noise = max(1.0, round(float(_MEDIAN_DEVIATION * np.median(off) * np.sqrt(freedom)), 1))
    values = {constant: value if value == constant.nccl else rounded(value) for constant, value in values.items()}
    jacobian = forward.jacobian(values, [everything[index] for index in known.fitted])[used]
    spread = deviations(jacobian * (weight[used] / noise)[:, None])
    return Fit(
        constants=tuple(_fitted(everything, values, known, spread)),
        unreached=tuple(forward.unreached),
        zeros=tuple(forward.zeros),
        tables=tables(observations.release, values),
        noise=noise,
        **_compared(observations, forward, values),
    )


def _flat(observations: Observations) -> tuple[Array, Array, NDArray[np.bool_]]:
    groups = observations.groups
    target = np.log(np.concatenate([group.median_us for group in groups]))
    weight = 1 / np.concatenate([group.deviation for group in groups])
    return target, weight, ~np.concatenate([group.held_out for group in groups])


def _solve(
    forward: Forward, values: Mapping[Constant, float], free: list[Constant], target: Array, weight: Array,
    used: NDArray[np.bool_], noise: float,
) -> dict[Constant, float]:  # fmt: skip
    """From these values on; what is not free is NCCL's."""
    from scipy.optimize import least_squares  # slow to load

    fixed = {constant: constant.nccl for constant in values}
    if not free:
        return fixed
    scale = (weight / noise)[used]

    def at(logs: Array) -> dict[Constant, float]:
        return {**fixed, **{constant: constant.value(log) for constant, log in zip(free, logs, strict=True)}}

    def off(logs: Array) -> Array:
        found: Array = (forward.log_us(at(logs)) - target)[used] * scale
        return found

    def slope(logs: Array) -> Array:
        found: Array = forward.jacobian(at(logs), free)[used] * scale[:, None]
        return found

    low, high = (np.array([getattr(constant, end) for constant in free]) for end in ("low", "high"))
    start = np.log([values[constant] / constant.nccl for constant in free])
    solved = least_squares(
        off, np.clip(start, low + 1e-6, high - 1e-6), jac=slope, bounds=(low, high), loss="soft_l1", f_scale=OUTLIER,
        x_scale="jac", ftol=1e-7, xtol=1e-6, max_nfev=100,
    )  # fmt: skip
    return at(solved.x)


def _fitted(
    everything: list[Constant], values: Mapping[Constant, float], known: Known, spread: Array
) -> list[Fitted]:
    names = [str(constant) for constant in everything]
    partners: dict[int, dict[str, float]] = {index: {} for index in known.fitted}
    for kept, parts in known.alike.items():
        for index, part in parts.items():
            partners[index][names[kept]] = part
    made = []
    for index, constant in enumerate(everything):
        value, low, high = values[constant], None, None
        if index in partners:
            factor = float(np.exp(_NORMAL_95 * spread[known.fitted.index(index)]))
            low, high, alike = value / factor, value * factor, partners[index]
            status = TOGETHER if alike else IDENTIFIED
        else:
            alike = {names[other]: part for other, part in known.alike[index].items()}
            status = KEPT_ALIKE if alike else KEPT_WITHOUT_EFFECT
        made.append(Fitted(names[index], constant.nccl, value, low, high, status, alike))
    return sorted(made, key=lambda one: one.low is None)


def _mean(off: Array, calls: NDArray[np.bool_]) -> float | None:
    return float(off[calls].mean()) if calls.any() else None


def _compared(observations: Observations, forward: Forward, values: Mapping[Constant, float]) -> dict[str, Any]:
    """Errors and residuals of NCCL's constants and of these."""
    nccl_us, fitted_us = np.exp(forward.log_us({})), np.exp(forward.log_us(values))
    measured = np.concatenate([group.median_us for group in observations.groups])
    held_out = np.concatenate([group.held_out for group in observations.groups])
    names, residuals = [], []
    rows = zip(measured.tolist(), nccl_us.tolist(), fitted_us.tolist(), held_out.tolist(), strict=True)
    for group in observations.groups:
        for nbytes in group.sizes.nbytes.tolist():
            median_us, own_us, new_us, out = next(rows)
            names.append(f"{group.cell[0].name}/{group.cell[1].name}")
            residuals.append({
                "collective": group.request.collective.name, "bytes": nbytes, "nodes": group.communicator.nodes,
                "ranks": group.communicator.ranks, "dtype": group.request.dtype.name, "combination": names[-1],
                "measured_us": median_us, "nccl_us": own_us, "fitted_us": new_us, "held_out": out,
            })  # fmt: skip
    kinds = [(name, np.array(names) == name) for name in dict.fromkeys(names)]
    nccl_off, fitted_off = (100 * np.abs(times_us / measured - 1) for times_us in (nccl_us, fitted_us))
    errors = []
    for name, these in [*kinds, ("all", np.full(len(names), True))]:
        inside, outside = these & ~held_out, these & held_out
        means = [(int(part.sum()), _mean(nccl_off, part), _mean(fitted_off, part)) for part in (inside, outside)]
        errors.append(Error(name, *means[0], *means[1]))
    return {"errors": tuple(errors), "residuals": tuple(residuals)}
