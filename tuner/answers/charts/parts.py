"""Parts of pictures: axes, cells of maps, lines."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from io import BytesIO
from textwrap import fill
from typing import Any, TypeAlias

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch, PathPatch
from matplotlib.path import Path
from matplotlib.patheffects import Normal, Stroke
from numpy.typing import NDArray

from tuner.answers.charts import palette
from tuner.answers.choices import NOTHING
from tuner.base.dataclass import dataclass
from tuner.base.names import AlgoProto, Algorithm, Protocol
from tuner.base.numerics import SizeArray
from tuner.base.sizes import human_bytes


class NotebookFigure(Figure):
    """A figure that notebooks show, without pyplot and with any backend."""

    def _repr_png_(self) -> bytes:
        png = BytesIO()
        self.savefig(png, format="png")
        return png.getvalue()


MOST_SIZES = 12  # that are named along an axis
PICK_TITLE = "algorithm/protocol"
UPPER, LOWER = "outside right upper", "outside right lower"  # where a legend stands
GRID = "#D0D0D0"
FloatEdges = NDArray[np.floating[Any]]  # between rows and beyond both ends: one more than rows


def size_axis(axes: Any, sizes: SizeArray, named: bool = True, margin: float = 1.0) -> None:
    """Sets a logarithmic axis over ``sizes`` in bytes, with powers of two as labels.

    There is a tick at every power, and as many labels as there is room for. ``margin`` is a factor beyond the smallest
    and the largest size, for markers.
    """
    low, high = float(sizes[0]) / margin, float(sizes[-1]) * margin
    axes.set_xscale("log", base=2)
    axes.set_xlim(low, high)
    powers = range(int(np.ceil(np.log2(low))), int(np.floor(np.log2(high))) + 1)
    few = -(-len(powers) // MOST_SIZES) or 1
    names = [1 << power for power in powers[::few]] if len(powers) > 1 else sorted({int(sizes[0]), int(sizes[-1])})
    axes.set_xticks(names, [human_bytes(size) for size in names])
    axes.set_xticks([1 << power for power in powers], minor=True, labels=[""] * len(powers))
    axes.tick_params(axis="x", labelbottom=named)
    if named:
        axes.set_xlabel("size (NCCL's nBytes)")


def node_axis(axes: Any, nodes: Sequence[int], most: int = 16) -> None:
    """Sets an axis with a row for each number of nodes, logarithmic in height: 1 to 8 nodes are as high as 8 to 64.
    About ``most`` rows are labelled.
    """
    rows = [0]
    if len(nodes) > 1:
        edges, heights = np.arange(len(nodes) + 1) - 0.5, row_edges(nodes)
        axes.set_yscale("function", functions=(partial(_between, edges, heights), partial(_between, heights, edges)))
        rows = _named_rows(nodes, heights, most)
    axes.set_ylim(-0.5, len(nodes) - 0.5)
    axes.set_yticks(rows, [str(nodes[row]) for row in rows])
    axes.set_ylabel("nodes")


def row_edges(nodes: Sequence[int]) -> FloatEdges:
    """Lower and upper edges of the rows, as base-2 logarithms of node counts. The array of numbers [edge] has one more
    element than there are rows, whose node counts are ascending.
    """
    counts = np.log2(nodes)
    middle = (counts[1:] + counts[:-1]) / 2
    return np.concatenate([[2 * counts[0] - middle[0]], middle, [2 * counts[-1] - middle[-1]]])


def _between(given: FloatEdges, wanted: FloatEdges, at: Any) -> Any:
    return np.interp(at, given, wanted)


def _named_rows(nodes: Sequence[int], heights: FloatEdges, most: int) -> list[int]:
    """The rows to label: powers of two first, as far as there is room."""
    apart = (heights[-1] - heights[0]) / most
    named: list[int] = []
    for row in sorted(range(len(nodes)), key=lambda row: (nodes[row].bit_count() > 1, row)):
        if all(abs(np.log2(nodes[row]) - np.log2(nodes[other])) >= apart for other in named):
            named.append(row)
    return sorted(named)


def heading(figure: Any, top: Any, what: str, where: str) -> None:
    """Writes ``what`` over the figure and ``where`` over its topmost axes."""
    figure.suptitle(what, x=0.01, horizontalalignment="left", weight="bold")
    top.set_title(fill(where, 110), loc="left", fontsize="medium", parse_math=False)  # a file's name may have a $


def legend(figure: Any, handles: Sequence[Any], title: str = PICK_TITLE, where: str = UPPER, **size: float) -> None:
    """Draws the legend outside the axes."""
    figure.legend(
        handles=handles,
        title=title,
        loc=where,
        frameon=False,
        alignment="left",
        labelspacing=0.8,
        **{"handlelength": 3.5, **size},
    )


def grid(axes: Any) -> None:
    """Draws grid lines behind everything else."""
    axes.grid(True, color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)


DENSITY, INK_POINTS = 2, 0.8  # of hatches

Classes = NDArray[np.int64]  # [row][size]


@dataclass(frozen=True, slots=True)
class Style:
    """The look of the cells of one class."""

    colour: str
    ink: str
    hatch: str
    label: str

    def apply(self, patch: Patch, edge_points: float) -> Patch:
        """Sets the look of the ``patch`` to this style, and returns the patch. Its hatches and its edge get the colour
        ``ink``.
        """
        patch.set(facecolor=self.colour, edgecolor=self.ink, linewidth=edge_points, label=self.label)
        patch.set(hatch=self.hatch * DENSITY, hatch_linewidth=INK_POINTS)
        return patch

    def handle(self) -> Patch:
        """The entry of this style in a legend."""
        return self.apply(Patch(), edge_points=0.5)


NOTHING_STYLE = Style(palette.NOTHING_COLOUR, palette.NOTHING_INK, palette.NOTHING_HATCH, "nothing can run")


def draw(axes: Any, edges: NDArray[np.float64], classes: Classes, styles: Mapping[int, Style]) -> None:
    """Draws the cells of ``classes`` [row][cell], numbers of ``styles``, with one path for each class that occurs.

    ``edges``: sizes in bytes between the cells and beyond both ends, one more than cells.
    """
    for number in occurring(classes):
        rows, starts, stops = _runs(classes == number)
        left, right, down, up = edges[starts], edges[stops], rows - 0.5, rows + 0.5
        corners = np.stack([np.stack([left, right, right, left], 1), np.stack([down, down, up, up], 1)], 2)
        area = PathPatch(Path.make_compound_path_from_polys(corners), antialiased=False)
        axes.add_patch(styles[number].apply(area, edge_points=0))
    axes.add_patch(PathPatch(_borders(classes, edges), fill=False, linewidth=0.5, edgecolor="#000000"))


def legend_of_picks(
    figure: Figure, numbers: Iterable[int], styles: Mapping[int, Style], title: str = PICK_TITLE, where: str = UPPER
) -> None:
    """Draws the styles of classes as a legend beside the axes."""
    legend(figure, [styles[number].handle() for number in numbers], title, where, handleheight=1.8)


def occurring(*classes: Classes) -> list[int]:
    """The distinct class numbers in all the arrays `[row][size]` together, ascending."""
    return sorted({int(number) for each in classes for number in np.unique(each)})


def size_edges(sizes: SizeArray) -> NDArray[np.float64]:
    """Edges in bytes: the first size, the geometric middles between the sizes, and the last size; one more than
    sizes.
    """
    values = sizes.astype(np.float64)
    return np.concatenate([values[:1], np.sqrt(values[1:] * values[:-1]), values[-1:]])


def _runs(inside: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Row, first column, and column past the last of each run of True, as three arrays."""
    steps = np.diff(np.pad(inside, ((0, 0), (1, 1))).astype(np.int8), axis=1)
    rows, starts = np.nonzero(steps == 1)
    return rows, starts, np.nonzero(steps == -1)[1]


def _borders(classes: Classes, edges: NDArray[np.float64]) -> Path:
    """A path of straight lines between neighbouring cells that differ."""
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
    """The class of each cell as a key of ``PICKS``, numbers `[row][size]`, from NCCL's ids of algorithm and protocol.
    Both ids are -1 if nothing can run.
    """
    return np.where(algorithm < 0, NOTHING, algorithm.astype(np.int64) * len(Protocol) + protocol)


Look: TypeAlias = dict[str, Any]  # keyword arguments of matplotlib's Axes.plot

WIDTH, OUTLINE = 1.6, 2.6  # points
PICK: Look = {"color": "#000000", "alpha": 0.22, "linewidth": 7, "solid_capstyle": "butt", "zorder": 1}


def style(algo_proto: AlgoProto) -> Look:
    """The look of a line; light colours have a dark outline, to be seen on white paper. Lines of LL have empty markers,
    those of LL128 half-filled ones.
    """
    algorithm, protocol = algo_proto
    light = palette.INKS[algorithm] == "#000000"
    return {
        "color": palette.COLOURS[algorithm],
        "linestyle": palette.DASHES[protocol],
        "linewidth": WIDTH,
        "marker": palette.MARKERS[algorithm],
        "markersize": 6,
        "markeredgecolor": "#000000",
        "markeredgewidth": 0.6,
        "markerfacecolor": "#FFFFFF" if protocol is Protocol.LL else palette.COLOURS[algorithm],
        "fillstyle": "left" if protocol is Protocol.LL128 else "full",
        "markerfacecoloralt": "#FFFFFF",
        "path_effects": [Stroke(linewidth=OUTLINE, foreground="#404040"), Normal()] if light else None,
        "label": f"{algorithm.name}/{protocol.name}",
    }
