"""A budget as tables for people."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from tuner.answers.calibrated import CalibratedTime
from tuner.base.dataclass import dataclass
from tuner.base.names import Op
from tuner.cli import times
from tuner.cli.exchanges import in_words
from tuner.cli.output import human_bytes, print_table, say, span
from tuner.jobs.traces.calls import number
from tuner.jobs.workload.buckets import Bucket, buckets
from tuner.jobs.workload.exchanges import ExchangesOf
from tuner.jobs.workload.priced import (
    AllKernels,
    AllToAllBudget,
    Budget,
    BudgetRegret,
    EntryPrices,
    MeasuredPrice,
    NoPrice,
    OfCollective,
    OfCombination,
    OfKernel,
    Part,
    PriceOf,
    SizedCall,
    VariantBudget,
)
from tuner.jobs.workload.regret import NotMeasured

MOST_ROWS = 32  # of sizes one by one
TOP = 10  # rows of what makes up a difference or a regret
LEAST_US = 0.5  # of a difference where the pick is the same: the last figure that is shown


@dataclass(frozen=True, slots=True)
class Shown:
    """``exact``: a row for every size, else one for each power of two. ``nccl`` and ``calibrated``: whose times.

    ``overlap``: the SMs that calls take as well.
    """

    exact: bool
    nccl: bool
    calibrated: bool
    overlap: bool

    def of(self, own: Sequence[object], by_nccl: Sequence[object], by_calibration: Sequence[object]) -> list[object]:
        """What a row begins with, and the times that are shown."""
        return [*own, *(by_nccl if self.nccl else ()), *(by_calibration if self.calibrated else ())]


def show(title: str, budget: Budget, asked: Shown) -> None:
    """The budget; where no calibration answers, NCCL's times alone, and why."""
    for file in budget.files:
        say(f"{file.file}: {file.kind}, {number(file.calls)} calls; size: {file.sizes}")
    base, *others = budget.variants
    shown = asked if base.calibrated else replace(asked, nccl=True, calibrated=False)
    if not budget.entries:
        say(f"{title}: sends and receives alone")
        _print_left_out(budget)
        return
    say(f"{title}: {number(base.priced_calls)} calls, {_totals(base, shown)}, one after the other\n")
    _print_sizes(budget.entries, shown)
    parts = [_part(part, shown) for parts in (base.by_collective, base.by_combination) for part in parts]
    columns = shown.of(("by", "calls"), ("NCCL ms", "share"), CALIBRATED_MS)
    print_table("where it goes", [str(name) for name in columns], parts)
    if others:
        columns = shown.of(
            ("release and setting",),
            ("NCCL ms", "difference ms", "difference"),
            (*CALIBRATED_MS, "difference by measurements"),
        )
        rows = [_column(variant, shown) for variant in budget.variants]
        print_table("by release and setting", [str(name) for name in columns], rows)
    for other in others if shown.nccl else ():
        _print_changes(base.name, other)
        _print_apart(base.name, other)
    if base.kernels:
        _print_kernels(budget.entries, base.kernels)
    for at, variant in enumerate(budget.variants):
        prices = [(entry, entry.prices[at]) for entry in budget.entries]
        if variant.regret:
            _print_regret(variant.name, variant.regret, prices)
        _print_unpriced(variant.name, prices)
    _print_left_out(budget)
    _print_whose(budget, shown)


def _print_left_out(budget: Budget) -> None:
    for left in budget.left_out:
        kernels = f", kernels of {_ms(left.kernels_us)} ms" if left.kernels_us else ""
        say(f"left out: {left}{kernels}")
    for note in budget.notes:
        say(f"note: {note}")
    for variant in budget.variants[:1]:
        _print_exchanges(variant.name, variant.exchanges)


def _print_exchanges(variant: str, exchanges: Sequence[ExchangesOf]) -> None:
    """Sends, receives and AllToAlls of the first variant, which have no time."""
    if not exchanges:
        return
    rows = [
        (
            each.call.name,
            human_bytes(each.bytes),
            number(each.calls),
            human_bytes(int(each.total_bytes)),
            each.kernels,
            each.channels,
            *(in_words(way for way in each.ways if way.network == network) for network in (False, True)),
        )
        for each in exchanges
    ]
    columns = ("call", "size", "calls", "bytes of all", "kernels", "SMs", "same node", "other nodes")
    print_table(f"sends and receives with {variant}: no time model of NCCL, in no total", columns, rows)


def _totals(base: VariantBudget, shown: Shown) -> str:
    by = "NCCL's model with fitted constants" if base.constants.fitted else "NCCL's own prediction"
    parts = [f"{_ms(base.total_us)} ms by {by}"] if shown.nccl else []
    if shown.nccl and base.symmetric_us is not None:
        parts.append(f"{_ms(base.symmetric_us)} ms of it by NCCL's model of symmetric kernels")
    if shown.calibrated and base.calibrated:
        total = base.calibrated.total
        parts.append(f"{times.central(total, 1e3, 3)} ms by measurements (90 %: {times.interval(total, 1e3, 3)})")
    return ", ".join(parts)


def _print_whose(budget: Budget, shown: Shown) -> None:
    used = [variant.calibration for variant in budget.variants if variant.calibration]
    for variant in budget.variants:
        if variant.all_to_all:
            _print_all_to_all(variant.name, variant.all_to_all)
    if used:
        say(times.whose_of_all(used))
    if any(variant.symmetric_us is not None for variant in budget.variants):
        say("calls on symmetric kernels: by NCCL's own model of them; no measured times of them are known")
    say(f"{times.ALONE}{'' if shown.overlap else '; --overlap says what SMs they take'}")
    for variant in budget.variants if shown.overlap else ():
        if sms := variant.channels:
            least = f"{sms.least} to " if sms.least < sms.most else ""
            say(
                f"{variant.name}: a call takes {least}{sms.most} SMs of each GPU from compute, one a channel, "
                f"{sms.mean:.1f} on average over the predicted time; {times.COST_UNKNOWN}"
            )


def _print_all_to_all(variant: str, exchanges: AllToAllBudget) -> None:
    extrapolated = "" if exchanges.measured else ", never measured between nodes, so extrapolated"
    time_ms, interval_ms = times.central(exchanges.time, 1e3, 3), times.interval(exchanges.time, 1e3, 3)
    say(
        f"{variant}: {number(exchanges.calls)} AllToAll take {time_ms} ms by measurements "
        f"(90 %: {interval_ms}){extrapolated}; in no total"
    )


CALIBRATED_US = ("calibrated us", f"{times.INTERVAL} us", "calibrated ms")
CALIBRATED_MS = ("calibrated ms", f"{times.INTERVAL} ms")


def _part(part: Part[OfCollective] | Part[OfCombination | OfKernel], shown: Shown) -> list[object]:
    by_nccl = _ms(part.total_us), _percent(part.share)
    return shown.of((part.of.name, number(part.calls)), by_nccl, _calibrated_ms(part.calibrated))


def _calibrated_ms(time: CalibratedTime | None) -> tuple[str, str]:
    return times.central(time, 1e3, 3), times.interval(time, 1e3, 3)


def _print_sizes(entries: Sequence[EntryPrices], shown: Shown) -> None:
    own = ("collective", "type", "size", "calls", "pick", *(["SMs"] if shown.overlap else []))
    columns = [str(name) for name in shown.of(own, ("NCCL us", "NCCL ms", "share"), CALIBRATED_US)]
    if shown.exact:
        print_table("by size", columns, [_size(entry, shown) for entry in entries])
    else:
        print_table("by sizes together", columns, [_bucket(row, shown) for row in buckets(entries)])


def _size(entry: EntryPrices, shown: Shown) -> list[object]:
    price = entry.prices[0]
    kind = (*_kind(entry.call), number(entry.calls))
    if isinstance(price, NoPrice):
        return shown.of((*kind, *(2 if shown.overlap else 1) * ("-",)), 3 * ("-",), 3 * ("-",))
    calibrated = price.calibrated
    each, total = (calibrated.each, calibrated.total) if calibrated else (None, None)
    return shown.of(
        (*kind, price.name, *([price.channels] if shown.overlap else [])),
        (f"{price.time_us:.2f}", _ms(price.total_us), _percent(price.share)),
        (times.central(each), times.interval(each), times.central(total, 1e3, 3)),
    )


def _bucket(row: Bucket, shown: Shown) -> list[object]:
    pick, *more = row.picks
    total = row.calibrated
    each = total.times(1 / row.calls) if total and row.calls else None
    picks = f"{pick} and {len(more)} more" if more else pick
    kind = row.collective.name, ", ".join(row.dtypes), f"from {human_bytes(row.from_bytes)}", number(row.calls)
    return shown.of(
        (*kind, picks, *([span(row.channels)] if shown.overlap else [])),
        (f"{row.time_us:.2f}", _ms(row.total_us), _percent(row.share)),
        (times.central(each), times.interval(each), times.central(total, 1e3, 3)),
    )


def _column(variant: VariantBudget, shown: Shown) -> list[object]:
    by_nccl, by_calibration = ("-", "-"), "-"
    if variant.changes:
        by_nccl = f"{variant.difference_us / 1000:+.3f}", f"{100 * variant.difference:+.1f} %"
        if calibrated := variant.calibrated:
            by_calibration = times.change_between(
                calibrated.compared.difference_low, calibrated.compared.difference_high
            )
    total = variant.calibrated.total if variant.calibrated else None
    return shown.of((variant.name,), (_ms(variant.total_us), *by_nccl), (*_calibrated_ms(total), by_calibration))


CHANGE_COLUMNS = ("collective", "type", "size", "calls", "from", "to", "us each", "now us", "difference ms")


def _print_changes(base: str, other: VariantBudget) -> None:
    changes = [each for each in other.changes if each.before != each.after or abs(each.difference_us) >= LEAST_US]
    if not changes and not other.not_compared_calls:
        say(f"{other.name}: the picks of {base}, and its times within {LEAST_US} us\n")
    if not changes:
        return
    rows = [
        (
            *_kind(change.call),
            number(change.calls),
            change.before,
            change.after,
            f"{change.before_us:.2f}",
            f"{change.after_us:.2f}",
            f"{change.difference_us / 1000:+.3f}",
        )
        for change in changes[:TOP]
    ]
    print_table(f"what makes up the difference of {other.name} to {base}, by NCCL's prediction", CHANGE_COLUMNS, rows)
    if rest := changes[TOP:]:
        say(f"and {len(rest)} more: {sum(each.difference_us for each in rest) / 1000:+.3f} ms\n")


def _print_apart(base: str, other: VariantBudget) -> None:
    """Calls whose times are by two of NCCL's models, which no difference has."""
    if other.not_compared_calls:
        calls = number(other.not_compared_calls)
        say(f"not compared: {calls} calls on a symmetric kernel in one of {other.name} and {base}, {OTHER_MODEL}\n")


OTHER_MODEL = "by an algorithm in the other: NCCL does not compare the two models"
KERNEL_COLUMNS = ("collective", "type", "size", "calls", "kernels", "least us", "median us", "predicted us", "ratio")


def _print_kernels(entries: Sequence[EntryPrices], total: AllKernels) -> None:
    rows = []
    for entry in entries:
        kernels, price = entry.kernels, entry.prices[0]
        if kernels and isinstance(price, PriceOf):
            rows.append(
                (
                    *_kind(entry.call),
                    number(entry.calls),
                    kernels.calls,
                    f"{kernels.least_us:.2f}",
                    f"{kernels.median_us:.2f}",
                    f"{price.time_us:.2f}",
                    f"{kernels.median_us / price.time_us:.2f}",
                )
            )
    print_table("kernels of the trace; they also wait for other ranks", KERNEL_COLUMNS, rows)
    say(f"{total.calls} kernels took {_ms(total.measured_us)} ms; predicted {_ms(total.predicted_us)} ms\n")


REGRET_COLUMNS = ("collective", "type", "size", "calls", "pick", "us", "best", "us", "lost ms", "sizes")


def _print_regret(variant: str, total: BudgetRegret, rows: Sequence[tuple[EntryPrices, PriceOf | NoPrice]]) -> None:
    priced = [(entry, price) for entry, price in rows if isinstance(price, PriceOf)]
    lost = [
        (entry, price, measured)
        for entry, price in priced
        if isinstance(measured := price.measured, MeasuredPrice) and measured.regret_us > 0
    ]
    lost.sort(key=lambda row: -row[2].regret_us)
    if lost:
        cells = [
            (
                *_kind(entry.call),
                number(entry.calls),
                price.name,
                f"{measured.pick_us:.2f}",
                measured.best,
                f"{measured.best_us:.2f}",
                _ms(measured.regret_us),
                "between" if measured.interpolated else total.times,
            )
            for entry, price, measured in lost[:TOP]
        ]
        more = f", {len(lost) - TOP} sizes more" if len(lost) > TOP else ""
        title = f"what the picks of {variant} lose by the {total.times} times of {total.file}{more}"
        print_table(title, REGRET_COLUMNS, cells)
    reasons: dict[str, float] = defaultdict(float)
    for entry, price in priced:
        if isinstance(price.measured, NotMeasured):
            reasons[f"{entry.call.collective.name}: {price.measured.reason}"] += entry.calls
    say(
        f"{variant}: {number(total.calls)} calls take {_ms(total.pick_us)} ms by {total.times} times, "
        f"{_ms(total.best_us)} ms by the best: regret {_ms(total.regret_us)} ms, {_percent(total.regret)}; "
        f"{number(total.interpolated_calls)} of them between {total.times} sizes"
    )
    for reason, calls in reasons.items():
        say(f"not measured: {number(calls)} calls, {reason}")
    say()


def _print_unpriced(variant: str, rows: Sequence[tuple[EntryPrices, PriceOf | NoPrice]]) -> None:
    for entry, price in rows:
        if isinstance(price, NoPrice):
            kind = " ".join(_kind(entry.call))
            say(f"no price in {variant}: {number(entry.calls)} x {kind}: {price.reason}")


def _kind(call: SizedCall) -> tuple[str, ...]:
    op = "" if call.op is Op.sum else f" {call.op.name}"
    return call.collective.name, call.dtype.name + op, human_bytes(call.bytes)


def _ms(time_us: float) -> str:
    return f"{time_us / 1000:.3f}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
