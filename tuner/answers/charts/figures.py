"""Functions that draw records as figures with matplotlib."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from tuner.answers.charts import palette, parts
from tuner.answers.charts.parts import (
    LOWER,
    PICK,
    Look,
    NotebookFigure,
    Style,
    grid,
    heading,
    legend,
    node_axis,
    size_axis,
    style,
)
from tuner.answers.choices import NOTHING, Choices, Curves, changed, ratio
from tuner.answers.efficiency import EfficiencyReport
from tuner.base.dataclass import dataclass
from tuner.base.names import AlgoProto, Protocol
from tuner.emulator.ranges import Ranges
from tuner.times.timemodel.left_out import ClassAccuracy

if TYPE_CHECKING:
    from tuner.answers.diff import PickChange

NO_LOSS, LOSS = "#FFFFFF", "#C62828"


@dataclass(frozen=True, slots=True)
class RegretMark:
    """A measured point of a map: its row and size, and how much slower the pick is than the best choice, as a share.

    ``loses``: whether the pick is slower than the best choice by more than the noise of the measurement.
    """

    row: int
    bytes: int
    regret: float
    loses: bool


def choice_map(choices: Choices, what: str, where: str, marks: Sequence[RegretMark] = ()) -> NotebookFigure:
    """Draws a map of choices: colour shows the algorithm, hatch the protocol. The legend has only the picks that occur
    in the map.

    ``what`` is the heading with the call, ``where`` the one with machine, release and settings. ``marks`` are measured
    points, drawn on the map.
    """
    canvas = NotebookFigure(figsize=(11, 6), layout="constrained")
    axes = canvas.subplots()
    draw(axes, choices)
    node_axis(axes, choices.nodes)
    size_axis(axes, choices.bytes)
    map_legend(canvas, choices)
    if marks:
        _draw_marks(canvas, axes, marks)
    heading(canvas, axes, what, where)
    return canvas


def draw(axes: Any, choices: Choices) -> None:
    """Draws the choices as cells: sizes along the horizontal axis, numbers of nodes along the vertical."""
    parts.draw(
        axes, parts.size_edges(choices.bytes), parts.pick_classes(choices.algorithm, choices.protocol), parts.PICKS
    )


def _draw_marks(canvas: NotebookFigure, axes: Any, marks: Sequence[RegretMark]) -> None:
    """Draws a white dot if the pick was as good as the best choice, and else a red dot with the loss."""
    box = {"boxstyle": "round,pad=0.2", "facecolor": "white", "edgecolor": "none", "alpha": 0.85}
    for mark in marks:
        colour = LOSS if mark.loses else NO_LOSS
        axes.plot(
            mark.bytes, mark.row, "o", color=colour, markeredgecolor="black", markersize=9, zorder=3, clip_on=False
        )
        if mark.loses:
            at = (mark.bytes, mark.row)
            axes.annotate(
                f"+{100 * mark.regret:.0f} %",
                at,
                (-6, 9),
                textcoords="offset points",
                bbox=box,
                fontsize=9,
                zorder=4,
            )
    handles = [
        Line2D([], [], marker="o", color=colour, markeredgecolor="black", markersize=9, linestyle="", label=label)
        for colour, label in (
            (NO_LOSS, "the pick was the best,\nor as good"),
            (LOSS, "the pick takes longer\nthan a forced run"),
        )
    ]
    legend(canvas, handles, "measured", LOWER)


def map_legend(figure: NotebookFigure, *maps: Choices) -> None:
    """Draws the legend of all picks that occur in the maps."""
    numbers = parts.occurring(*(parts.pick_classes(one.algorithm, one.protocol) for one in maps))
    parts.legend_of_picks(figure, numbers, parts.PICKS)


SAME, ONLY_BEFORE, ONLY_AFTER = 0, 20, 21  # classes; those of ratios are from 1 on
_BOUNDS = tuple(bound for bound, *_ in palette.RATIOS)


def _label(number: int) -> str:
    if number == 0:
        return f"up to {_BOUNDS[0]:.2f}"
    if number == len(_BOUNDS) - 1:
        return f"above {_BOUNDS[-2]:.2f}"
    return f"{_BOUNDS[number - 1]:.2f} to {_BOUNDS[number]:.2f}"


STYLES = {
    NOTHING: parts.NOTHING_STYLE,
    SAME: Style(palette.SAME_COLOUR, "#000000", "", "same pick"),
    **{
        number + 1: Style(colour, ink, hatch, _label(number))
        for number, (_, colour, ink, hatch) in enumerate(palette.RATIOS)
    },
    ONLY_BEFORE: Style(palette.NOTHING_COLOUR, palette.NOTHING_INK, "-", "runs only before"),
    ONLY_AFTER: Style(palette.NOTHING_COLOUR, palette.NOTHING_INK, "|", "runs only after"),
}


def classes(before: Choices, after: Choices) -> parts.Classes:
    """For each cell of the map, the key of its look in ``STYLES``: numbers `[row][size]`. If the pick changes in a
    cell, its look shows the ratio of the predicted times after and before.
    """
    ratios = 1 + np.searchsorted(np.array(_BOUNDS, np.float32), ratio(before, after))
    classed = np.where(changed(before, after), ratios, SAME)
    runs = before.algorithm >= 0, after.algorithm >= 0
    for number, which in ((ONLY_BEFORE, runs[0] & ~runs[1]), (ONLY_AFTER, runs[1] & ~runs[0])):
        classed[which] = number
    classed[~runs[0] & ~runs[1]] = NOTHING
    return classed


def difference(before: Choices, after: Choices, what: str, where: tuple[str, str]) -> NotebookFigure:
    """Draws both maps, and the ratio of predicted times after and before where the pick changes; ``where`` names the
    maps.
    """
    canvas = NotebookFigure(figsize=(11, 10), layout="constrained")
    panels = canvas.subplots(3, 1)
    for axes, choices in zip(panels, (before, after), strict=False):
        draw(axes, choices)
    differing = classes(before, after)
    parts.draw(panels[2], parts.size_edges(before.bytes), differing, STYLES)
    titles = f"before: {where[0]}", f"after: {where[1]}", "where the pick changes"
    for axes, title in zip(panels, titles, strict=True):
        heading(canvas, axes, what, title)
        node_axis(axes, before.nodes, most=8)
        size_axis(axes, before.bytes, named=axes is panels[2])
    map_legend(canvas, before, after)
    parts.legend_of_picks(canvas, parts.occurring(differing), STYLES, "predicted time, after/before", LOWER)
    return canvas


MARKERS = 12  # along a line


def curves(curves: Curves, what: str, where: str) -> NotebookFigure:
    """Draws curves; a bar above shows which combination is the pick, and the broad grey line is the pick's time by
    NCCL.
    """
    canvas = NotebookFigure(figsize=(11, 8), layout="constrained")
    bar, times, bandwidths = canvas.subplots(3, 1, height_ratios=[0.5, 6, 5])
    draw(bar, curves.picks)
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
    nothing = [parts.NOTHING_STYLE.handle()] if (curves.picks.algorithm < 0).any() else []
    legend(canvas, [*times.get_lines(), *nothing])
    heading(canvas, bar, what, where)
    return canvas


def combinations(pick: AlgoProto, times_us: Mapping[AlgoProto, float], what: str, where: str) -> NotebookFigure:
    """Draws bars of one call's time in us with each combination: the pick first, then the others from fast to slow."""
    shown = sorted(times_us, key=lambda each: (each != pick, times_us[each]))
    canvas = NotebookFigure(figsize=(11, 1.5 + 0.4 * len(shown)), layout="constrained")
    axes = canvas.subplots()
    for row, each in enumerate(shown):
        look = parts.PICKS[each[0] * len(Protocol) + each[1]]
        (bar,) = axes.barh(row, times_us[each])
        look.apply(bar, edge_points=0.5)
        slower = "NCCL's pick" if each == pick else f"{100 * (times_us[each] / times_us[pick] - 1):+.1f} %"
        at = times_us[each], row
        axes.annotate(f"{times_us[each]:,.2f} us, {slower}", at, (4, 0), textcoords="offset points", va="center")
    axes.set_yticks(range(len(shown)), [f"{algorithm.name}/{protocol.name}" for algorithm, protocol in shown])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.25 * max(times_us.values()))  # room for the texts
    axes.set_xlabel("predicted time (us)")
    heading(canvas, axes, what, where)
    return canvas


def edges(ranges: Ranges, what: str, where: str) -> NotebookFigure:
    """Draws the pick of each range as a bar over sizes, and its channels and threads as steps."""
    canvas = NotebookFigure(figsize=(11, 6.5), layout="constrained")
    panels = bar, channels, threads = canvas.subplots(3, 1, height_ratios=[0.7, 3, 3])
    _pick_bars(canvas, {bar: ranges})
    for axes, values, named in ((channels, ranges.channels, "channels"), (threads, ranges.threads, "threads")):
        axes.stairs(values, _range_edges(ranges), baseline=None, color="#000000", linewidth=1.5)
        axes.set_ylabel(named)
        axes.set_ylim(0, 1.1 * max(1, values.max()))
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        grid(axes)
    ends = np.array([ranges.from_bytes[0], ranges.to_bytes[-1]])
    for axes in panels:
        size_axis(axes, ends, named=axes is threads)
    heading(canvas, bar, what, where)
    return canvas


def changes(
    before: Ranges, after: Ranges, changed: "Sequence[PickChange]", what: str, where: tuple[str, str]
) -> NotebookFigure:
    """Draws both sides' picks as bars over sizes, and the ratio of predicted times where the pick changes.

    ``where`` names before and after.
    """
    canvas = NotebookFigure(figsize=(11, 6), layout="constrained")
    panels = upper, lower, ratios = canvas.subplots(3, 1, height_ratios=[0.7, 0.7, 3])
    _pick_bars(canvas, {upper: before, lower: after})
    for change in changed:
        sizes = change.from_bytes, change.at_bytes, change.to_bytes
        known = [np.nan if one is None else one for one in (change.ratio_from, change.ratio, change.ratio_to)]
        ratios.plot(sizes, known, color="#000000", marker="o", markersize=4)
    ratios.axhline(1, color="#8C8C8C", linewidth=1)
    ratios.set_ylabel("predicted time,\nafter/before")
    grid(ratios)
    titles = f"before: {where[0]}", f"after: {where[1]}", "where the pick changes" if changed else "no pick changes"
    ends = np.array([min(before.from_bytes[0], after.from_bytes[0]), max(before.to_bytes[-1], after.to_bytes[-1])])
    for axes, title in zip(panels, titles, strict=True):
        heading(canvas, axes, what, title)
        size_axis(axes, ends, named=axes is ratios)
    return canvas


KERNELS, KERNEL_HATCHES = 100, ("-", ".", "|", "o", "\\", "*")  # the first class of kernels that bypass algorithms


def _pick_bars(canvas: NotebookFigure, bars: Mapping[Any, Ranges]) -> None:
    """Draws on each of the axes a bar of the picks of its ranges, with one legend for all."""
    kernels = sorted({name for ranges in bars.values() for name in ranges.bypass if name is not None})
    styles = parts.PICKS | {
        KERNELS + at: Style(palette.NOTHING_COLOUR, "#000000", KERNEL_HATCHES[at % len(KERNEL_HATCHES)], name)
        for at, name in enumerate(kernels)
    }
    seen = []
    for axes, ranges in bars.items():
        classed = parts.pick_classes(ranges.algorithm, ranges.protocol)
        for row, name in enumerate(ranges.bypass):
            if name is not None:
                classed[row] = KERNELS + kernels.index(name)
        parts.draw(axes, _range_edges(ranges), classed[np.newaxis], styles)
        axes.set_ylim(-0.5, 0.5)
        axes.set_yticks([0], ["pick"])
        seen.append(classed)
    parts.legend_of_picks(canvas, parts.occurring(*seen), styles)


def _range_edges(ranges: Ranges) -> Any:
    return np.append(ranges.from_bytes, ranges.to_bytes[-1] + np.uint64(1)).astype(np.float64)


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


def efficiency(report: EfficiencyReport) -> NotebookFigure:
    """Draws times and bus bandwidths over sizes, in two panels."""
    sizes = np.array([row.bytes for row in report.rows], np.uint64)
    canvas = NotebookFigure(figsize=(11, 7.5), layout="constrained")
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


WHOSE = {
    "error": ("calibrated", "#2E5A88"),
    "nccl": ("NCCL's own", "#A63F00"),
    "one_factor": ("NCCL's, one factor", "#8A8A8A"),
}


def left_out_sites(classes: Sequence[ClassAccuracy]) -> NotebookFigure:
    """Draws the errors of the time model at sites that it was not fitted to, and how often its 90 % intervals hold.
    There is a group of bars for each class of GPUs and each number of measured rows of the site that the model was
    given; one panel has the errors over all sizes, another those from 16 MiB on.
    """
    canvas = NotebookFigure(figsize=(11, 8), layout="constrained")
    panels = canvas.subplots(3, 1, sharex=True)
    at = np.arange(len(classes))
    for axes, before, what in ((panels[0], "", "all sizes"), (panels[1], "large_", "from 16 MiB")):
        for number, (name, (label, colour)) in enumerate(WHOSE.items()):
            found = [getattr(each, before + name) for each in classes]
            heights = [np.nan if each is None else 100 * each for each in found]
            axes.bar(at + 0.27 * (number - 1), heights, 0.27, color=colour, label=label)
        axes.set_ylabel(f"error (%), {what}")
    panels[2].plot(at, [100 * each.inside for each in classes], "o", color=WHOSE["error"][1])
    panels[2].axhspan(85, 97, color=WHOSE["one_factor"][1], alpha=0.2)
    panels[2].set_ylabel("in 90 % intervals (%)")
    panels[2].set_xticks(at, [f"{each.given}\n{'' if each.given else each.gpu}" for each in classes])
    panels[2].set_xlabel("GPUs, and rows of the site that are given")
    for axes in panels:
        grid(axes)
    legend(canvas, panels[0].get_legend_handles_labels()[0], "")
    heading(canvas, panels[0], "Times between nodes at sites that nothing was learnt from", "medians over tables")
    return canvas
