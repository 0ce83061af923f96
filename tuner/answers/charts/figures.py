"""Figures of records, each a function, by matplotlib."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from tuner.answers.choices import NOTHING, Choices, Curves, changed, ratio
from tuner.answers.efficiency import EfficiencyReport
from tuner.bench.verify import Series, series
from tuner.cli.charts import palette, parts
from tuner.cli.charts.parts import LOWER, PICK, Look, Style, grid, heading, legend, node_axis, size_axis, style
from tuner.times.compared import Comparison, Judged
from tuner.times.records.samples import Point

NO_LOSS, LOSS = "#FFFFFF", "#C62828"


@dataclass(frozen=True, slots=True)
class RegretMark:
    """A measured point of a map: its row and size, and what the pick takes over the best there, minus 1.

    ``loses``: whether that is beyond the noise.
    """

    row: int
    bytes: int
    regret: float
    loses: bool


def choice_map(choices: Choices, what: str, where: str, marks: Sequence[RegretMark] = ()) -> Figure:
    """Algorithm is colour, protocol hatch; only what occurs is in the legend.

    ``what`` and ``where`` are the heading: the call, and machine, release and settings. ``marks``: measured points.
    """
    canvas = Figure(figsize=(11, 6), layout="constrained")
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
    """The choices as cells, sizes over numbers of nodes."""
    parts.draw(axes, choices.bytes, parts.pick_classes(choices.algorithm, choices.protocol), parts.PICKS)


def _draw_marks(canvas: Figure, axes: Any, marks: Sequence[RegretMark]) -> None:
    """A white dot where the pick was the best or as good, and a red one with its loss where it was not."""
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


def map_legend(figure: Figure, *maps: Choices) -> None:
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
    """The classes of ``STYLES``, numbers [row][size]: the ratio's where the pick changes."""
    ratios = 1 + np.searchsorted(np.array(_BOUNDS, np.float32), ratio(before, after))
    classed = np.where(changed(before, after), ratios, SAME)
    runs = before.algorithm >= 0, after.algorithm >= 0
    for number, which in ((ONLY_BEFORE, runs[0] & ~runs[1]), (ONLY_AFTER, runs[1] & ~runs[0])):
        classed[which] = number
    classed[~runs[0] & ~runs[1]] = NOTHING
    return classed


def difference(before: Choices, after: Choices, what: str, where: tuple[str, str]) -> Figure:
    """Both maps, and the predicted time after over before where the pick changes; ``where`` names the maps."""
    canvas = Figure(figsize=(11, 10), layout="constrained")
    panels = canvas.subplots(3, 1)
    for axes, choices in zip(panels, (before, after), strict=False):
        draw(axes, choices)
    differing = classes(before, after)
    parts.draw(panels[2], before.bytes, differing, STYLES)
    titles = f"before: {where[0]}", f"after: {where[1]}", "where the pick changes"
    for axes, title in zip(panels, titles, strict=True):
        heading(canvas, axes, what, title)
        node_axis(axes, before.nodes, most=8)
        size_axis(axes, before.bytes, named=axes is panels[2])
    map_legend(canvas, before, after)
    parts.legend_of_picks(canvas, parts.occurring(differing), STYLES, "predicted time, after/before", LOWER)
    return canvas


MARKERS = 12  # along a line


def curves(curves: Curves, what: str, where: str) -> Figure:
    """Over the curves a bar says which combination is the pick; the broad grey line is the time that NCCL gives it."""
    canvas = Figure(figsize=(11, 8), layout="constrained")
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


MEASURED_PICK: Look = {
    "linestyle": "",
    "marker": "s",
    "markersize": 11,
    "fillstyle": "none",
    "color": "#000000",
    "label": "NCCL's pick",
}
BEST: Look = {"linestyle": "", "marker": "+", "markersize": 11, "color": "#000000"}
RATIOS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 0.8, 1, 1.25, 2, 5, 10, 20, 50, 100)  # that are named along an axis
DASH: Look = {"marker": "_", "markersize": 24, "markeredgewidth": 2.5}  # a prediction without a line
OTHERS: Look = {"color": "#8C8C8C", "linewidth": 0.7, "label": "with other channels"}


def measured(compared: Sequence[Comparison], names: Sequence[str]) -> Figure:
    """For each kind of call of each file times over sizes, and where there is a model its own with the ratio to them.

    ``names`` say where each file is from. Markers are what was measured, or simulated, lines what the model predicts.
    """
    kinds = [
        (comparison, kind, name) for comparison, name in zip(compared, names, strict=True) for kind in comparison.kinds
    ]
    canvas = Figure(figsize=(11, 6.5 * len(kinds)), layout="constrained")
    for part, kind in zip(canvas.subfigures(len(kinds), 1, squeeze=False)[:, 0], kinds, strict=True):
        _panels(part, *kind)
    return canvas


def _panels(part: Any, comparison: Comparison, kind: Point, name: str) -> None:
    drawn, how = series(comparison, kind), comparison.measurements.header.how
    if comparison.model is None:
        panels = [part.subplots()]
    else:
        panels = [*part.subplots(2, 1, height_ratios=[3, 1.6])]
        _ratios(panels[1], drawn, how)
    _times(panels[0], drawn, comparison.kinds[kind], how)
    sizes = np.unique(np.concatenate([one.bytes for one in drawn])).astype(np.uint64)
    for axes in panels:
        size_axis(axes, sizes, named=axes is panels[-1], margin=1.25)
        grid(axes)
    lines, names = panels[0].get_legend_handles_labels()
    named = dict(zip(names, lines, strict=True))  # one for several lines of a name
    legend(part, list(named.values()))
    placed = f"{'in place' if kind.in_place else 'out of place'}{', CUDA graph' if kind.graph else ''}"
    marks = how if comparison.model is None else f"markers {how}, lines predicted"
    heading(part, panels[0], f"{kind.request.title}, {placed}: {marks}", name)


def _times(axes: Any, drawn: Sequence[Series], judged: Sequence[Judged], how: str) -> None:
    for one in sorted(drawn, key=lambda one: one.combination.channels > 0):
        combination = one.combination
        if combination.channels:
            axes.plot(one.bytes, one.measured_us, **OTHERS)
            continue
        look = style((combination.algorithm, combination.protocol))
        axes.plot([], [], **look)  # for the legend
        alone = DASH | {"markeredgecolor": look["color"]} if len(one.bytes) == 1 else {"marker": ""}
        axes.plot(one.bytes, one.predicted_us, **look | alone | {"label": "_predicted"})
        spread = np.stack([one.measured_us - one.low_us, one.high_us - one.measured_us])
        axes.errorbar(one.bytes, one.measured_us, spread, fmt="none", ecolor=look["color"], elinewidth=1, capsize=2)
        axes.plot(one.bytes, one.measured_us, **look | {"linestyle": "", "label": "_measured"})
    sizes = [one.point.bytes for one in judged]
    axes.plot(sizes, [one.pick_us for one in judged], **MEASURED_PICK)
    axes.plot(sizes, [one.best_us for one in judged], **BEST | {"label": f"{how} best"})
    axes.set_yscale("log")
    axes.set_ylabel("time (us), 95 % interval")


def _ratios(axes: Any, drawn: Sequence[Series], how: str) -> None:
    for one in drawn:
        if not one.combination.channels:
            look = style((one.combination.algorithm, one.combination.protocol))
            axes.plot(one.bytes, one.measured_us / one.predicted_us, **look | {"linewidth": 0.8})
    axes.axhline(1, color="#000000", linewidth=1)
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    low, high = min(low, 0.65), max(high, 1.55)
    axes.set_ylim(low, high)
    axes.set_yticks([tick for tick in RATIOS if low <= tick <= high])
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_ylabel(f"{how} / predicted")


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


def efficiency(report: EfficiencyReport) -> Figure:
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
