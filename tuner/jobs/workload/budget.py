"""Computes a job's budget: prices each kind of call in each variant, adds up and compares."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from statistics import median

import numpy as np

from tuner.answers import calibrated
from tuner.answers.calibrated import (
    Answering,
    CalibratedEstimate,
    CalibrationUsed,
    NoCalibration,
    TimesWanted,
    difference,
)
from tuner.base.dataclass import dataclass
from tuner.base.errors import BadMeasurement
from tuner.base.names import AlgoProto, Algorithm, Buffers, Collective, Protocol
from tuner.base.nouns import Call, TimeInterval
from tuner.emulator.request import Request
from tuner.emulator.selection import Picks, Selection
from tuner.jobs.traces.calls import CallList, WantedCalls
from tuner.jobs.workload import count
from tuner.jobs.workload.count import Counted, Entry
from tuner.jobs.workload.price import BudgetVariant, Price, Unpriced, prices
from tuner.jobs.workload.priced import (
    AllKernels,
    AllToAllBudget,
    Budget,
    BudgetPart,
    BudgetRegret,
    CalibratedBudget,
    CalibratedPrice,
    EntryPrices,
    FileCounted,
    Kernels,
    MeasuredPrice,
    NoPrice,
    PriceChange,
    PriceOf,
    SmsTaken,
    VariantBudget,
)
from tuner.scenario import Scenario
from tuner.times.evidence import Evidence, by_size, collect
from tuner.times.measured.formats import read_any
from tuner.times.measured.header import check
from tuner.times.measured.samples import Combination, Measurements
from tuner.times.timemodel.predict import TimeModel
from tuner.times.verify import between


@dataclass(eq=False)
class MeasuredRuns:
    """A file of measurements of the described communicator."""

    measurements: Measurements
    file: Path
    notes: tuple[str, ...] = ()

    @cached_property
    def _sizes(self) -> Mapping[int, dict[int, Evidence]]:
        """Measured evidence keyed by the number of the collective, then by size in ascending order; all kinds of calls
        of a size are merged."""
        by_collective: dict[int, dict[int, Evidence]] = {}
        for (collective, size), evidence in by_size(collect(self.measurements.blocks)).items():
            by_collective.setdefault(collective, {})[size] = evidence
        return by_collective

    def judge(self, entry: Entry, price: Price) -> MeasuredPrice | Unpriced:
        """The regret of an entry's pick, by measured times. Between two measured sizes, times are interpolated linearly
        in logarithms, as in ``verify``.
        """
        if price.algorithm is None or price.protocol is None:
            return Unpriced(f"{price.name}: files of measured times only have algorithms")
        evidence = self._sizes.get(entry.request.collective, {})
        sizes = list(evidence)
        if not sizes:
            return Unpriced(f"the file has no {entry.request.collective.name}")
        at = bisect_left(sizes, entry.bytes)
        ends = [entry.bytes] if entry.bytes in evidence else sizes[max(0, at - 1) : at + 1]
        if not ends[0] <= entry.bytes <= ends[-1]:
            return Unpriced(f"the file only has sizes from {sizes[0]} to {sizes[-1]} bytes")
        times = [_times_us(evidence[size], price) for size in ends]
        known = {
            each: between(entry.bytes, ends, [time_us[each] for time_us in times])
            for each in times[0]
            if all(each in time_us for time_us in times)
        }
        pick = Combination(price.algorithm, price.protocol, 0 if price.own_channels else price.channels)
        if pick not in known:
            return Unpriced(f"{pick} was not measured")
        best = min(known, key=lambda each: (known[each], each != pick))
        regret_us = entry.calls * (known[pick] - known[best])
        return MeasuredPrice(known[pick], str(best), known[best], len(ends) > 1, regret_us)


def _times_us(evidence: Evidence, price: Price) -> dict[Combination, float]:
    """Measured times keyed by combination; a combination with NCCL's own channels is named without channels."""
    own = None
    if price.algorithm is not None and price.protocol is not None and price.own_channels:
        own = Combination(price.algorithm, price.protocol, price.channels)
    times_us: dict[Combination, float] = {}
    for column in evidence.columns:
        ran = column or (None if evidence.executed is None else replace(evidence.executed, channels=0))
        if ran is not None:
            times_us.setdefault(replace(ran, channels=0) if ran == own else ran, evidence.time_us(column))
    return times_us


def read_runs(path: Path, scenario: Scenario) -> MeasuredRuns:
    """Reads a file of measured times. BadMeasurement if it has none, or is from another communicator."""
    measurements = read_any(path)
    header = measurements.header
    check(path, header, scenario)
    if header.scenario is not None:
        origin = f"{header.origin}: times that were not measured on a real machine"
        note = f"{path}: {origin if header.is_simulated else f'measured with NCCL {header.scenario.nccl}'}"
    else:
        note = f"{path} does not describe the communicator that was measured; it is assumed to be this one"
    if not any(block.counts and block.table is None for block in measurements.blocks):
        raise BadMeasurement(f"{path}: has no times that count")
    return MeasuredRuns(measurements, path, (note,))


@dataclass(frozen=True, slots=True)
class _Priced:
    """An entry with its price in one variant; ``judged`` is None without measurements, ``estimate`` is None without a
    calibration."""

    entry: Entry
    price: Price
    judged: MeasuredPrice | Unpriced | None
    estimate: CalibratedEstimate | None

    @property
    def total_us(self) -> float:
        return self.entry.calls * self.price.time_us

    @property
    def calibrated(self) -> TimeInterval | None:
        return None if self.estimate is None else self.estimate.time.times(self.entry.calls)


@dataclass(frozen=True, slots=True)
class _Column:
    """A variant's rows, one for each entry; ``calibration`` is None if calibrated times were not wanted."""

    variant: BudgetVariant
    rows: Sequence[_Priced | Unpriced]
    unpriced_calls: float
    calibration: CalibrationUsed | None
    all_to_all: AllToAllBudget | None

    @property
    def priced(self) -> list[_Priced]:
        return [row for row in self.rows if isinstance(row, _Priced)]


def budget(
    files: Sequence[CallList],
    wanted: WantedCalls,
    counted: Counted,
    variants: Sequence[BudgetVariant],
    measured: MeasuredRuns | None = None,
    times: TimesWanted | None = None,
) -> Budget:
    """The budget of what was ``counted`` in ``files``, for each variant, compared with the first one. Calibrated
    ``times`` are added if they are wanted.

    BadInput for what NCCL's model cannot price, and if no calibration answers; BadCalibration.
    """
    entries = counted.entries
    columns = [_column(variant, counted, measured, times) for variant in variants]
    totals_us = [_total_us(column.priced) for column in columns]
    return Budget(
        files=tuple(
            FileCounted(each.file, each.kind, each.sizes, sum(call.calls for call in each.calls)) for each in files
        ),
        ranks=wanted.ranks,
        priced_ranks=wanted.priced_ranks,
        calls=sum(entry.calls for entry in entries),
        notes=(*counted.notes, *(measured.notes if measured else ())),
        left_out=tuple(counted.left_out),
        variants=tuple(_variant(column, columns[0], measured, counted.exchanges, wanted.buffers) for column in columns),
        entries=tuple(
            EntryPrices(
                _call(entry),
                entry.calls,
                _kernels(entry),
                tuple(
                    _price(column.variant.name, column.rows[at], total_us)
                    for column, total_us in zip(columns, totals_us, strict=True)
                ),
            )
            for at, entry in enumerate(entries)
        ),
    )


def _column(
    variant: BudgetVariant, counted: Counted, measured: MeasuredRuns | None, times: TimesWanted | None
) -> _Column:
    entries = counted.entries
    priced = prices(variant, entries)
    estimates: Sequence[CalibratedEstimate | None] = [None] * len(entries)
    calibration, exchanged = None, None
    if times is not None:
        answers, estimates = _calibrated_times(variant, entries, priced, times)
        named = [
            (price.name, each)
            for price, each in zip(priced, estimates, strict=True)
            if each and isinstance(price, Price)
        ]
        calibration = calibrated.used(answers, named)
        exchanged = all_to_all(answers, counted.all_to_all)
    rows = [
        price
        if isinstance(price, Unpriced)
        else _Priced(entry, price, None if measured is None else measured.judge(entry, price), estimate)
        for entry, price, estimate in zip(entries, priced, estimates, strict=True)
    ]
    unpriced = sum(entry.calls for entry, row in zip(entries, rows, strict=True) if isinstance(row, Unpriced))
    return _Column(variant, rows, unpriced, calibration, exchanged)


def _variant(
    column: _Column, base: _Column, measured: MeasuredRuns | None, exchanges: count.ExchangeCounts, buffers: Buffers
) -> VariantBudget:
    variant, rows = column.variant, column.priced
    both = [
        (before, after)
        for before, after in zip(base.rows, column.rows, strict=True)
        if isinstance(before, _Priced) and isinstance(after, _Priced)
    ]
    by_one_model = [pair for pair in both if (pair[0].price.bypass is None) is (pair[1].price.bypass is None)]
    apart = sum(after.entry.calls for _, after in both) - sum(after.entry.calls for _, after in by_one_model)
    symmetric = [row for row in rows if row.price.bypass is not None]
    changes = _changes(by_one_model)
    difference_us = sum(change.difference_us for change in changes)
    return VariantBudget(
        name=variant.name,
        constants=variant.scenario.constants,
        environment=variant.scenario.environment or {},
        table=variant.table,
        total_us=_total_us(rows),
        priced_calls=sum(row.entry.calls for row in rows),
        unpriced_calls=column.unpriced_calls,
        difference_us=difference_us,
        difference=_share(difference_us, _total_us([before for before, _ in by_one_model])),
        changes=changes,
        by_collective=_parts(rows, lambda row: (row.entry.request.collective, None, None, None)),
        by_combination=_parts(rows, lambda row: (None, row.price.algorithm, row.price.protocol, row.price.bypass)),
        kernels=_all_kernels([row for row in rows if row.entry.kernels_us]),
        regret=None if measured is None else _regret(rows, measured),
        calibrated=_calibrated(rows, both),
        calibration=column.calibration,
        channels=_sms_taken(rows),
        all_to_all=column.all_to_all,
        exchanges=count.launched(variant.scenario, exchanges, buffers),
        symmetric_us=_total_us(symmetric) if symmetric else None,
        not_compared_calls=apart if len(by_one_model) < len(both) else None,
    )


def _calibrated(rows: Sequence[_Priced], both: Sequence[tuple[_Priced, _Priced]]) -> CalibratedBudget | None:
    total = _calibrated_total(rows)
    if total is None:
        return None
    not_measured = _calibrated_total([row for row in rows if row.estimate and not row.estimate.measured])
    pairs = [
        (before.estimate, after.estimate, after.entry.calls)
        for before, after in both
        if before.estimate and after.estimate
    ]
    return CalibratedBudget(
        total=total,
        not_measured_share=_share(not_measured.time_us if not_measured else 0.0, total.time_us),
        compared=difference(pairs),
    )


def _calibrated_total(rows: Sequence[_Priced]) -> TimeInterval | None:
    known = [row.calibrated for row in rows if row.calibrated is not None]
    return calibrated.together(known) if known else None


def _sms_taken(rows: Sequence[_Priced]) -> SmsTaken | None:
    if not rows:
        return None
    channels = [row.price.channels for row in rows]
    weighted = sum(row.price.channels * row.total_us for row in rows)
    return SmsTaken(min(channels), max(channels), _share(weighted, _total_us(rows)))


def _total_us(rows: Sequence[_Priced]) -> float:
    return sum(row.total_us for row in rows)


PartOf = tuple[Collective | None, Algorithm | None, Protocol | None, str | None]  # the first fields of a part


def _parts(rows: Sequence[_Priced], key: Callable[[_Priced], PartOf]) -> tuple[BudgetPart, ...]:
    """Groups calls and times by ``key``, the longest time first."""
    total_us = _total_us(rows)
    by_key: dict[PartOf, list[_Priced]] = defaultdict(list)
    for row in rows:
        by_key[key(row)].append(row)
    parts = [
        BudgetPart(
            *of,
            sum(row.entry.calls for row in part),
            _total_us(part),
            _share(_total_us(part), total_us),
            _calibrated_total(part),
        )
        for of, part in by_key.items()
    ]
    return tuple(sorted(parts, key=lambda part: -part.total_us))


def _changes(both: Sequence[tuple[_Priced, _Priced]]) -> tuple[PriceChange, ...]:
    """Splits the difference between two columns into kinds of calls, the largest contributions first."""
    changes = [
        PriceChange(
            call=_call(after.entry),
            calls=after.entry.calls,
            before=before.price.name,
            after=after.price.name,
            before_us=before.price.time_us,
            after_us=after.price.time_us,
            difference_us=after.total_us - before.total_us,
        )
        for before, after in both
        if before.price != after.price
    ]
    return tuple(sorted(changes, key=lambda change: -abs(change.difference_us)))


def _call(entry: Entry) -> Call:
    request = entry.request
    return Call(request.collective, request.dtype, request.op, entry.bytes)


def _kernels(entry: Entry) -> Kernels | None:
    times_us = entry.kernels_us
    return Kernels(len(times_us), sum(times_us), min(times_us), median(times_us)) if times_us else None


def _all_kernels(rows: Sequence[_Priced]) -> AllKernels | None:
    if not rows:
        return None
    return AllKernels(
        calls=sum(len(row.entry.kernels_us) for row in rows),
        measured_us=sum(sum(row.entry.kernels_us) for row in rows),
        predicted_us=sum(len(row.entry.kernels_us) * row.price.time_us for row in rows),
    )


def _price(variant: str, row: _Priced | Unpriced, total_us: float) -> PriceOf | NoPrice:
    if isinstance(row, Unpriced):
        return NoPrice(variant, row.reason)
    price = row.price
    return PriceOf(
        variant=variant,
        algorithm=price.algorithm,
        protocol=price.protocol,
        channels=price.channels,
        time_us=price.time_us,
        total_us=row.total_us,
        share=_share(row.total_us, total_us),
        measured=row.judged,
        calibrated=_calibrated_price(row),
        bypass=price.bypass,
    )


def _calibrated_price(row: _Priced) -> CalibratedPrice | None:
    if row.estimate is None or row.calibrated is None:
        return None
    return CalibratedPrice(row.estimate.time, row.estimate.measured, row.calibrated)


def _regret(rows: Sequence[_Priced], measured: MeasuredRuns) -> BudgetRegret:
    known = [(row.entry.calls, row.judged) for row in rows if isinstance(row.judged, MeasuredPrice)]
    without = [row for row in rows if not isinstance(row.judged, MeasuredPrice)]
    pick_us = sum(calls * judged.pick_us for calls, judged in known)
    best_us = sum(calls * judged.best_us for calls, judged in known)
    return BudgetRegret(
        file=str(measured.file),
        calls=sum(calls for calls, _ in known),
        interpolated_calls=sum(calls for calls, judged in known if judged.interpolated),
        unmeasured_calls=sum(row.entry.calls for row in without),
        unmeasured_share=_share(_total_us(without), _total_us(rows)),
        pick_us=pick_us,
        best_us=best_us,
        regret_us=pick_us - best_us,
        regret=_share(pick_us - best_us, best_us),
        times=measured.measurements.header.how,
    )


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _calibrated_times(
    variant: BudgetVariant, entries: Sequence[Entry], prices: Sequence[Price | Unpriced], wanted: TimesWanted
) -> tuple[Answering, list[CalibratedEstimate | None]]:
    """The calibration that answers for a variant, and its estimate for each entry: of the pick in ``prices``, with its
    channels; None for an entry without a price, or on a symmetric kernel. Raises BadInput and BadCalibration.
    """
    selection = Selection(variant.scenario.communicator())
    buffers = next((entry.request.buffers for entry in entries), Buffers.plain)
    model = calibrated.answering(wanted, variant.scenario, selection, buffers)
    estimates: list[CalibratedEstimate | None] = [None] * len(entries)
    if isinstance(model, NoCalibration):
        return model, estimates
    alike: dict[tuple[Request, AlgoProto], list[int]] = defaultdict(list)
    for at, (entry, price) in enumerate(zip(entries, prices, strict=True)):
        if isinstance(price, Price) and price.algorithm is not None and price.protocol is not None:
            alike[entry.request, (price.algorithm, price.protocol)].append(at)
    for (request, algo_proto), places in alike.items():
        sizes = [entries[at].bytes for at in places]
        channels = [price.channels for at in places if isinstance(price := prices[at], Price)]
        for at, each in zip(places, _estimates(model, request, algo_proto, (sizes, channels)), strict=True):
            estimates[at] = each
    return model, estimates


def _estimates(
    model: TimeModel, request: Request, algo_proto: AlgoProto, launched: tuple[Sequence[int], Sequence[int]]
) -> list[CalibratedEstimate]:
    """Calibrated estimates for one algorithm and protocol. ``launched`` has the sizes and the number of channels for
    each, which a decision table may have chosen; threads are NCCL's."""
    sizes, channels = np.array(launched[0], np.uint64), np.array(launched[1], np.int64)
    _, threads = model.selection.launched(request, sizes, algo_proto)
    algorithm, protocol = (np.full(sizes.shape, number, np.int8) for number in algo_proto)
    nccl_us = model.selection.combination_us(request, sizes, algo_proto)
    return calibrated.estimates(model, request, Picks(sizes, algorithm, protocol, nccl_us, channels, threads))


def all_to_all(answers: Answering, calls: Mapping[int, float]) -> AllToAllBudget | None:
    """The measured time of all AllToAlls. ``calls`` has the number of calls for each number of bytes that a rank sends
    in total. None if there are no calls, or no measured times for them."""
    if isinstance(answers, NoCalibration) or not calls or answers.calibration.exchange is None:
        return None
    answer = answers.all_to_all(list(calls))
    several = np.array(list(calls.values()))
    time_us, low_us, high_us = (float(each @ several) for each in (answer.time_us, answer.low_us, answer.high_us))
    return AllToAllBudget(float(several.sum()), TimeInterval(time_us, low_us, high_us), bool(answer.measured.all()))
