"""The budget in the form other tools rely on: ``nccl-tuner budget --json``."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from tuner.base.records import to_json
from tuner.budget.calls import CallList
from tuner.budget.count import Counted, Entry, Wanted
from tuner.budget.price import Price, Unpriced, Variant, prices
from tuner.budget.regret import Judged, Measured, NotMeasured


@dataclass(frozen=True, slots=True)
class _Priced:
    """A row of one column; without measurements it is not judged."""

    entry: Entry
    price: Price
    judged: Judged | NotMeasured | None

    @property
    def total_us(self) -> float:
        return self.entry.calls * self.price.time_us


@dataclass(frozen=True, slots=True)
class _Without:
    entry: Entry
    reason: str


_Column = Sequence[_Priced | _Without]  # a row for each entry


def budget(
    found: Sequence[CallList],
    counted: Counted,
    wanted: Wanted,
    variants: Sequence[Variant],
    measured: Measured | None = None,
) -> dict[str, Any]:
    """Predicted times in us of all calls, one after the other: overlap with each other or with work is not modelled.

    ``variants`` are compared with the first; shares are of 1. Errors: those of :func:`prices`.
    """
    columns = [_column(variant, counted.entries, measured) for variant in variants]
    totals_us = [_total_us(_priced(column)) for column in columns]
    return {
        "files": [
            {"file": each.file, "kind": each.kind, "sizes": each.sizes, "calls": sum(call.calls for call in each.calls)}
            for each in found
        ],
        "ranks": wanted.ranks,
        "priced_ranks": wanted.priced_ranks,
        "calls": sum(entry.calls for entry in counted.entries),
        "notes": [*counted.notes, *(measured.notes if measured else ())],
        "left_out": [
            {"name": left.name, "reason": left.reason, "calls": left.calls, "kernels_us": left.kernels_us}
            for left in counted.left_out
        ],
        "variants": [
            _variant(variant, column, columns[0], measured) for variant, column in zip(variants, columns, strict=True)
        ],
        "entries": [
            {
                **_kind(entry),
                "calls": entry.calls,
                "kernels": _kernels(entry),
                "prices": [
                    {"variant": variant.name, **_price(column[at], total_us)}
                    for variant, column, total_us in zip(variants, columns, totals_us, strict=True)
                ],
            }
            for at, entry in enumerate(counted.entries)
        ],
    }


def _column(variant: Variant, entries: Sequence[Entry], measured: Measured | None) -> _Column:
    return [
        _Without(entry, price.reason)
        if isinstance(price, Unpriced)
        else _Priced(entry, price, None if measured is None else measured.judge(entry, price))
        for entry, price in zip(entries, prices(variant, entries), strict=True)
    ]


def _variant(variant: Variant, column: _Column, base: _Column, measured: Measured | None) -> dict[str, Any]:
    rows = _priced(column)
    both = [
        (before, after)
        for before, after in zip(base, column, strict=True)
        if isinstance(before, _Priced) and isinstance(after, _Priced)
    ]
    changes = _changes(both)
    difference_us = sum(change["difference_us"] for change in changes)
    return {
        "name": variant.name,
        **to_json(variant.scenario.constants),
        "environment": variant.scenario.environment or {},
        "table": None if variant.table is None else str(variant.table),
        "total_us": _total_us(rows),
        "priced_calls": sum(row.entry.calls for row in rows),
        "unpriced_calls": sum(row.entry.calls for row in column if isinstance(row, _Without)),
        "difference_us": difference_us,
        "difference": _share(difference_us, _total_us([before for before, _ in both])),
        "changes": changes,
        "by_collective": _parts(rows, lambda row: {"collective": row.entry.request.collective.name}),
        "by_combination": _parts(
            rows, lambda row: {"algorithm": row.price.algorithm.name, "protocol": row.price.protocol.name}
        ),
        "kernels": _all_kernels([row for row in rows if row.entry.kernels_us]),
        "regret": None if measured is None else _regret(rows, measured),
    }


def _priced(column: _Column) -> list[_Priced]:
    return [row for row in column if isinstance(row, _Priced)]


def _total_us(rows: Sequence[_Priced]) -> float:
    return sum(row.total_us for row in rows)


def _parts(rows: Sequence[_Priced], key: Callable[[_Priced], Mapping[str, str]]) -> list[dict[str, Any]]:
    """Calls and time by what ``key`` says, the longest first."""
    total_us = _total_us(rows)
    parts: dict[tuple[tuple[str, str], ...], list[_Priced]] = defaultdict(list)
    for row in rows:
        parts[tuple(key(row).items())].append(row)
    found = [
        {
            **dict(names),
            "calls": sum(row.entry.calls for row in part),
            "total_us": _total_us(part),
            "share": _share(_total_us(part), total_us),
        }
        for names, part in parts.items()
    ]
    return sorted(found, key=lambda part: -part["total_us"])


def _changes(both: Sequence[tuple[_Priced, _Priced]]) -> list[dict[str, Any]]:
    """What makes up the difference between two columns, the most first."""
    found = [
        {
            **_kind(after.entry),
            "calls": after.entry.calls,
            "from": before.price.algo_proto,
            "to": after.price.algo_proto,
            "from_us": before.price.time_us,
            "to_us": after.price.time_us,
            "difference_us": after.total_us - before.total_us,
        }
        for before, after in both
        if before.price != after.price
    ]
    return sorted(found, key=lambda change: -abs(change["difference_us"]))


def _kind(entry: Entry) -> dict[str, Any]:
    request = entry.request
    return {
        "collective": request.collective.name,
        "dtype": request.dtype.name,
        "op": request.op.name,
        "bytes": entry.bytes,
    }


def _kernels(entry: Entry) -> dict[str, Any] | None:
    times_us = entry.kernels_us
    if not times_us:
        return None
    return {
        "calls": len(times_us),
        "total_us": sum(times_us),
        "least_us": min(times_us),
        "median_us": median(times_us),
    }


def _all_kernels(rows: Sequence[_Priced]) -> dict[str, Any] | None:
    if not rows:
        return None
    return {
        "calls": sum(len(row.entry.kernels_us) for row in rows),
        "measured_us": sum(sum(row.entry.kernels_us) for row in rows),
        "predicted_us": sum(len(row.entry.kernels_us) * row.price.time_us for row in rows),
    }


def _price(row: _Priced | _Without, total_us: float) -> dict[str, Any]:
    if isinstance(row, _Without):
        return {"reason": row.reason}
    price = row.price
    return {
        "algorithm": price.algorithm.name,
        "protocol": price.protocol.name,
        "channels": price.channels,
        "time_us": price.time_us,
        "total_us": row.total_us,
        "share": _share(row.total_us, total_us),
        **({} if row.judged is None else {"measured": _judged(row.entry, row.judged)}),
    }


def _judged(entry: Entry, judged: Judged | NotMeasured) -> dict[str, Any]:
    if isinstance(judged, NotMeasured):
        return {"reason": judged.reason}
    return {
        "pick_us": judged.pick_us,
        "best": str(judged.best),
        "best_us": judged.best_us,
        "interpolated": judged.interpolated,
        "regret_us": entry.calls * (judged.pick_us - judged.best_us),
    }


def _regret(rows: Sequence[_Priced], measured: Measured) -> dict[str, Any]:
    """Of the calls whose pick was measured; the others' share of the predicted time is ``unmeasured_share``."""
    known = [(row.entry.calls, row.judged) for row in rows if isinstance(row.judged, Judged)]
    without = [row for row in rows if not isinstance(row.judged, Judged)]
    pick_us = sum(calls * judged.pick_us for calls, judged in known)
    best_us = sum(calls * judged.best_us for calls, judged in known)
    return {
        "file": str(measured.file),
        "calls": sum(calls for calls, _ in known),
        "interpolated_calls": sum(calls for calls, judged in known if judged.interpolated),
        "unmeasured_calls": sum(row.entry.calls for row in without),
        "unmeasured_share": _share(_total_us(without), _total_us(rows)),
        "pick_us": pick_us,
        "best_us": best_us,
        "regret_us": pick_us - best_us,
        "regret": _share(pick_us - best_us, best_us),
    }


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
