"""Slips of units: all times off by one factor, the smallest calls' as well, which no fault of a machine does."""

from collections.abc import Iterator, Sequence

from tuner.base.sizes import human_bytes
from tuner.times.acceptance.judge import Judged
from tuner.times.calibration import scaled
from tuner.times.costmodels.bandwidth import bus_factor
from tuner.times.measured import Kind, Problem


def problems(judged: Sequence[Judged]) -> Iterator[tuple[Judged, Problem]]:
    """Each curve whose times are all off by one factor, with what it may be."""
    for each in judged:
        curve, request = each.curve, each.curve.kind.request
        factor = scaled.common_factor(curve.time_us / each.expected.time_us, curve.bytes.astype(float))
        if factor is not None:
            bus = float(bus_factor(request.collective, curve.kind.shape.ranks))
            text = (
                f"{request.title}: all sizes from {human_bytes(int(curve.bytes[0]))} to "
                f"{human_bytes(int(curve.bytes[-1]))} take {factor:.3g} times what is expected, the smallest as the "
                f"largest, which no fault does; {scaled.likely(factor, bus)}"
            )
            yield each, Problem(Kind.scaled, tuple(line for lines in curve.lines for line in lines), text)
