"""Maps of classes over sizes and rows: crisp cells with colour and hatch, and lines where the class changes."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch, PathPatch
from matplotlib.path import Path
from numpy.typing import NDArray

from tuner.answers.choices import NOTHING
from tuner.base.names import Algorithm, Protocol
from tuner.base.numerics import SizeArray
from tuner.cli.charts import palette
from tuner.cli.charts.axes import PICK_TITLE, UPPER
from tuner.cli.charts.axes import legend as beside

DENSITY, INK_POINTS = 2, 0.8  # of hatches

Classes = NDArray[np.int64]  # [row][size]


@dataclass(frozen=True, slots=True)
class Style:
    """How the cells of one class look."""

    colour: str
    ink: str
    hatch: str
    label: str

    def apply(self, patch: Patch, edge_points: float) -> Patch:
        """Hatches have the colour of the edge, which is the ink."""
        patch.set(facecolor=self.colour, edgecolor=self.ink, linewidth=edge_points, label=self.label)
        patch.set(hatch=self.hatch * DENSITY, hatch_linewidth=INK_POINTS)
        return patch

    def handle(self) -> Patch:
        """For a legend."""
        return self.apply(Patch(), edge_points=0.5)


NOTHING_STYLE = Style(palette.NOTHING_COLOUR, palette.NOTHING_INK, palette.NOTHING_HATCH, "nothing can run")


def draw(axes: Any, sizes: SizeArray, classes: Classes, styles: Mapping[int, Style]) -> None:
    """Cells of ``classes`` [row][size], numbers of ``styles``; one path for each class that occurs.

    A cell reaches halfway, in logarithms, to the sizes in bytes beside it.
    """
    edges = size_edges(sizes)
    for number in occurring(classes):
        rows, starts, stops = _runs(classes == number)
        left, right, down, up = edges[starts], edges[stops], rows - 0.5, rows + 0.5
        corners = np.stack([np.stack([left, right, right, left], 1), np.stack([down, down, up, up], 1)], 2)
        area = PathPatch(Path.make_compound_path_from_polys(corners), antialiased=False)
        axes.add_patch(styles[number].apply(area, edge_points=0))
    axes.add_patch(PathPatch(_borders(classes, edges), fill=False, linewidth=0.5, edgecolor="#000000"))


def legend(
    figure: Figure, numbers: Iterable[int], styles: Mapping[int, Style], title: str = PICK_TITLE, where: str = UPPER
) -> None:
    """The styles of classes in a legend beside the axes."""
    beside(figure, [styles[number].handle() for number in numbers], title, where, handleheight=1.8)


def occurring(*classes: Classes) -> list[int]:
    """The numbers of the classes that occur in any of the arrays [row][size], ascending."""
    return sorted({int(number) for each in classes for number in np.unique(each)})


def size_edges(sizes: SizeArray) -> NDArray[np.float64]:
    """Edges in bytes between the sizes, and the first and the last of them: one more than sizes."""
    values = sizes.astype(np.float64)
    return np.concatenate([values[:1], np.sqrt(values[1:] * values[:-1]), values[-1:]])


def _runs(inside: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Row, first and past the last column of each run."""
    steps = np.diff(np.pad(inside, ((0, 0), (1, 1))).astype(np.int8), axis=1)
    rows, starts = np.nonzero(steps == 1)
    return rows, starts, np.nonzero(steps == -1)[1]


def _borders(classes: Classes, edges: NDArray[np.float64]) -> Path:
    """Straight lines where neighbours differ."""
    rows, columns = np.nonzero(classes[:, 1:] != classes[:, :-1])
    at = edges[columns + 1]
    upright = np.stack([np.stack([at, at], 1), np.stack([rows - 0.5, rows + 0.5], 1)], 2)
    below, starts, stops = _runs(classes[1:] != classes[:-1])
    level = np.stack([np.stack([edges[starts], edges[stops]], 1), np.stack([below + 0.5, below + 0.5], 1)], 2)
    lines = np.concatenate([upright, level])
    return Path(lines.reshape(-1, 2), np.tile([Path.MOVETO, Path.LINETO], len(lines)).astype(Path.code_type))


PICKS = {
    NOTHING: NOTHING_STYLE,
    **{
        algorithm * len(Protocol) + protocol: Style(
            palette.COLOURS[algorithm],
            palette.INKS[algorithm],
            palette.HATCHES[protocol],
            f"{algorithm.name}/{protocol.name}",
        )
        for algorithm in Algorithm
        for protocol in Protocol
    },
}


def pick_classes(algorithm: NDArray[np.int8], protocol: NDArray[np.int8]) -> Classes:
    """Of NCCL's numbers, both -1 where nothing can run, [row][size]: the classes of ``PICKS``."""
    return np.where(algorithm < 0, NOTHING, algorithm.astype(np.int64) * len(Protocol) + protocol)
