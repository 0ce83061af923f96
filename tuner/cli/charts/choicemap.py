"""The map of choices: what NCCL picks over sizes and node counts."""

from typing import Any

from matplotlib.figure import Figure

from tuner.answers.choices import Choices
from tuner.cli.charts import cells
from tuner.cli.charts.axes import heading, node_axis, size_axis


def figure(choices: Choices, what: str, where: str) -> Figure:
    """Algorithm is colour, protocol hatch; only what occurs is in the legend.

    ``what`` and ``where`` are the heading: the call, and machine, release and settings.
    """
    canvas = Figure(figsize=(11, 6), layout="constrained")
    axes = canvas.subplots()
    draw(axes, choices)
    node_axis(axes, choices.nodes)
    size_axis(axes, choices.bytes)
    legend(canvas, choices)
    heading(canvas, axes, what, where)
    return canvas


def draw(axes: Any, choices: Choices) -> None:
    """The choices as cells, sizes over numbers of nodes."""
    cells.draw(axes, choices.bytes, cells.pick_classes(choices.algorithm, choices.protocol), cells.PICKS)


def legend(figure: Figure, *maps: Choices) -> None:
    """Draws the legend of all picks that occur in the maps."""
    numbers = cells.occurring(*(cells.pick_classes(one.algorithm, one.protocol) for one in maps))
    cells.legend(figure, numbers, cells.PICKS)
