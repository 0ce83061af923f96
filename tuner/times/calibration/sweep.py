"""A sweep over sizes from a file of measurements: reads the times of NCCL's own choice and fits latency and
bandwidth.
"""

from collections.abc import Sequence
from dataclasses import field
from pathlib import Path

import numpy as np

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadMeasurement, one_of
from tuner.base.names import Collective
from tuner.base.records import json_form
from tuner.base.spelling import option
from tuner.times.costmodels import alphabeta, line
from tuner.times.costmodels.alphabeta import Terms
from tuner.times.costmodels.line import Repeated
from tuner.times.costmodels.operations import Array, CostOperation, whole
from tuner.times.measured.formats import read_any
from tuner.times.results import Result, results


@dataclass(frozen=True, slots=True)
class Sweep:
    """One file's times of NCCL's own choice for one collective, by ascending size; out of place if the file has both
    placements.

    ``wrong_bytes`` are the sizes that were left out because results were wrong.
    """

    path: Path
    collective: Collective
    ranks: int | None
    nccl: str | None
    results: tuple[Result, ...]
    wrong_bytes: tuple[int, ...] = ()

    @property
    def in_graphs(self) -> bool:
        """Whether the calls were in CUDA graphs."""
        return any(result.point.graph for result in self.results)

    @property
    def bytes(self) -> Array:
        """Sizes in bytes, one per result."""
        return np.array([result.point.bytes for result in self.results], np.float64)

    @property
    def times_us(self) -> Array:
        """Medians in us, one per result that has a median."""
        return np.array([result.estimate.median_us for result in self.results if result.estimate])


def read(path: Path, collective: Collective | None = None) -> Sweep:
    """Reads a sweep. BadMeasurement if no time of NCCL's own choice has right results, or if the file has several
    collectives and ``collective`` is None.
    """
    measured = read_any(path, collective)
    own = [each for each in results(measured.blocks) if each.requested is None and (each.estimate or each.wrong)]
    collectives = sorted({each.point.collective for each in own})
    if not collectives or (collective is not None and collective not in collectives):
        what = "anything" if collective is None else collective.name
        raise BadMeasurement(f"{path} has no times of {what} for which NCCL chose by itself; {_one_of(collectives)}")
    if collective is None and len(collectives) > 1:
        raise BadMeasurement(
            f"{path} has several collectives: name one with {option('collective')}; {_one_of(collectives)}"
        )
    collective = collectives[0] if collective is None else collective
    kinds = {(each.point.dtype, each.point.op, each.point.graph) for each in own if each.point.collective is collective}
    if len(kinds) > 1:
        raise BadMeasurement(
            f"{path} has several types or operations, or some times in CUDA graphs and some not: give a file of one "
            "kind"
        )
    by_size: dict[int, Result] = {}
    for each in sorted(own, key=lambda each: bool(each.point.in_place)):
        if each.point.collective is collective:
            by_size.setdefault(each.point.bytes, each)
    kept = [by_size[size] for size in sorted(by_size) if size]
    right = tuple(each for each in kept if each.estimate)
    if not right:
        raise BadMeasurement(f"{path}: all sizes have wrong results (#wrong), so none of the times counts")
    wrong_bytes = tuple(each.point.bytes for each in kept if not each.estimate)
    return Sweep(path, collective, measured.header.ranks, measured.header.release, right, wrong_bytes)


def _one_of(collectives: Sequence[Collective]) -> str:
    return one_of([collective.name for collective in collectives] or ["a file with such times"])


BENT = line.Class(
    "no one line", ("several algorithms or protocols, each with a line of its own: 'nccl-tuner fit alpha-beta'",)
)
_FEWEST_SIZES = 6
_ALIKE = 0.5  # correlation of neighbouring errors from which they lie on a curve and not around a line


def _bends(error: Array) -> bool:
    """Whether the errors, in the order of sizes, show that a line does not fit: they are large and similar to their
    neighbours.
    """
    centred = error - error.mean()
    alike = float((centred[1:] * centred[:-1]).sum()) > _ALIKE * float((centred**2).sum())
    return len(error) >= _FEWEST_SIZES and float(np.abs(error).max()) > line.EXCELLENT and alike


def terms_of(sweeps: Sequence[Sweep], algorithm: str, ranks: int | None) -> Terms:
    """The steps and bytes of ``algorithm`` for the collective and the number of ranks that the files measured.
    BadMeasurement if files differ in collective or ranks, or if no number of ranks is known.
    """
    for sweep in sweeps:
        if ranks is not None and sweep.ranks not in (None, ranks):
            raise BadMeasurement(
                f"{sweep.path} was measured on {sweep.ranks} ranks, not {ranks}: remove {option('ranks')}"
            )
    names, counts = {sweep.collective for sweep in sweeps}, {sweep.ranks or ranks for sweep in sweeps}
    if len(names) > 1 or len(counts) > 1:
        raise BadMeasurement(
            "the files differ in collective or number of ranks: give files of one collective on one number of ranks"
        )
    (count,) = counts
    if count is None:
        raise BadMeasurement(f"{sweeps[0].path} does not say the number of ranks: add {option('ranks')} N")
    return alphabeta.terms(CostOperation[names.pop().name], algorithm, whole("ranks", count, least=2))


@dataclass(frozen=True, slots=True)
class Runs:
    """Alpha, us, and beta, GB/s, of the separate runs, as mean and deviation."""

    alpha_us: Repeated
    beta_gbs: Repeated


@dataclass(frozen=True, slots=True)
class SizeOfFile:
    """One size in one of the files."""

    file: Path
    bytes: int


@dataclass(frozen=True, slots=True)
class TimeOfFile:
    """The time of one size in one of the files."""

    file: Path
    bytes: int
    time_us: float


@dataclass(frozen=True, slots=True)
class SweepFit:
    """Alpha and beta of ``files`` together, for an algorithm's steps and bytes, with their deviations.

    ``fixed_us`` and ``gbs`` are the fitted line. ``r2`` is the part of the times' variation that the line explains,
    ``error`` the mean absolute error, ``verdict`` its class, and ``causes`` what to look for. ``wrong`` are the sizes
    with wrong results, which the fit leaves out.
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

    def error_of(self, size: TimeOfFile) -> float:
        """Time by the line over measured time, minus 1."""
        return line.error(self.fixed_us + size.bytes / self.gbs / 1000, size.time_us)


def fit(sweeps: Sequence[Sweep], algorithm: str, terms: Terms) -> SweepFit:
    """Fits alpha and beta of an algorithm with these ``terms`` to all runs together, and to each by itself for the mean
    and deviation over runs. BadInput for fewer than three sizes.
    """
    sizes, times = (
        np.concatenate(parts) for parts in ([sweep.bytes for sweep in sweeps], [sweep.times_us for sweep in sweeps])
    )
    together = line.fit(sizes, times)
    level, of_runs = together.level(terms), [line.fit(sweep.bytes, sweep.times_us).level(terms) for sweep in sweeps]
    alpha_us, beta_gbs, error = float(level.alpha_us), float(level.beta_gbs), float(np.abs(together.error).mean())
    bends = _bends(together.error[np.argsort(sizes, kind="stable")])
    verdict = BENT if bends and error < line.USEFUL else line.of_error(error)
    return SweepFit(
        operation=sweeps[0].collective.name,
        algorithm=algorithm,
        files=tuple(each.path for each in sweeps),
        alpha_us=alpha_us,
        beta_gbs=beta_gbs,
        r2=together.r2,
        alpha_deviation_us=together.fixed_deviation_us * alpha_us / together.fixed_us,
        beta_deviation_gbs=together.gbs_deviation * beta_gbs / together.gbs,
        fixed_us=together.fixed_us,
        gbs=together.gbs,
        error=error,
        verdict=verdict.name,
        causes=tuple(verdict.causes),
        runs=Runs(
            line.repeated([float(run.alpha_us) for run in of_runs]),
            line.repeated([float(run.beta_gbs) for run in of_runs]),
        ),
        wrong=tuple(SizeOfFile(each.path, size) for each in sweeps for size in each.wrong_bytes),
        sizes=tuple(
            TimeOfFile(each.path, int(size), float(time_us))
            for each in sweeps
            for size, time_us in zip(each.bytes, each.times_us, strict=True)
        ),
    )
