"""An efficiency report as a picture: times, and bus bandwidths below their limits."""

from typing import TYPE_CHECKING

from tuner.efficiency import Report
from tuner.errors import BadInput
from tuner.measure.plot import COLOURS

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def figure(report: Report) -> "Figure":
    """Two panels over sizes. BadInput where matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise BadInput("--plot needs matplotlib; 'pip install nccl-tuner[plot]' installs it") from None
    sizes = [row.bytes for row in report.rows]
    made = Figure(figsize=(9, 9), layout="constrained")
    times, bandwidths = made.subplots(2, sharex=True)
    times.plot(sizes, [row.measured_us for row in report.rows], "o-", color=COLOURS[0], label="measured")
    times.plot(sizes, [row.nccl_us for row in report.rows], "--", color=COLOURS[1], label="NCCL's prediction")
    times.plot(sizes, [row.alphabeta_us for row in report.rows], ":", color=COLOURS[2], label="alpha-beta")
    times.set_yscale("log")
    times.set_ylabel("time (us)")
    bandwidths.plot(sizes, [row.busbw_gbs for row in report.rows], "o-", color=COLOURS[0], label="measured")
    bandwidths.plot(sizes, [row.ideal_busbw_gbs for row in report.rows], "-", color=COLOURS[5], label="ideal")
    limits = [float("nan") if row.link_busbw_gbs is None else row.link_busbw_gbs for row in report.rows]
    label = "links full, with the pick's algorithm"
    bandwidths.plot(sizes, limits, "-.", drawstyle="steps-mid", color=COLOURS[3], label=label)
    bandwidths.set_ylabel("busbw (GB/s)")
    bandwidths.set_xlabel("size (bytes)")
    bandwidths.set_xscale("log", base=2)
    times.set_title(f"{report.sweep.collective.name} on {report.case.title}")
    for axes in (times, bandwidths):
        axes.legend(fontsize="small")
    return made
