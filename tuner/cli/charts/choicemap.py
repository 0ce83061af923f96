"""The map of choices: what NCCL picks over sizes and node counts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from tuner.answers.choices import Choices
from tuner.cli.charts import cells
from tuner.cli.charts.axes import LOWER, heading, node_axis, size_axis
from tuner.cli.charts.axes import legend as beside

BEST, LOSES = "#FFFFFF", "#C62828"


@dataclass(frozen=True, slots=True)
class RegretMark:
    """A measured point of a map: its row and size, and what the pick takes over the best there, minus 1.

    ``loses``: whether that is beyond the noise.
    """

    row: int
    bytes: int
    regret: float
    loses: bool


def figure(choices: Choices, what: str, where: str, marks: Sequence[RegretMark] = ()) -> Figure:
    """Algorithm is colour, protocol hatch; only what occurs is in the legend.

    ``what`` and ``where`` are the heading: the call, and machine, release and settings. ``marks``: measured points.
    """
    canvas = Figure(figsize=(11, 6), layout="constrained")
    axes = canvas.subplots()
    draw(axes, choices)
    node_axis(axes, choices.nodes)
    size_axis(axes, choices.bytes)
    legend(canvas, choices)
    if marks:
        _draw_marks(canvas, axes, marks)
    heading(canvas, axes, what, where)
    return canvas


def draw(axes: Any, choices: Choices) -> None:
    """The choices as cells, sizes over numbers of nodes."""
    cells.draw(axes, choices.bytes, cells.pick_classes(choices.algorithm, choices.protocol), cells.PICKS)


def _draw_marks(canvas: Figure, axes: Any, marks: Sequence[RegretMark]) -> None:
    """A white dot where the pick was the best or as good, and a red one with its loss where it was not."""
    box = {"boxstyle": "round,pad=0.2", "facecolor": "white", "edgecolor": "none", "alpha": 0.85}
    for mark in marks:
        colour = LOSES if mark.loses else BEST
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
            (BEST, "the pick was the best,\nor as good"),
            (LOSES, "the pick takes longer\nthan a forced run"),
        )
    ]
    beside(canvas, handles, "measured", LOWER)


def legend(figure: Figure, *maps: Choices) -> None:
    """Draws the legend of all picks that occur in the maps."""
    numbers = cells.occurring(*(cells.pick_classes(one.algorithm, one.protocol) for one in maps))
    cells.legend(figure, numbers, cells.PICKS)
