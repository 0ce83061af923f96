"""Predicted time and bus bandwidth of every combination over sizes, with the pick."""

from matplotlib.figure import Figure

from tuner.answers.choices import Curves
from tuner.cli.charts import cells, choicemap
from tuner.cli.charts.axes import grid, heading, legend, size_axis
from tuner.cli.charts.lines import PICK, style

MARKERS = 12  # along a line


def figure(curves: Curves, what: str, where: str) -> Figure:
    """Over the curves a bar says which combination is the pick; the broad grey line is the time that NCCL gives it."""
    canvas = Figure(figsize=(11, 8), layout="constrained")
    bar, times, bandwidths = canvas.subplots(3, 1, height_ratios=[0.5, 6, 5])
    choicemap.draw(bar, curves.picks)
    bar.set_ylim(-0.5, 0.5)
    bar.set_yticks([0], ["pick"])
    (pick_us,) = curves.picks.time_us
    lines = [
        *zip(map(style, curves.algo_protos), curves.time_us, strict=True),
        (PICK | {"label": "NCCL's pick"}, pick_us),
    ]
    every = max(1, len(curves.bytes) // MARKERS)
    for number, (drawn, time_us) in enumerate(lines):
        shifted = number * every // len(lines), every  # so that markers of close lines do not hide each other
        times.plot(curves.bytes, time_us, **drawn, markevery=shifted)
        bandwidths.plot(curves.bytes, curves.busbw_gbs(time_us), **drawn, markevery=shifted)
    times.set_yscale("log")
    times.set_ylabel("predicted time (us)")
    bandwidths.set_ylabel("predicted bus bandwidth (GB/s)")
    bandwidths.set_ylim(bottom=0)
    for axes in (bar, times, bandwidths):
        size_axis(axes, curves.bytes, named=axes is bandwidths)
    for axes in (times, bandwidths):
        grid(axes)
    nothing = [cells.NOTHING_STYLE.handle()] if (curves.picks.algorithm < 0).any() else []
    legend(canvas, [*times.get_lines(), *nothing])
    heading(canvas, bar, what, where)
    return canvas
