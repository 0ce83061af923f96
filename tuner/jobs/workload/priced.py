"""Records of a budget, as ``nccl-tuner budget --json`` prints them. Times are in us, and predicted unless called
measured."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path

from tuner.answers import calibrated
from tuner.answers.calibrated import CalibratedDifference, CalibrationUsed
from tuner.base.dataclass import dataclass
from tuner.base.frames import Rows
from tuner.base.names import Algorithm, Collective, Protocol
from tuner.base.nouns import Call, TimeInterval
from tuner.base.records import json_form
from tuner.jobs.traces.calls import number
from tuner.jobs.workload.count import ExchangesOf, LeftOut
from tuner.jobs.workload.price import Unpriced
from tuner.scenario import ConstantsUsed


@dataclass(frozen=True, slots=True)
class FileCounted:
    """A file that was read: its kind, what it means by size, and its number of calls."""

    file: str
    kind: str
    sizes: str
    calls: float


@dataclass(frozen=True, slots=True)
class Kernels:
    """Measured durations of the kernels of a kind of call."""

    calls: int
    total_us: float
    least_us: float
    median_us: float


@dataclass(frozen=True, slots=True)
class AllKernels:
    """Measured durations of all kernels, and the prediction for the same calls."""

    calls: int
    measured_us: float
    predicted_us: float


@dataclass(frozen=True, slots=True)
class MeasuredPrice:
    """Measured times of one kind of call, us: with NCCL's pick and with the best combination. ``regret_us`` is the
    difference, times the number of such calls."""

    pick_us: float
    best: str
    best_us: float
    interpolated: bool
    regret_us: float


@dataclass(frozen=True, slots=True)
class CalibratedPrice:
    """Time of one call and of all calls by a calibration. ``measured`` says whether the combination was measured for
    the calibration."""

    each: TimeInterval = field(metadata=json_form(merged=True))
    measured: bool
    total: TimeInterval


@dataclass(frozen=True, slots=True)
class PriceOf:
    """Time of a kind of call in a variant: one call and all of them, and their share of the variant's time.

    If ``bypass`` names what runs the call instead of an algorithm, the time is by NCCL's model of symmetric kernels,
    and ``channels`` is the number of blocks.
    """

    variant: str
    algorithm: Algorithm | None
    protocol: Protocol | None
    channels: int
    time_us: float
    total_us: float
    share: float
    measured: MeasuredPrice | Unpriced | None = field(default=None, metadata=json_form(optional=True))
    calibrated: CalibratedPrice | None = field(default=None, metadata=json_form(optional=True))
    bypass: str | None = field(default=None, metadata=json_form("bypass", optional=True))

    @property
    def name(self) -> str:
        """Algorithm and protocol (``Ring/LL``), or the name of what runs the call instead."""
        if self.algorithm is None or self.protocol is None:
            return str(self.bypass)
        return f"{self.algorithm.name}/{self.protocol.name}"


@dataclass(frozen=True, slots=True)
class NoPrice:
    """Reason why a kind of call has no time in a variant."""

    variant: str
    reason: str


@dataclass(frozen=True, slots=True)
class EntryPrices:
    """All calls of one kind and size, with their price in each variant."""

    call: Call = field(metadata=json_form(merged=True))
    calls: float
    kernels: Kernels | None
    prices: tuple[PriceOf | NoPrice, ...]


@dataclass(frozen=True, slots=True)
class PriceChange:
    """How much one kind of call contributes to the difference between two variants."""

    call: Call = field(metadata=json_form(merged=True))
    calls: float
    before: str = field(metadata=json_form("from"))
    after: str = field(metadata=json_form("to"))
    before_us: float = field(metadata=json_form("from_us"))
    after_us: float = field(metadata=json_form("to_us"))
    difference_us: float


@dataclass(frozen=True, slots=True)
class BudgetPart:
    """The calls and the time of one part of a budget, and its share of the time of all calls.

    A part consists of the calls of one collective, of one algorithm and protocol, or of the symmetric kernel
    ``bypass``; names that do not apply are None.
    """

    collective: Collective | None = field(metadata=json_form(optional=True))
    algorithm: Algorithm | None = field(metadata=json_form(optional=True))
    protocol: Protocol | None = field(metadata=json_form(optional=True))
    bypass: str | None = field(metadata=json_form(optional=True))
    calls: float
    total_us: float
    share: float
    calibrated: TimeInterval | None = field(default=None, metadata=json_form(optional=True))

    @property
    def name(self) -> str:
        """Name of the collective, algorithm and protocol (``Ring/LL``), or name of the kernel."""
        if self.collective is not None:
            return self.collective.name
        if self.algorithm is None or self.protocol is None:
            return str(self.bypass)
        return f"{self.algorithm.name}/{self.protocol.name}"


@dataclass(frozen=True, slots=True)
class CalibratedBudget:
    """The time of all calls by a calibration. The bounds are sums of the calls' bounds, as the calibration's error is
    common to all calls.

    ``compared`` is the difference from the first variant, over calls with a price in both. ``not_measured_share`` is
    the share of calls whose combination was never measured.
    """

    total: TimeInterval = field(metadata=json_form(merged=True))
    not_measured_share: float
    compared: CalibratedDifference = field(metadata=json_form(merged=True))


@dataclass(frozen=True, slots=True)
class AllToAllBudget:
    """Measured time of AllToAll, for which NCCL has neither algorithms nor predictions; it is in no total.

    ``measured``: whether such calls were measured on as many nodes, one or several.
    """

    calls: float
    time: TimeInterval = field(metadata=json_form(merged=True))
    measured: bool


@dataclass(frozen=True, slots=True)
class SmsTaken:
    """Numbers of channels of the picks. Each channel is a block of NCCL's kernel, which occupies an SM of every GPU
    while it runs.

    ``mean`` is weighted by the predicted time of the calls.
    """

    least: int
    most: int
    mean: float


@dataclass(frozen=True, slots=True)
class BudgetRegret:
    """Regret by measured times, over the calls whose pick was measured.

    ``unmeasured_share`` is the part of the predicted time that belongs to the other calls, as a fraction of 1.

    ``times`` says where the times come from: ``measured`` or ``simulated``.
    """

    file: str
    calls: float
    interpolated_calls: float
    unmeasured_calls: float
    unmeasured_share: float
    pick_us: float
    best_us: float
    regret_us: float
    regret: float
    times: str


@dataclass(frozen=True, slots=True)
class VariantBudget:
    """All calls in one variant (a release with a setting or table). Differences are from the first variant, over calls
    with a price in both.

    ``changes`` add up to the difference, the largest first; parts are sorted by their time. ``symmetric_us`` is the
    part of ``total_us`` that comes from NCCL's model of symmetric kernels. ``not_compared_calls`` counts calls that run
    on such a kernel in one variant and by an algorithm in the other: NCCL does not compare the two models, so no
    difference includes them.
    """

    name: str
    constants: ConstantsUsed = field(metadata=json_form(merged=True))
    environment: Mapping[str, str]
    table: Path | None
    total_us: float
    priced_calls: float
    unpriced_calls: float
    difference_us: float
    difference: float
    changes: tuple[PriceChange, ...]
    by_collective: tuple[BudgetPart, ...]
    by_combination: tuple[BudgetPart, ...]
    kernels: AllKernels | None
    regret: BudgetRegret | None
    calibrated: CalibratedBudget | None = field(default=None, metadata=json_form(optional=True))
    calibration: CalibrationUsed | None = field(default=None, metadata=json_form(optional=True))
    channels: SmsTaken | None = field(default=None, metadata=json_form(optional=True))
    all_to_all: AllToAllBudget | None = field(default=None, metadata=json_form(optional=True))
    exchanges: tuple[ExchangesOf, ...] = field(default=(), metadata=json_form(optional=True))  # in no total
    symmetric_us: float | None = field(default=None, metadata=json_form(optional=True))
    not_compared_calls: float | None = field(default=None, metadata=json_form(optional=True))


@dataclass(frozen=True, slots=True, repr=False)
class Budget:
    """Predicted times of all calls, one after the other: overlap with each other or with computation is not modelled.

    Only calls on communicators of ``ranks`` ranks are in it; they are priced on a communicator of ``priced_ranks``
    ranks. Shares and ``difference`` are fractions of 1.
    """

    files: tuple[FileCounted, ...]
    ranks: int
    priced_ranks: int
    calls: float
    notes: tuple[str, ...]
    left_out: tuple[LeftOut, ...]
    variants: tuple[VariantBudget, ...]
    entries: tuple[EntryPrices, ...]

    def __repr__(self) -> str:
        variants = ", ".join(f"{variant.name} {variant.total_us / 1000:.3f} ms" for variant in self.variants)
        return f"<{type(self).__name__}: {number(self.calls)} calls, {variants}>"

    @property
    def by_size(self) -> "Rows[CallPrice]":
        """A row for each kind and size of call and each variant that prices it; also available as a frame."""
        return Rows(
            tuple(
                CallPrice(entry.call, entry.calls, price)
                for entry in self.entries
                for price in entry.prices
                if isinstance(price, PriceOf)
            )
        )


@dataclass(frozen=True, slots=True)
class CallPrice:
    """All calls of one kind and size, and their time in one variant."""

    call: Call = field(metadata=json_form(merged=True))
    calls: float
    price: PriceOf = field(metadata=json_form(merged=True))


@dataclass(frozen=True, slots=True)
class Bucket:
    """Calls of a collective with sizes from ``from_bytes`` (a power of two) to ``to_bytes`` (the next one minus 1).
    Times are in us.

    ``picks`` are sorted by their time, the longest first; ``channels`` are ascending. ``calibrated`` is the calibrated
    time of all calls; None without a calibration.
    """

    collective: Collective
    from_bytes: int
    to_bytes: int
    dtypes: tuple[str, ...]
    calls: float
    picks: tuple[str, ...]
    time_us: float
    total_us: float
    share: float
    channels: tuple[int, int]
    calibrated: TimeInterval | None


def buckets(entries: Sequence[EntryPrices]) -> list[Bucket]:
    """Groups the entries of a budget by collective and power of two of the size, with their prices in the first
    variant.

    Entries without a price in the first variant are in no bucket.
    """
    parts: dict[tuple[Collective, int], list[tuple[EntryPrices, PriceOf]]] = defaultdict(list)
    for entry in entries:
        price = entry.prices[0]
        if isinstance(price, PriceOf):
            parts[entry.call.collective, entry.call.bytes.bit_length()].append((entry, price))
    return [_bucket(collective, bits, part) for (collective, bits), part in parts.items()]


def _bucket(collective: Collective, bits: int, part: Sequence[tuple[EntryPrices, PriceOf]]) -> Bucket:
    picks: dict[str, float] = defaultdict(float)
    for _, price in part:
        picks[price.name] += price.total_us
    calls = sum(entry.calls for entry, _ in part)
    total_us = sum(picks.values())
    channels = [price.channels for _, price in part]
    times = [price.calibrated.total for _, price in part if price.calibrated]
    return Bucket(
        collective=collective,
        from_bytes=1 << (bits - 1),
        to_bytes=(1 << bits) - 1,
        dtypes=tuple(sorted({entry.call.dtype.name for entry, _ in part})),
        calls=calls,
        picks=tuple(sorted(picks, key=lambda pick: -picks[pick])),
        time_us=total_us / calls if calls else 0.0,
        total_us=total_us,
        share=sum(price.share for _, price in part),
        channels=(min(channels), max(channels)),
        calibrated=calibrated.together(times) if times else None,
    )
