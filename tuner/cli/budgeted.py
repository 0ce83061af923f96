"""A budget as tables for people."""

from collections import defaultdict
from collections.abc import Sequence

import click

from tuner.base.names import Op
from tuner.cli.output import human_bytes, print_table
from tuner.workload.buckets import Bucket, buckets
from tuner.workload.calls import number
from tuner.workload.priced import (
    AllKernels,
    Budget,
    BudgetRegret,
    EntryPrices,
    MeasuredPrice,
    NoPrice,
    OfCollective,
    OfCombination,
    Part,
    PriceOf,
    SizedCall,
    VariantBudget,
)
from tuner.workload.regret import NotMeasured

TOP = 10  # rows of what makes up a difference or a regret
LEAST_US = 0.5  # of a difference where the pick is the same: the last figure that is shown


def show(title: str, budget: Budget, exact: bool) -> None:
    """``exact``: a row for every size, else one for each power of two."""
    for file in budget.files:
        click.echo(f"{file.file}: {file.kind}, {number(file.calls)} calls; size: {file.sizes}")
    base, *others = budget.variants
    calls, total_ms = number(base.priced_calls), _ms(base.total_us)
    click.echo(f"{title}: {calls} calls, {total_ms} ms predicted, one after the other\n")
    _print_sizes(budget.entries, exact)
    parts = [*map(_part, base.by_collective), *map(_part, base.by_combination)]
    print_table("where it goes", ("by", "calls", "total ms", "share"), parts)
    if others:
        columns = ("release and setting", "total ms", "difference ms", "difference")
        print_table("by release and setting", columns, map(_column, budget.variants))
    for other in others:
        _print_changes(base.name, other)
    if base.kernels:
        _print_kernels(budget.entries, base.kernels)
    for at, variant in enumerate(budget.variants):
        rows = [(entry, entry.prices[at]) for entry in budget.entries]
        if variant.regret:
            _print_regret(variant.name, variant.regret, rows)
        _print_unpriced(variant.name, rows)
    for left in budget.left_out:
        kernels = f", kernels of {_ms(left.kernels_us)} ms" if left.kernels_us else ""
        click.echo(f"left out: {left}{kernels}")
    for note in budget.notes:
        click.echo(f"note: {note}")


SIZE_COLUMNS = ("collective", "type", "size", "calls", "pick", "time us", "total ms", "share")


def _part(part: Part[OfCollective] | Part[OfCombination]) -> tuple[object, ...]:
    return part.of.name, number(part.calls), _ms(part.total_us), _percent(part.share)


def _print_sizes(entries: Sequence[EntryPrices], exact: bool) -> None:
    if exact:
        print_table("by size", SIZE_COLUMNS, map(_size, entries))
    else:
        print_table("by sizes together", SIZE_COLUMNS, map(_bucket, buckets(entries)))


def _size(entry: EntryPrices) -> tuple[object, ...]:
    price = entry.prices[0]
    kind = (*_kind(entry.call), number(entry.calls))
    if isinstance(price, NoPrice):
        return (*kind, *4 * ("-",))
    return (*kind, price.name, f"{price.time_us:.2f}", _ms(price.total_us), _percent(price.share))


def _bucket(row: Bucket) -> tuple[object, ...]:
    pick, *more = row.picks
    return (
        row.collective.name,
        ", ".join(row.dtypes),
        f"from {human_bytes(row.from_bytes)}",
        number(row.calls),
        f"{pick} and {len(more)} more" if more else pick,
        f"{row.time_us:.2f}",
        _ms(row.total_us),
        _percent(row.share),
    )


def _column(variant: VariantBudget) -> tuple[object, ...]:
    difference = ("-", "-")
    if variant.changes:
        difference = f"{variant.difference_us / 1000:+.3f}", f"{100 * variant.difference:+.1f} %"
    return variant.name, _ms(variant.total_us), *difference


CHANGE_COLUMNS = ("collective", "type", "size", "calls", "from", "to", "us each", "now us", "difference ms")


def _print_changes(base: str, other: VariantBudget) -> None:
    changes = [each for each in other.changes if each.before != each.after or abs(each.difference_us) >= LEAST_US]
    if not changes:
        click.echo(f"{other.name}: the picks of {base}, and its times within {LEAST_US} us\n")
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
    print_table(f"what makes up the difference of {other.name} to {base}", CHANGE_COLUMNS, rows)
    if rest := changes[TOP:]:
        click.echo(f"and {len(rest)} more: {sum(each.difference_us for each in rest) / 1000:+.3f} ms\n")


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
    click.echo(f"{total.calls} kernels took {_ms(total.measured_us)} ms; predicted {_ms(total.predicted_us)} ms\n")


REGRET_COLUMNS = ("collective", "type", "size", "calls", "pick", "measured us", "best", "us", "lost ms", "sizes")


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
                "between" if measured.interpolated else "measured",
            )
            for entry, price, measured in lost[:TOP]
        ]
        more = f", {len(lost) - TOP} sizes more" if len(lost) > TOP else ""
        print_table(f"what the picks of {variant} lose by {total.file}{more}", REGRET_COLUMNS, cells)
    reasons: dict[str, float] = defaultdict(float)
    for entry, price in priced:
        if isinstance(price.measured, NotMeasured):
            reasons[f"{entry.call.collective.name}: {price.measured.reason}"] += entry.calls
    click.echo(
        f"{variant}: {number(total.calls)} calls take {_ms(total.pick_us)} ms by measured times, "
        f"{_ms(total.best_us)} ms by the best: regret {_ms(total.regret_us)} ms, {_percent(total.regret)}; "
        f"{number(total.interpolated_calls)} of them between measured sizes"
    )
    for reason, calls in reasons.items():
        click.echo(f"not measured: {number(calls)} calls, {reason}")
    click.echo()


def _print_unpriced(variant: str, rows: Sequence[tuple[EntryPrices, PriceOf | NoPrice]]) -> None:
    for entry, price in rows:
        if isinstance(price, NoPrice):
            kind = " ".join(_kind(entry.call))
            click.echo(f"no price in {variant}: {number(entry.calls)} x {kind}: {price.reason}")


def _kind(call: SizedCall) -> tuple[str, ...]:
    op = "" if call.op is Op.sum else f" {call.op.name}"
    return call.collective.name, call.dtype.name + op, human_bytes(call.bytes)


def _ms(time_us: float) -> str:
    return f"{time_us / 1000:.3f}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
