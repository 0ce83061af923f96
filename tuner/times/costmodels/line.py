"""Fits latency and bandwidth to times over sizes: a line with relative errors, so that small sizes count as much as
large ones."""

from collections.abc import Sequence
from dataclasses import field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput
from tuner.base.sizes import named_bytes
from tuner.base.view import column, shown
from tuner.times.costmodels.alphabeta import Level, Terms, terms
from tuner.times.costmodels.operations import Array, CostOperation, positive, whole

OUTLIER = 2.0  # deviations from which a call counts less
LEAST_SIZES = 3
_BOUNDS = (-30.0, 30.0)  # bounds on logarithms, far from any latency and bandwidth


@dataclass(frozen=True, slots=True, eq=False)
class LineFit:
    """A fitted line ``fixed_us + bytes / (1000 * gbs)``; both numbers with their standard deviation.

    ``r2`` refers to logarithms of times, with outliers weighted as in the fit; ``error`` is fitted over measured time
    minus 1, also for sizes that were not used, [size].
    """

    fixed_us: float
    fixed_deviation_us: float
    gbs: float
    gbs_deviation: float
    r2: float
    error: Array

    def level(self, terms: Terms) -> Level:
        """Alpha of a step and beta of a link, if the times are from an algorithm with these terms."""
        return Level(self.fixed_us / terms.steps, self.gbs * terms.share)


def fit(
    nbytes: ArrayLike, times_us: ArrayLike, deviation: ArrayLike = 0.01, used: NDArray[np.bool_] | None = None
) -> LineFit:
    """Fits a line through ``times_us`` over ``nbytes``, both [size]; ``deviation`` is the deviation of the times'
    logarithms.

    Only sizes that are ``used`` (true or false, [size]) count. BadInput for fewer than three such sizes.
    """
    from scipy.optimize import least_squares  # takes long to load

    kilobytes, measured = positive("bytes", nbytes) / 1000, positive("time_us", times_us)
    target, spread_of = np.log(measured), np.broadcast_to(np.asarray(deviation, np.float64), measured.shape)
    kept = np.ones(measured.shape, bool) if used is None else used
    if len(np.unique(kilobytes[kept])) < LEAST_SIZES:
        raise BadInput(
            f"alpha and beta cannot be fitted to {len(np.unique(kilobytes[kept]))} sizes: measure {LEAST_SIZES} or more"
        )

    def line_us(logs: Array) -> Array:
        made: Array = np.exp(logs[0]) + kilobytes / np.exp(logs[1])
        return made

    def off(logs: Array) -> Array:
        residuals: Array = ((np.log(line_us(logs)) - target) / spread_of)[kept]
        return residuals

    def slope(logs: Array) -> Array:
        parts = np.stack([np.exp(logs[0]) + 0 * kilobytes, -kilobytes / np.exp(logs[1])], axis=1)
        jacobian: Array = (parts / (line_us(logs) * spread_of)[:, None])[kept]
        return jacobian

    largest = int(np.argmax(kilobytes))
    start = np.log([measured.min(), kilobytes[largest] / measured[largest]])
    solved = least_squares(off, start, jac=slope, loss="soft_l1", f_scale=OUTLIER, bounds=_BOUNDS)
    residual = off(solved.x)
    noise = max(1.0, float(np.sqrt(np.sum(robust(residual)) / max(1, len(residual) - 2))))
    fixed_us, gbs = np.exp(solved.x)
    spread = noise * deviations(slope(solved.x))
    plain = (target[kept] - np.average(target[kept], weights=spread_of[kept] ** -2)) / spread_of[kept]
    total = float(np.sum(robust(plain)))
    return LineFit(
        float(fixed_us),
        float(fixed_us * spread[0]),
        float(gbs),
        float(gbs * spread[1]),
        1 - float(np.sum(robust(residual))) / total if total else 0.0,
        line_us(solved.x) / measured - 1,
    )


@dataclass(frozen=True, slots=True)
class Repeated:
    """Mean and standard deviation over repeated runs; the deviation is None for a single run."""

    mean: float
    deviation: float | None


def repeated(values: Sequence[float]) -> Repeated:
    """Mean and deviation of at least one value."""
    return Repeated(float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else None)


def deviations(jacobian: Array) -> Array:
    """Deviation of each constant, [constant], if all are fitted together, from a ``jacobian``: numbers
    [call][constant].

    Infinite for a constant without any effect.
    """
    lengths = np.linalg.norm(jacobian, axis=0)
    relative = np.full(len(lengths), np.inf)
    reached = np.flatnonzero(lengths)
    if len(reached):
        scaled = jacobian[:, reached] / lengths[reached]
        relative[reached] = np.sqrt(np.diag(np.linalg.pinv(scaled.T @ scaled))) / lengths[reached]
    return relative


def robust(off: Array) -> Array:
    """Each call's part of a fit's loss, [call], from the numbers of deviations by which calls are off.

    A call's part is the square of its number, except for outliers, which count less (soft_l1).
    """
    loss: Array = 2 * OUTLIER**2 * (np.sqrt(1 + (off / OUTLIER) ** 2) - 1)
    return loss


@dataclass(frozen=True, slots=True)
class Experiment:
    """An experiment that measures one parameter. ``usual`` is the usual range: us for a latency, GB/s for a
    bandwidth.
    """

    parameter: str = field(metadata=column("parameter"))
    inside: bool
    latency: bool
    ranks: str = field(metadata=column("over"))
    bytes: int = field(metadata=column("size", text=named_bytes))
    iterations: int = field(metadata=column("iterations"))
    warmup: int
    usual: tuple[float, float] = field(metadata=column("usual", text="{0[0]:g} to {0[1]:g}".format))

    @property
    @shown("nccl-tests")
    def nccl_tests(self) -> str:
        """The command of nccl-tests, which does warm-up and repetitions itself."""
        gpus = "-g 8" if self.inside else "-g 1"
        return f"all_reduce_perf -b {self.bytes} -e {self.bytes} -n {self.iterations} -w {self.warmup} {gpus}"

    def within(self, value: float) -> bool:
        """Whether a measured value is in the usual range."""
        low, high = self.usual
        return low <= value <= high

    def measured(self, elapsed_us: Sequence[float], ranks: int, iterations: int, size: int) -> "MeasuredParameter":
        """The parameter from repetitions of this experiment, each of ``iterations`` calls of ``size`` bytes."""
        if self.latency:
            value = repeated([float(alpha_us(each, iterations, ranks)) for each in elapsed_us])
        else:
            value = repeated([float(beta_gbs(size, each, iterations, ranks)) for each in elapsed_us])
        return MeasuredParameter(self.parameter, value.mean, value.deviation, self.within(value.mean), self.usual)


@dataclass(frozen=True, slots=True)
class MeasuredParameter:
    """Result of repetitions: us for a latency, GB/s for a bandwidth; ``usual``: whether it lies in ``usual_range``."""

    parameter: str
    mean: float
    deviation: float | None
    usual: bool
    usual_range: tuple[float, float]


EXPERIMENTS = (
    Experiment("alpha_intra_us", True, True, "all GPUs of one node", 4, 10_000, 100, (1, 5)),
    Experiment("alpha_inter_us", False, True, "one GPU of each node", 4, 10_000, 100, (5, 20)),
    Experiment("beta_intra_gbs", True, False, "all GPUs of one node", 2 * 10**9, 20, 3, (250, 300)),
    Experiment("beta_inter_gbs", False, False, "one GPU of each node", 4 * 10**9, 10, 3, (40, 50)),
)
REPETITIONS = 5  # repetitions of each experiment, for a mean and a deviation
SWEEP_BYTES = (10**3, 10**10)  # smallest and largest size, for a fit of both parameters
USUAL_RATIO = 6.0  # usual ratio of the bandwidth inside a node to that between nodes


def alpha_us(elapsed_us: ArrayLike, iterations: ArrayLike, ranks: ArrayLike) -> Array:
    """Latency of a step, from calls of a size so small that only the ring's steps count."""
    calls = positive("elapsed_us", elapsed_us) / whole("iterations", iterations)
    alpha: Array = calls / terms(CostOperation.AllReduce, "ring", whole("ranks", ranks, least=2)).steps
    return alpha


def beta_gbs(nbytes: ArrayLike, elapsed_us: ArrayLike, iterations: ArrayLike, ranks: ArrayLike) -> Array:
    """Bus bandwidth from calls of a size so large that latencies do not matter."""
    calls = positive("elapsed_us", elapsed_us) / whole("iterations", iterations)
    share = terms(CostOperation.AllReduce, "ring", whole("ranks", ranks, least=2)).share
    beta: Array = share * positive("bytes", nbytes) / calls / 1000
    return beta


EXCELLENT, USEFUL = 0.10, 0.30  # errors up to which a prediction is excellent, or useful
WELL_OPTIMISED = 0.70  # efficiency of a well optimised system; such systems usually reach 0.70 to 0.85

# Causes of a prediction that is far off, in the order in which to look.
CAUSES = (
    "contention: other jobs on the same network",
    "the wrong path: alpha and beta were measured on another one",
    "protocols: what small messages carry besides their bytes",
    "memory pressure on the GPU, which slows copies",
)

# Causes of a bandwidth above the ideal.
ABOVE = (
    "reduction in the switch",
    "a network so fast that it takes bandwidth from the links in the node",
    "too low a bandwidth given",
)


@dataclass(frozen=True, slots=True)
class Class:
    """A class of results; ``causes`` are what to look for, empty for a good result."""

    name: str
    causes: tuple[str, ...] = ()


def of_error(error: float) -> Class:
    """The class for a relative error of a prediction: below 10 %, up to 30 %, or above."""
    if not np.isfinite(error):
        return Class("no prediction")
    if abs(error) < EXCELLENT:
        return Class("excellent")
    return Class("useful for planning") if abs(error) <= USEFUL else Class("assumptions violated", CAUSES)


def of_efficiency(efficiency: float, latency_share: float) -> Class:
    """The class of a measured efficiency, which is a share of the ideal busbw; ``latency_share`` is the share of the
    predicted time that is latency.

    If the time is mostly latency, the size cannot reach the bandwidth, and the class says so.
    """
    if efficiency > 1:
        return Class("above the ideal", ABOVE)
    if efficiency >= WELL_OPTIMISED:
        return Class("well optimised")
    if latency_share > 0.5:
        return Class("latency-bound", ("small messages: larger buckets share the latency",))
    causes = ("software: launch and synchronisation", "protocol headers", "contention", "copies over PCIe")
    return Class("below what is usual", causes)


def error(predicted: float, measured: float) -> float:
    """The error relative to the measured value; above 0 if the prediction is too long."""
    return predicted / measured - 1
