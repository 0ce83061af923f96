"""A file of measurements, judged: regrets, crossovers, and how well the model knows the times."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import cached_property
from pathlib import Path

import numpy as np

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadMeasurement, one_of
from tuner.base.names import AlgoProto, Collective
from tuner.base.records import json_form
from tuner.times.comparison.judged import Judged, Skipped, judge, kind_of, middle
from tuner.times.comparison.model import Model, model_of
from tuner.times.comparison.model_errors import ModelError, model_error
from tuner.times.evidence import Evidence, collect
from tuner.times.readers.any_file import read_any
from tuner.times.records.samples import Combination, Measurements, Point


@dataclass(frozen=True, slots=True)
class Crossover:
    """Between two measured sizes the best changes; ``at_bytes`` is where their measured times cross."""

    collective: Collective
    before: Combination = field(metadata=json_form(convert=str))
    after: Combination = field(metadata=json_form(convert=str))
    low_bytes: int
    high_bytes: int
    at_bytes: int


@dataclass(eq=False)
class Comparison:
    """A file of measurements, judged."""

    measurements: Measurements
    model: Model | None

    @cached_property
    def evidence(self) -> dict[Point, Evidence]:
        """The times of each call, by round and combination."""
        return collect(self.measurements.blocks)

    @cached_property
    def _judged(self) -> list[Judged | Skipped]:
        return [judge(point, evidence, self.model) for point, evidence in self.evidence.items()]

    @cached_property
    def sizes(self) -> list[Judged]:
        """The calls that were judged."""
        return [one for one in self._judged if isinstance(one, Judged)]

    @property
    def skipped(self) -> list[Skipped]:
        """The calls without a regret."""
        return [one for one in self._judged if isinstance(one, Skipped)]

    @cached_property
    def kinds(self) -> dict[Point, list[Judged]]:
        """Sizes by kind of call, which is a point of 0 bytes."""
        by_kind: dict[Point, list[Judged]] = {}
        for one in self.sizes:
            by_kind.setdefault(kind_of(one.point), []).append(one)
        return by_kind

    def crossovers(self) -> list[Crossover]:
        """Where the measured best changes beyond the noise: as few changes as the measurements allow."""
        crossovers = []
        for sizes in self.kinds.values():
            segments = fewest_segments([one.alike for one in sizes])
            winners = [_likeliest(sizes[start:stop], common) for start, stop, common in segments]
            for (start, _, _), before, after in zip(segments[1:], winners, winners[1:], strict=False):
                low, high = sizes[start - 1].point, sizes[start].point
                at = self._crossing(low, high, before, after)
                crossovers.append(Crossover(low.collective, before, after, low.bytes, high.bytes, at))
        return crossovers

    def _crossing(self, low: Point, high: Point, before: Combination, after: Combination) -> int:
        """Where the logarithms of the times, straight between the two sizes, cross; the middle where they do not."""
        leads = []
        for point in (low, high):
            columns, levels = self.evidence[point].columns, self.evidence[point].levels
            if before not in columns or after not in columns:
                return middle(low.bytes, high.bytes)
            leads.append(levels[columns.index(after)] - levels[columns.index(before)])
        if not leads[0] > 0 > leads[1]:
            return middle(low.bytes, high.bytes)
        part = float(leads[0] / (leads[0] - leads[1]))
        return int(low.bytes * (high.bytes / low.bytes) ** part)

    def model_changes(self) -> dict[Point, list[int]]:
        """By kind of call, the sizes from which the emulated pick is another, within those measured."""
        if self.model is None:
            return {}
        return {
            kind: self.model.changes(kind, sizes[0].point.bytes, sizes[-1].point.bytes)
            for kind, sizes in self.kinds.items()
            if sizes[-1].point.bytes > sizes[0].point.bytes
        }

    def model_errors(self) -> list[ModelError]:
        """Of what was executed with NCCL's own channels."""
        pairs: dict[tuple[Collective, AlgoProto], list[tuple[float, float]]] = {}
        for point, algo_proto, measured_us, model_us in self._both():
            pairs.setdefault((point.collective, algo_proto), []).append((measured_us, model_us))
        return [
            model_error(collective, algo_proto, np.array(times))
            for (collective, algo_proto), times in sorted(pairs.items())
        ]

    def rank_agreement(self) -> dict[Collective, float]:
        """Whether the model orders the combinations of a size as measured: Kendall's tau, the mean over sizes."""
        from scipy.stats import kendalltau

        sizes: dict[Point, list[tuple[float, float]]] = {}
        for point, _, measured_us, model_us in self._both():
            sizes.setdefault(point, []).append((measured_us, model_us))
        taus: dict[Collective, list[float]] = {}
        for point, times in sizes.items():
            if len(times) > 1 and np.isfinite(tau := float(kendalltau(*np.array(times).T).statistic)):
                taus.setdefault(point.collective, []).append(tau)
        return {collective: float(np.mean(own)) for collective, own in taus.items()}

    def _both(self) -> list[tuple[Point, AlgoProto, float, float]]:
        pairs = []
        for point, evidence in self.evidence.items() if self.model is not None else ():
            assert self.model is not None
            model_us = self.model.times_us(point)
            for column in evidence.columns:
                if column is None or column.channels:
                    continue
                if column.algo_proto in model_us:
                    pairs.append((point, column.algo_proto, evidence.time_us(column), model_us[column.algo_proto]))
        return pairs

    def total(self, histogram: Mapping[tuple[Collective, int], float]) -> "Total":
        """Over calls of other sizes as well: times are straight between measured sizes, in logarithms of both.

        BadMeasurement for a size outside of those measured.
        """
        pick_us = best_us = 0.0
        for (collective, size), count in histogram.items():
            sizes = next((judged for kind, judged in self.kinds.items() if kind.collective is collective), [])
            if not sizes:
                valid = one_of(sorted({kind.collective.name for kind in self.kinds}))
                raise BadMeasurement(f"the histogram has {collective.name}, which was not measured; {valid}")
            known = [one.point.bytes for one in sizes]
            if not known[0] <= size <= known[-1]:
                raise BadMeasurement(
                    f"the histogram has {collective.name} of {size} bytes; measured: {known[0]} to {known[-1]}"
                )
            pick_us += count * between(size, known, [one.pick_us for one in sizes])
            best_us += count * between(size, known, [one.best_us for one in sizes])
        return Total(sum(histogram.values()), pick_us, best_us, pick_us / best_us - 1 if best_us else 0.0)


@dataclass(frozen=True, slots=True)
class Total:
    """All calls of a histogram, by NCCL's picks and by the best; ``regret`` is the first over the second, minus 1."""

    calls: float
    pick_us: float
    best_us: float
    regret: float


def compare(path: Path) -> Comparison:
    """A file of any kind that has measurements, judged. BadMeasurement where nothing in it can be."""
    measurements = read_any(path)
    comparison = Comparison(measurements, model_of(measurements))
    if not comparison.sizes:
        why = comparison.skipped[0].reason if comparison.skipped else "it has no times that count"
        raise BadMeasurement(f"{path}: nothing to judge: {why}")
    return comparison


def mean_regrets(sizes: Sequence[Judged]) -> tuple[float, float] | None:
    """The mean of all at which enough else was measured, and what of it is beyond the noise; None without any."""
    known = [one for one in sizes if one.is_known]
    if not known:
        return None
    beyond = sum(one.regret for one in known if one.significant)
    return sum(one.regret for one in known) / len(known), beyond / len(known)


def fewest_segments(
    allowed: Sequence[frozenset[Combination]],
) -> list[tuple[int, int, frozenset[Combination]]]:
    """[start, stop) in order with what is allowed in all of each, as few as there can be."""
    segments, start = [], 0
    while start < len(allowed):
        stop, common = start + 1, allowed[start]
        while stop < len(allowed) and common & allowed[stop]:
            common &= allowed[stop]
            stop += 1
        segments.append((start, stop, common))
        start = stop
    return segments


def _likeliest(sizes: Sequence[Judged], common: frozenset[Combination]) -> Combination:
    """Of those that may be best at all of the sizes, the one that is at most of them."""
    bests = [one.best for one in sizes]
    return max(sorted(common), key=bests.count)


def between(size: int, sizes: Sequence[int], times_us: Sequence[float]) -> float:
    """The time of a size among measured ones: straight between them in logarithms of both."""
    index = min(bisect_right(sizes, size), len(sizes) - 1)
    low, high = max(0, index - 1), index
    if sizes[low] == sizes[high]:
        return times_us[low]
    part = np.log(size / sizes[low]) / np.log(sizes[high] / sizes[low])
    return float(np.exp((1 - part) * np.log(times_us[low]) + part * np.log(times_us[high])))
