"""Two maps of choices and where they differ: releases, or settings."""

import numpy as np
from matplotlib.figure import Figure

from tuner.answers.choices import NOTHING, Choices, changed, ratio
from tuner.cli.charts import cells, choicemap, palette
from tuner.cli.charts.axes import LOWER, heading, node_axis, size_axis
from tuner.cli.charts.cells import Style

SAME, ONLY_BEFORE, ONLY_AFTER = 0, 20, 21  # classes; those of ratios are from 1 on
_BOUNDS = tuple(bound for bound, *_ in palette.RATIOS)


def _label(number: int) -> str:
    if number == 0:
        return f"up to {_BOUNDS[0]:.2f}"
    if number == len(_BOUNDS) - 1:
        return f"above {_BOUNDS[-2]:.2f}"
    return f"{_BOUNDS[number - 1]:.2f} to {_BOUNDS[number]:.2f}"


STYLES = {
    NOTHING: cells.NOTHING_STYLE,
    SAME: Style(palette.SAME_COLOUR, "#000000", "", "same pick"),
    **{
        number + 1: Style(colour, ink, hatch, _label(number))
        for number, (_, colour, ink, hatch) in enumerate(palette.RATIOS)
    },
    ONLY_BEFORE: Style(palette.NOTHING_COLOUR, palette.NOTHING_INK, "-", "runs only before"),
    ONLY_AFTER: Style(palette.NOTHING_COLOUR, palette.NOTHING_INK, "|", "runs only after"),
}


def classes(before: Choices, after: Choices) -> cells.Classes:
    """The classes of ``STYLES``, numbers [row][size]: the ratio's where the pick changes."""
    ratios = 1 + np.searchsorted(np.array(_BOUNDS, np.float32), ratio(before, after))
    classed = np.where(changed(before, after), ratios, SAME)
    runs = before.algorithm >= 0, after.algorithm >= 0
    for number, which in ((ONLY_BEFORE, runs[0] & ~runs[1]), (ONLY_AFTER, runs[1] & ~runs[0])):
        classed[which] = number
    classed[~runs[0] & ~runs[1]] = NOTHING
    return classed


def figure(before: Choices, after: Choices, what: str, where: tuple[str, str]) -> Figure:
    """Both maps, and the predicted time after over before where the pick changes; ``where`` names the maps."""
    canvas = Figure(figsize=(11, 10), layout="constrained")
    panels = canvas.subplots(3, 1)
    for axes, choices in zip(panels, (before, after), strict=False):
        choicemap.draw(axes, choices)
    differing = classes(before, after)
    cells.draw(panels[2], before.bytes, differing, STYLES)
    titles = f"before: {where[0]}", f"after: {where[1]}", "where the pick changes"
    for axes, title in zip(panels, titles, strict=True):
        heading(canvas, axes, what, title)
        node_axis(axes, before.nodes, most=8)
        size_axis(axes, before.bytes, named=axes is panels[2])
    choicemap.legend(canvas, before, after)
    cells.legend(canvas, cells.occurring(differing), STYLES, "predicted time, after/before", LOWER)
    return canvas
