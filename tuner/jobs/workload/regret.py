"""Predicted picks against measured times: what the pick of a size takes, and what the best measured there does."""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadMeasurement
from tuner.jobs.workload.count import Entry
from tuner.jobs.workload.price import Price
from tuner.scenario import Scenario
from tuner.times.evidence import Evidence, by_size, collect
from tuner.times.measured.formats import read_any
from tuner.times.measured.header import check
from tuner.times.measured.samples import Combination, Measurements
from tuner.times.verify import between


@dataclass(frozen=True, slots=True)
class JudgedCall:
    """One call: measured time of the pick and of the best; ``interpolated`` between two measured sizes."""

    pick_us: float
    best: Combination
    best_us: float
    interpolated: bool


@dataclass(frozen=True, slots=True)
class NotMeasured:
    """Reason why a call has no regret."""

    reason: str


@dataclass(eq=False)
class MeasuredRuns:
    """A file of measurements of the described communicator."""

    measurements: Measurements
    file: Path
    notes: tuple[str, ...] = ()

    @cached_property
    def _sizes(self) -> Mapping[int, dict[int, Evidence]]:
        """Evidence by collective's number and size, in the order of sizes; all kinds of calls of a size are one."""
        by_collective: dict[int, dict[int, Evidence]] = {}
        for (collective, size), evidence in by_size(collect(self.measurements.blocks)).items():
            by_collective.setdefault(collective, {})[size] = evidence
        return by_collective

    def judge(self, entry: Entry, price: Price) -> JudgedCall | NotMeasured:
        """Between two measured sizes each combination's time is straight in logarithms of both, as in ``verify``."""
        evidence = self._sizes.get(entry.request.collective, {})
        sizes = list(evidence)
        if not sizes:
            return NotMeasured(f"no {entry.request.collective.name} in the file")
        at = bisect_left(sizes, entry.bytes)
        ends = [entry.bytes] if entry.bytes in evidence else sizes[max(0, at - 1) : at + 1]
        if not ends[0] <= entry.bytes <= ends[-1]:
            return NotMeasured(f"the file has {sizes[0]} to {sizes[-1]} bytes")
        times = [_times_us(evidence[size], price) for size in ends]
        known = {
            each: between(entry.bytes, ends, [time_us[each] for time_us in times])
            for each in times[0]
            if all(each in time_us for time_us in times)
        }
        pick = _combination(price)
        if pick not in known:
            return NotMeasured(f"{pick} was not measured")
        best = min(known, key=lambda each: (known[each], each != pick))
        return JudgedCall(known[pick], best, known[best], len(ends) > 1)


def _combination(price: Price) -> Combination:
    return Combination(price.algorithm, price.protocol, 0 if price.own_channels else price.channels)


def _times_us(evidence: Evidence, price: Price) -> dict[Combination, float]:
    """Measured times by combination; one with the channels that NCCL takes by itself is without them."""
    own = Combination(price.algorithm, price.protocol, price.channels) if price.own_channels else None
    times_us: dict[Combination, float] = {}
    for column in evidence.columns:
        ran = column or (None if evidence.executed is None else replace(evidence.executed, channels=0))
        if ran is not None:
            times_us.setdefault(replace(ran, channels=0) if ran == own else ran, evidence.time_us(column))
    return times_us


def read(path: Path, scenario: Scenario) -> MeasuredRuns:
    """BadMeasurement where the file has no times, or is of another communicator."""
    measurements = read_any(path)
    header = measurements.header
    check(path, header, scenario)
    if header.scenario is not None:
        origin = f"{header.origin}, which no machine took"
        note = f"{path}: {origin if header.is_simulated else f'measured with NCCL {header.scenario.nccl}'}"
    else:
        note = f"{path} does not describe the communicator that was measured: taken as this one"
    if not any(block.counts and block.table is None for block in measurements.blocks):
        raise BadMeasurement(f"{path}: no times in it that count")
    return MeasuredRuns(measurements, path, (note,))
