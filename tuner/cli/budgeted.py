"""A budget as tables for people."""

from collections import Counter
from typing import Any

import click

from tuner.base.names import Op
from tuner.budget.buckets import buckets
from tuner.budget.calls import number
from tuner.cli.output import human_bytes, print_table

TOP = 10  # rows of what makes up a difference or a regret
LEAST_US = 0.5  # of a difference where the pick is the same: the last figure that is shown


def show(title: str, answered: dict[str, Any], exact: bool) -> None:
    """``exact``: a row for every size, else one for each power of two."""
    for file in answered["files"]:
        click.echo(f"{file['file']}: {file['kind']}, {number(file['calls'])} calls; size: {file['sizes']}")
    base, *others = answered["variants"]
    calls, total_ms = number(base["priced_calls"]), _ms(base["total_us"])
    click.echo(f"{title}: {calls} calls, {total_ms} ms predicted, one after the other\n")
    _print_sizes(answered["entries"], exact)
    parts = [(part["collective"], *_part(part)) for part in base["by_collective"]]
    parts += [(f"{part['algorithm']}/{part['protocol']}", *_part(part)) for part in base["by_combination"]]
    print_table("where it goes", ("by", "calls", "total ms", "share"), parts)
    if others:
        columns = ("release and setting", "total ms", "difference ms", "difference")
        print_table("by release and setting", columns, map(_column, answered["variants"]))
    for other in others:
        _print_changes(base["name"], other)
    if base["kernels"]:
        _print_kernels(answered["entries"], base["kernels"])
    for at, variant in enumerate(answered["variants"]):
        if variant["regret"]:
            _print_regret(variant, [(entry, entry["prices"][at]) for entry in answered["entries"]])
        _print_unpriced(variant, [(entry, entry["prices"][at]) for entry in answered["entries"]])
    for left in answered["left_out"]:
        kernels = f", kernels of {_ms(left['kernels_us'])} ms" if left["kernels_us"] else ""
        click.echo(f"left out: {number(left['calls'])} x {left['name']}: {left['reason']}{kernels}")
    for note in answered["notes"]:
        click.echo(f"note: {note}")


SIZE_COLUMNS = ("collective", "type", "size", "calls", "pick", "time us", "total ms", "share")


def _part(part: dict[str, Any]) -> tuple[object, ...]:
    return number(part["calls"]), _ms(part["total_us"]), _percent(part["share"])


def _print_sizes(entries: list[dict[str, Any]], exact: bool) -> None:
    if exact:
        print_table("by size", SIZE_COLUMNS, [_size(entry) for entry in entries])
    else:
        print_table("by sizes together", SIZE_COLUMNS, [_bucket(row) for row in buckets(entries)])


def _size(entry: dict[str, Any]) -> tuple[object, ...]:
    price = entry["prices"][0]
    kind = (*_kind(entry), number(entry["calls"]))
    if "reason" in price:
        return (*kind, *4 * ("-",))
    return (*kind, _cell(price), f"{price['time_us']:.2f}", _ms(price["total_us"]), _percent(price["share"]))


def _bucket(row: dict[str, Any]) -> tuple[object, ...]:
    pick, *more = row["picks"]
    return (
        row["collective"],
        ", ".join(row["dtypes"]),
        f"from {human_bytes(row['from_bytes'])}",
        number(row["calls"]),
        f"{pick} and {len(more)} more" if more else pick,
        f"{row['time_us']:.2f}",
        _ms(row["total_us"]),
        _percent(row["share"]),
    )


def _column(variant: dict[str, Any]) -> tuple[object, ...]:
    difference = ("-", "-")
    if variant["changes"]:
        difference = f"{variant['difference_us'] / 1000:+.3f}", f"{100 * variant['difference']:+.1f} %"
    return variant["name"], _ms(variant["total_us"]), *difference


CHANGE_COLUMNS = ("collective", "type", "size", "calls", "from", "to", "us each", "now us", "difference ms")


def _print_changes(base: str, other: dict[str, Any]) -> None:
    changes = other["changes"]
    changes = [each for each in changes if each["from"] != each["to"] or abs(each["difference_us"]) >= LEAST_US]
    if not changes:
        click.echo(f"{other['name']}: the picks of {base}, and its times within {LEAST_US} us\n")
        return
    rows = [
        (
            *_kind(change),
            number(change["calls"]),
            change["from"],
            change["to"],
            f"{change['from_us']:.2f}",
            f"{change['to_us']:.2f}",
            f"{change['difference_us'] / 1000:+.3f}",
        )
        for change in changes[:TOP]
    ]
    print_table(f"what makes up the difference of {other['name']} to {base}", CHANGE_COLUMNS, rows)
    if rest := changes[TOP:]:
        click.echo(f"and {len(rest)} more: {sum(each['difference_us'] for each in rest) / 1000:+.3f} ms\n")


KERNEL_COLUMNS = ("collective", "type", "size", "calls", "kernels", "least us", "median us", "predicted us", "ratio")


def _print_kernels(entries: list[dict[str, Any]], total: dict[str, Any]) -> None:
    rows = []
    for entry in entries:
        kernels, price = entry["kernels"], entry["prices"][0]
        if kernels and "reason" not in price:
            ratio = kernels["median_us"] / price["time_us"]
            rows.append(
                (
                    *_kind(entry),
                    number(entry["calls"]),
                    kernels["calls"],
                    f"{kernels['least_us']:.2f}",
                    f"{kernels['median_us']:.2f}",
                    f"{price['time_us']:.2f}",
                    f"{ratio:.2f}",
                )
            )
    print_table("kernels of the trace; they also wait for other ranks", KERNEL_COLUMNS, rows)
    click.echo(
        f"{total['calls']} kernels took {_ms(total['measured_us'])} ms; predicted {_ms(total['predicted_us'])} ms\n"
    )


REGRET_COLUMNS = ("collective", "type", "size", "calls", "pick", "measured us", "best", "us", "lost ms", "sizes")


def _print_regret(variant: dict[str, Any], rows: list[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    total = variant["regret"]
    lost = [(entry, price) for entry, price in rows if price.get("measured", {}).get("regret_us", 0) > 0]
    lost.sort(key=lambda row: -row[1]["measured"]["regret_us"])
    if lost:
        cells = [
            (
                *_kind(entry),
                number(entry["calls"]),
                _cell(price),
                f"{price['measured']['pick_us']:.2f}",
                price["measured"]["best"],
                f"{price['measured']['best_us']:.2f}",
                _ms(price["measured"]["regret_us"]),
                "between" if price["measured"]["interpolated"] else "measured",
            )
            for entry, price in lost[:TOP]
        ]
        more = f", {len(lost) - TOP} sizes more" if len(lost) > TOP else ""
        print_table(f"what the picks of {variant['name']} lose by {total['file']}{more}", REGRET_COLUMNS, cells)
    reasons: Counter[str] = Counter()
    for entry, price in rows:
        if "reason" in price.get("measured", {}):
            reasons[f"{entry['collective']}: {price['measured']['reason']}"] += entry["calls"]
    click.echo(
        f"{variant['name']}: {number(total['calls'])} calls take {_ms(total['pick_us'])} ms by measured times, "
        f"{_ms(total['best_us'])} ms by the best: regret {_ms(total['regret_us'])} ms, {_percent(total['regret'])}; "
        f"{number(total['interpolated_calls'])} of them between measured sizes"
    )
    for reason, calls in reasons.items():
        click.echo(f"not measured: {number(calls)} calls, {reason}")
    click.echo()


def _print_unpriced(variant: dict[str, Any], rows: list[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    for entry, price in rows:
        if "reason" in price:
            kind = " ".join(_kind(entry))
            click.echo(f"no price in {variant['name']}: {number(entry['calls'])} x {kind}: {price['reason']}")


def _kind(record: dict[str, Any]) -> tuple[str, ...]:
    op = "" if record["op"] == Op.sum.name else f" {record['op']}"
    return record["collective"], record["dtype"] + op, human_bytes(record["bytes"])


def _cell(price: dict[str, Any]) -> str:
    return f"{price['algorithm']}/{price['protocol']}"


def _ms(time_us: float) -> str:
    return f"{time_us / 1000:.3f}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
