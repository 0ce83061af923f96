"""An efficiency report: measured times beside what models say, bus bandwidths below their limits."""

import numpy as np
from matplotlib.figure import Figure

from tuner.answers.efficiency import EfficiencyReport
from tuner.cli.charts.axes import grid, heading, legend, size_axis
from tuner.cli.charts.lines import Look

MEASURED: Look = {"color": "#000000", "marker": "o", "label": "measured"}
PREDICTED: Look = {"color": "#00487A", "linestyle": "dashed", "label": "NCCL's prediction"}
ALPHABETA: Look = {"color": "#E69F00", "linestyle": "dotted", "linewidth": 2, "label": "alpha-beta"}
IDEAL: Look = {"color": "#00875F", "label": "ideal"}
LINKS: Look = {
    "color": "#A63F00",
    "linestyle": "dashdot",
    "drawstyle": "steps-mid",
    "label": "links full, by the pick's algorithm",
}


def figure(report: EfficiencyReport) -> Figure:
    """Two panels over sizes: times and bus bandwidths."""
    sizes = np.array([row.bytes for row in report.rows], np.uint64)
    canvas = Figure(figsize=(11, 7.5), layout="constrained")
    times, bandwidths = panels = canvas.subplots(2, 1)
    times.plot(sizes, [row.measured_us for row in report.rows], **MEASURED)
    times.plot(sizes, [row.nccl_us for row in report.rows], **PREDICTED)
    times.plot(sizes, [row.alphabeta_us for row in report.rows], **ALPHABETA)
    times.set_yscale("log")
    times.set_ylabel("time (us)")
    bandwidths.plot(sizes, [row.busbw_gbs for row in report.rows], **MEASURED)
    bandwidths.plot(sizes, [row.ideal_busbw_gbs for row in report.rows], **IDEAL)
    carried = [np.nan if row.link_busbw_gbs is None else row.link_busbw_gbs for row in report.rows]
    bandwidths.plot(sizes, carried, **LINKS)
    bandwidths.set_ylabel("bus bandwidth (GB/s)")
    bandwidths.set_ylim(bottom=0)
    for axes in panels:
        size_axis(axes, sizes, named=axes is bandwidths, margin=1.25)
        grid(axes)
    # One legend: of two beside the figure each would take a width of its own.
    shown = {handle.get_label(): handle for axes in panels for handle in axes.get_legend_handles_labels()[0]}
    legend(canvas, list(shown.values()), "")
    heading(canvas, times, f"{report.sweep.collective.name}: how good what was measured is", report.scenario.heading)
    return canvas
