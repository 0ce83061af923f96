"""Alpha and beta of measured sweeps as an answer: the numbers, how sure they are, and the times they are of."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tuner.base.records import json_form
from tuner.times.calibration.sweep import AlphaBeta, Sweep
from tuner.times.costmodels.line import Repeated


@dataclass(frozen=True, slots=True)
class Runs:
    """Alpha, us, and beta, GB/s, of each run apart, as mean and deviation."""

    alpha_us: Repeated
    beta_gbs: Repeated


@dataclass(frozen=True, slots=True)
class SizeOfFile:
    """A size of one of the files."""

    file: Path
    bytes: int


@dataclass(frozen=True, slots=True)
class TimeOfFile:
    """The time of a size of one of the files."""

    file: Path
    bytes: int
    time_us: float


@dataclass(frozen=True, slots=True)
class SweepFit:
    """Alpha and beta of ``files`` together, taken for an algorithm's steps and bytes, with their deviations.

    ``fixed_us`` and ``gbs`` are the line itself, ``r2`` how much of the times it explains; ``error`` is the mean
    absolute error, ``verdict`` what that is called and ``causes`` what to look for. ``wrong`` are sizes left out.
    """

    operation: str
    algorithm: str
    files: tuple[Path, ...]
    alpha_us: float
    beta_gbs: float
    r2: float
    alpha_deviation_us: float
    beta_deviation_gbs: float
    fixed_us: float
    gbs: float
    error: float
    verdict: str = field(metadata=json_form("class"))
    causes: tuple[str, ...]
    runs: Runs
    wrong: tuple[SizeOfFile, ...]
    sizes: tuple[TimeOfFile, ...]


def described(sweeps: Sequence[Sweep], algorithm: str, fitted: AlphaBeta) -> SweepFit:
    """What :func:`tuner.times.calibration.sweep.fit` found for that algorithm in these sweeps, with their times."""
    fit, alpha_us, beta_gbs = fitted.fit, float(fitted.level.alpha_us), float(fitted.level.beta_gbs)
    return SweepFit(
        operation=sweeps[0].collective.name,
        algorithm=algorithm,
        files=tuple(each.path for each in sweeps),
        alpha_us=alpha_us,
        beta_gbs=beta_gbs,
        r2=fit.r2,
        alpha_deviation_us=fit.fixed_deviation_us * alpha_us / fit.fixed_us,
        beta_deviation_gbs=fit.gbs_deviation * beta_gbs / fit.gbs,
        fixed_us=fit.fixed_us,
        gbs=fit.gbs,
        error=fitted.error,
        verdict=fitted.verdict.name,
        causes=tuple(fitted.verdict.causes),
        runs=Runs(fitted.alpha_us, fitted.beta_gbs),
        wrong=tuple(SizeOfFile(each.path, size) for each in sweeps for size in each.wrong_bytes),
        sizes=tuple(
            TimeOfFile(each.path, int(size), float(time_us))
            for each in sweeps
            for size, time_us in zip(each.bytes, each.times_us, strict=True)
        ),
    )
