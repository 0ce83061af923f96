"""Times that are all off by one factor, the smallest calls' as well: a slip of units, no fault of a machine."""

import numpy as np

from tuner.times.timemodel.features import Array

SMALL_BYTES = 2**20  # smaller calls take mostly what the host takes to start them
_FEWEST = 6  # sizes, some of them small and some large
_UNLIKELY = 1.4  # no start and no link is off by this factor alike
_ALIKE = 0.15  # natural logarithm: within this of the factor are nearly all sizes
_NEARLY_ALL = 0.9
_SLIPS = {8.0: "bits for bytes", 1e3: "milliseconds, microseconds and nanoseconds", 1e6: "seconds for microseconds"}


def common_factor(ratios: Array, nbytes: Array) -> float | None:
    """The factor that all times are off by; None where they are not, or too few say it.

    ``ratios``: [size], numbers: measured times over expected ones; ``nbytes``: [size], some below 1 MiB, some above.
    """
    off = np.log(ratios)
    factor = float(np.exp(np.median(off)))
    small = nbytes < SMALL_BYTES
    if len(off) < _FEWEST or not small.any() or small.all() or max(factor, 1 / factor) < _UNLIKELY:
        return None
    return factor if np.mean(np.abs(off - np.log(factor)) < _ALIKE) >= _NEARLY_ALL else None


def likely(factor: float, bus_factor: float | None = None) -> str:
    """What slip the factor is of, as a question; ``bus_factor``: what bus bandwidths are multiplied by, if one is."""
    known = _SLIPS if bus_factor is None else {**_SLIPS, bus_factor: "the factor of the bus bandwidth"}
    for slip, words in known.items():
        if min(abs(np.log(factor / slip)), abs(np.log(factor * slip))) < _ALIKE:
            return f"{words}?"
    return "clocks, a wrong unit or factor, or another machine?"
