"""Many sizes as few rows: entries of a budget by powers of two."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any


def buckets(entries: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Entries of ``budget`` as rows by collective and sizes ``from_bytes`` to ``to_bytes``, a power of two less 1.

    A row has the calls and times of the first column of prices, its picks by their time, the longest first, and the
    types. Sizes without a price there are not in a row.
    """
    parts: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    for entry in entries:
        if "reason" not in entry["prices"][0]:
            parts[entry["collective"], entry["bytes"].bit_length()].append(entry)
    return [_bucket(collective, bits, part) for (collective, bits), part in parts.items()]


def _bucket(collective: str, bits: int, part: Sequence[dict[str, Any]]) -> dict[str, Any]:
    picks: dict[str, float] = defaultdict(float)
    for entry in part:
        price = entry["prices"][0]
        picks[f"{price['algorithm']}/{price['protocol']}"] += price["total_us"]
    calls = sum(entry["calls"] for entry in part)
    total_us = sum(picks.values())
    return {
        "collective": collective,
        "from_bytes": 1 << (bits - 1),
        "to_bytes": (1 << bits) - 1,
        "dtypes": sorted({entry["dtype"] for entry in part}),
        "calls": calls,
        "picks": sorted(picks, key=lambda pick: -picks[pick]),
        "time_us": total_us / calls if calls else 0.0,
        "total_us": total_us,
        "share": sum(entry["prices"][0]["share"] for entry in part),
    }
