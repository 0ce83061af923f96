"""The budget in the form other tools rely on: ``nccl-tuner budget --json``."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from tuner.budget.calls import Found
from tuner.budget.count import Counted, Entry, Wanted
from tuner.budget.price import Price, Unpriced, Variant, prices
from tuner.budget.regret import Judged, Measured, NotMeasured

_Row = tuple[Entry, Price]


def budget(
    found: Sequence[Found], counted: Counted, wanted: Wanted, variants: Sequence[Variant],
    measured: Measured | None = None,
) -> dict[str, Any]:
    """Predicted times in us of all calls, one after the other: overlap with each other or with work is not modelled.

    ``variants`` are compared with the first; shares are of 1. Errors: those of :func:`prices`.
    """
    priced = {variant.name: prices(variant, counted.entries) for variant in variants}
    base = priced[variants[0].name]
    totals_us = {name: _total_us(_rows(counted.entries, column)) for name, column in priced.items()}
    return {
        "files": [
            {"file": each.file, "kind": each.kind, "sizes": each.sizes, "calls": sum(call.calls for call in each.calls)}
            for each in found
        ],
        "ranks": wanted.ranks,
        "priced_ranks": wanted.priced_ranks,
        "calls": sum(entry.calls for entry in counted.entries),
        "notes": counted.notes,
        "left_out": [
            {"name": left.name, "reason": left.reason, "calls": left.calls, "kernels_us": left.kernels_us}
            for left in counted.left_out
        ],
        "variants": [
            _variant(variant, counted.entries, priced[variant.name], base, measured) for variant in variants
        ],
        "entries": [
            {
                **_kind(entry), "calls": entry.calls, "kernels": _kernels(entry),
                "prices": [
                    {"variant": name, **_price(entry, column[at], totals_us[name], measured)}
                    for name, column in priced.items()
                ],
            }
            for at, entry in enumerate(counted.entries)
        ],
    }  # fmt: skip


def _variant(
    variant: Variant, entries: Sequence[Entry], priced: Sequence[Price | Unpriced], base: Sequence[Price | Unpriced],
    measured: Measured | None,
) -> dict[str, Any]:
    rows = _rows(entries, priced)
    changes = _changes(entries, base, priced)
    difference_us = sum(change["difference_us"] for change in changes)
    before_us = _total_us([
        (entry, before) for entry, before, after in zip(entries, base, priced, strict=True)
        if isinstance(before, Price) and isinstance(after, Price)
    ])  # fmt: skip
    kernels = [(entry, price) for entry, price in rows if entry.kernels_us]
    return {
        "name": variant.name,
        **variant.case.constants,
        "environment": variant.case.environment or {},
        "table": None if variant.table is None else str(variant.table),
        "total_us": _total_us(rows),
        "priced_calls": sum(entry.calls for entry, _ in rows),
        "unpriced_calls": sum(e.calls for e, p in zip(entries, priced, strict=True) if isinstance(p, Unpriced)),
        "difference_us": difference_us,
        "difference": _share(difference_us, before_us),
        "changes": changes,
        "by_collective": _parts(rows, lambda entry, price: {"collective": entry.request.collective.name}),
        "by_combination": _parts(
            rows, lambda entry, price: {"algorithm": price.algorithm.name, "protocol": price.protocol.name}
        ),
        "kernels": None if not kernels else {
            "calls": sum(len(entry.kernels_us) for entry, _ in kernels),
            "measured_us": sum(sum(entry.kernels_us) for entry, _ in kernels),
            "predicted_us": sum(len(entry.kernels_us) * price.time_us for entry, price in kernels),
        },
        "regret": None if measured is None else _regret(rows, measured),
    }  # fmt: skip


def _rows(entries: Sequence[Entry], priced: Sequence[Price | Unpriced]) -> list[_Row]:
    return [(entry, price) for entry, price in zip(entries, priced, strict=True) if isinstance(price, Price)]


def _total_us(rows: Sequence[_Row]) -> float:
    return sum(entry.calls * price.time_us for entry, price in rows)


def _parts(rows: Sequence[_Row], key: Callable[[Entry, Price], Mapping[str, str]]) -> list[dict[str, Any]]:
    """Calls and time by what ``key`` says, the longest first."""
    total_us = _total_us(rows)
    parts: dict[tuple[tuple[str, str], ...], list[_Row]] = defaultdict(list)
    for entry, price in rows:
        parts[tuple(key(entry, price).items())].append((entry, price))
    found = [
        {
            **dict(names), "calls": sum(entry.calls for entry, _ in part), "total_us": _total_us(part),
            "share": _share(_total_us(part), total_us),
        }
        for names, part in parts.items()
    ]  # fmt: skip
    return sorted(found, key=lambda part: -part["total_us"])


def _changes(
    entries: Sequence[Entry], base: Sequence[Price | Unpriced], priced: Sequence[Price | Unpriced]
) -> list[dict[str, Any]]:
    """What makes up the difference between two columns, the most first: of sizes that have a price in both."""
    found = [
        {
            **_kind(entry), "calls": entry.calls, "from": before.cell, "to": after.cell, "from_us": before.time_us,
            "to_us": after.time_us, "difference_us": entry.calls * (after.time_us - before.time_us),
        }
        for entry, before, after in zip(entries, base, priced, strict=True)
        if isinstance(before, Price) and isinstance(after, Price) and before != after
    ]  # fmt: skip
    return sorted(found, key=lambda change: -abs(change["difference_us"]))


def _kind(entry: Entry) -> dict[str, Any]:
    request = entry.request
    return {
        "collective": request.collective.name, "dtype": request.dtype.name, "op": request.op.name, "bytes": entry.bytes,
    }  # fmt: skip


def _kernels(entry: Entry) -> dict[str, Any] | None:
    times_us = entry.kernels_us
    return {"calls": len(times_us), "total_us": sum(times_us), "median_us": median(times_us)} if times_us else None


def _price(
    entry: Entry, price: Price | Unpriced, total_us: float, measured: Measured | None
) -> dict[str, Any]:
    if isinstance(price, Unpriced):
        return {"reason": price.reason}
    found = {
        "algorithm": price.algorithm.name, "protocol": price.protocol.name, "channels": price.channels,
        "time_us": price.time_us, "total_us": entry.calls * price.time_us,
        "share": _share(entry.calls * price.time_us, total_us),
    }  # fmt: skip
    return found if measured is None else {**found, "measured": _judged(entry, measured.judge(entry, price))}


def _judged(entry: Entry, judged: Judged | NotMeasured) -> dict[str, Any]:
    if isinstance(judged, NotMeasured):
        return {"reason": judged.reason}
    return {
        "pick_us": judged.pick_us, "best": str(judged.best), "best_us": judged.best_us,
        "interpolated": judged.interpolated, "regret_us": entry.calls * (judged.pick_us - judged.best_us),
    }  # fmt: skip


def _regret(rows: Sequence[_Row], measured: Measured) -> dict[str, Any]:
    """Of the calls whose pick was measured; the others' share of the predicted time is ``unmeasured_share``."""
    judged = [(entry, measured.judge(entry, price)) for entry, price in rows]
    known = [(entry, one) for entry, one in judged if isinstance(one, Judged)]
    without = [row for row, (_, one) in zip(rows, judged, strict=True) if isinstance(one, NotMeasured)]
    pick_us, best_us = (sum(e.calls * getattr(one, name) for e, one in known) for name in ("pick_us", "best_us"))
    return {
        "file": str(measured.file),
        "calls": sum(entry.calls for entry, _ in known),
        "interpolated_calls": sum(entry.calls for entry, one in known if one.interpolated),
        "unmeasured_calls": sum(entry.calls for entry, _ in without),
        "unmeasured_share": _share(_total_us(without), _total_us(rows)),
        "pick_us": pick_us,
        "best_us": best_us,
        "regret_us": pick_us - best_us,
        "regret": _share(pick_us - best_us, best_us),
    }  # fmt: skip


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
