"""Slips of units: all times off by one factor, the smallest calls' as well, which no fault of a machine does."""

from collections.abc import Iterator, Sequence

import numpy as np

from tuner.acceptance.judge import HOST_BYTES, Judged
from tuner.base.sizes import human_bytes
from tuner.costmodels.bandwidth import bus_factor
from tuner.measured import Kind, Problem

_FEWEST = 6  # sizes, some of them small and some large
_UNLIKELY = 1.4  # no start and no link is off by this factor alike
_ALIKE = 0.15  # natural logarithm: within this of the factor are nearly all sizes
_NEARLY_ALL = 0.9
_SLIPS = {8.0: "bits for bytes", 1e3: "milliseconds, microseconds and nanoseconds", 1e6: "seconds for microseconds"}


def problems(judged: Sequence[Judged]) -> Iterator[tuple[Judged, Problem]]:
    """Each curve whose times are all off by one factor, with what it may be."""
    for each in judged:
        curve = each.curve
        off = np.log(curve.time_us / each.expected.time_us)
        factor = float(np.exp(np.median(off)))
        small = curve.bytes < HOST_BYTES
        if len(off) < _FEWEST or not small.any() or small.all() or max(factor, 1 / factor) < _UNLIKELY:
            continue
        if np.mean(np.abs(off - np.log(factor)) < _ALIKE) >= _NEARLY_ALL:
            text = (
                f"{curve.kind.request.title}: all sizes from {human_bytes(int(curve.bytes[0]))} to "
                f"{human_bytes(int(curve.bytes[-1]))} take {factor:.3g} times what is expected, the smallest as the "
                f"largest, which no fault does; {_guess(each, factor)}"
            )
            yield each, Problem(Kind.scaled, tuple(line for lines in curve.lines for line in lines), text)


def _guess(judged: Judged, factor: float) -> str:
    bus = float(bus_factor(judged.curve.kind.request.collective, judged.curve.kind.shape.ranks))
    known = {**_SLIPS, bus: "the factor of the bus bandwidth"}
    for slip, words in known.items():
        for off in (slip, 1 / slip):
            if abs(np.log(factor / off)) < _ALIKE:
                return f"{words}?"
    return "clocks, a wrong unit or factor, or another machine?"
