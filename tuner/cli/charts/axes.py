"""What all figures have in common: axes of sizes and of node counts, headings, legends."""

from collections.abc import Sequence
from functools import partial
from textwrap import fill
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.base.numerics import SizeArray
from tuner.base.sizes import human_bytes

MOST_SIZES = 12  # that are named along an axis
PICK_TITLE = "algorithm/protocol"
UPPER, LOWER = "outside right upper", "outside right lower"  # where a legend stands
GRID = "#D0D0D0"
FloatEdges = NDArray[np.floating[Any]]  # between rows and beyond both ends: one more than rows


def size_axis(axes: Any, sizes: SizeArray, named: bool = True, margin: float = 1.0) -> None:
    """Logarithmic over ``sizes`` in bytes, with powers of two in words.

    A tick at every power, a name at as many as there is room for. ``margin`` is a factor beyond the smallest and the
    largest size, for markers.
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
    """A row for each count, logarithmic in height: from 1 to 8 nodes as from 8 to 64; about ``most`` are named."""
    rows = [0]
    if len(nodes) > 1:
        edges, heights = np.arange(len(nodes) + 1) - 0.5, row_edges(nodes)
        axes.set_yscale("function", functions=(partial(_between, edges, heights), partial(_between, heights, edges)))
        rows = _named_rows(nodes, heights, most)
    axes.set_ylim(-0.5, len(nodes) - 0.5)
    axes.set_yticks(rows, [str(nodes[row]) for row in rows])
    axes.set_ylabel("nodes")


def row_edges(nodes: Sequence[int]) -> FloatEdges:
    """Base-2 logarithms, numbers [count], between the ascending counts and beyond both ends, one more than these."""
    counts = np.log2(nodes)
    middle = (counts[1:] + counts[:-1]) / 2
    return np.concatenate([[2 * counts[0] - middle[0]], middle, [2 * counts[-1] - middle[-1]]])


def _between(given: FloatEdges, wanted: FloatEdges, at: Any) -> Any:
    return np.interp(at, given, wanted)


def _named_rows(nodes: Sequence[int], heights: FloatEdges, most: int) -> list[int]:
    """Powers of two first, where there is room."""
    apart = (heights[-1] - heights[0]) / most
    named: list[int] = []
    for row in sorted(range(len(nodes)), key=lambda row: (nodes[row].bit_count() > 1, row)):
        if all(abs(np.log2(nodes[row]) - np.log2(nodes[other])) >= apart for other in named):
            named.append(row)
    return sorted(named)


def heading(figure: Any, top: Any, what: str, where: str) -> None:
    """``what`` over the figure, ``where`` over its topmost axes."""
    figure.suptitle(what, x=0.01, horizontalalignment="left", weight="bold")
    top.set_title(fill(where, 110), loc="left", fontsize="medium", parse_math=False)  # a file's name may have a $


def legend(figure: Any, handles: Sequence[Any], title: str = PICK_TITLE, where: str = UPPER, **size: float) -> None:
    """Beside the axes of the figure."""
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
    """Lines behind what is drawn."""
    axes.grid(True, color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
