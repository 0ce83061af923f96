"""Draws figures of measured times with matplotlib."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.ticker import NullLocator

from tuner.answers.charts.parts import Look, NotebookFigure, grid, heading, legend, size_axis, style
from tuner.times.measured.samples import Point
from tuner.times.verify import JudgedFile, RoundsPick, Series, series

MEASURED_PICK: Look = {
    "linestyle": "",
    "marker": "s",
    "markersize": 11,
    "fillstyle": "none",
    "color": "#000000",
    "label": "NCCL's pick",
}
BEST: Look = {"linestyle": "", "marker": "+", "markersize": 11, "color": "#000000"}
# The ratios that are named along an axis
RATIOS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 0.8, 1, 1.25, 2, 5, 10, 20, 50, 100)
DASH: Look = {"marker": "_", "markersize": 24, "markeredgewidth": 2.5}  # the look of a prediction without a line
OTHERS: Look = {"color": "#8C8C8C", "linewidth": 0.7, "label": "with other channels"}


def measured(compared: Sequence[JudgedFile], names: Sequence[str]) -> NotebookFigure:
    """Draws times over sizes, for each kind of call in each file. If there is a model, its times and the ratio are
    drawn, too.

    ``names`` say where each file comes from. Markers show measured or simulated times, lines the model's predictions.
    """
    kinds = [
        (comparison, kind, name) for comparison, name in zip(compared, names, strict=True) for kind in comparison.kinds
    ]
    canvas = NotebookFigure(figsize=(11, 6.5 * len(kinds)), layout="constrained")
    for part, kind in zip(canvas.subfigures(len(kinds), 1, squeeze=False)[:, 0], kinds, strict=True):
        _panels(part, *kind)
    return canvas


def _panels(part: Any, comparison: JudgedFile, kind: Point, name: str) -> None:
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
    named = dict(zip(names, lines, strict=True))  # one for all lines with the same name
    legend(part, list(named.values()))
    placed = f"{'in place' if kind.in_place else 'out of place'}{', CUDA graph' if kind.graph else ''}"
    marks = how if comparison.model is None else f"markers {how}, lines predicted"
    heading(part, panels[0], f"{kind.request.title}, {placed}: {marks}", name)


def _times(axes: Any, drawn: Sequence[Series], judged: Sequence[RoundsPick], how: str) -> None:
    for one in sorted(drawn, key=lambda one: one.combination.channels > 0):
        combination = one.combination
        if combination.channels:
            axes.plot(one.bytes, one.measured_us, **OTHERS)
            continue
        look = style((combination.algorithm, combination.protocol))
        axes.plot([], [], **look)  # only for the legend
        alone = DASH | {"markeredgecolor": look["color"]} if len(one.bytes) == 1 else {"marker": ""}
        axes.plot(one.bytes, one.predicted_us, **look | alone | {"label": "_predicted"})
        spread = np.stack([one.measured_us - one.low_us, one.high_us - one.measured_us])
        axes.errorbar(one.bytes, one.measured_us, spread, fmt="none", ecolor=look["color"], elinewidth=1, capsize=2)
        axes.plot(one.bytes, one.measured_us, **look | {"linestyle": "", "label": "_measured"})
    sizes = [one.call.bytes for one in judged]
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
