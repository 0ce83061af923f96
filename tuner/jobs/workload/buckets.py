"""Many sizes as few rows: entries of a budget by powers of two."""

from collections import defaultdict
from collections.abc import Sequence

from tuner.answers import calibrated
from tuner.answers.calibrated import CalibratedTime
from tuner.base.dataclass import dataclass
from tuner.base.names import Collective
from tuner.jobs.workload.priced import EntryPrices, PriceOf


@dataclass(frozen=True, slots=True)
class Bucket:
    """Calls of a collective of ``from_bytes`` to ``to_bytes``, a power of two less 1; times are us.

    ``picks`` are by their time, the longest first; their ``channels`` from the fewest to the most. ``calibrated`` is
    the time of all calls, None without a calibration.
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
    calibrated: CalibratedTime | None


def buckets(entries: Sequence[EntryPrices]) -> list[Bucket]:
    """The entries of a budget by collective and power of two of the size, by their prices in the first variant.

    Sizes without a price there are in no bucket.
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
