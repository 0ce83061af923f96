"""Lines of combinations: colour and marker of the algorithm, dashes of the protocol."""

from typing import Any, TypeAlias

from matplotlib.patheffects import Normal, Stroke

from tuner.base.names import AlgoProto, Protocol
from tuner.cli.charts import palette

Look: TypeAlias = dict[str, Any]  # keyword arguments of matplotlib's Axes.plot

WIDTH, OUTLINE = 1.6, 2.6  # points
PICK: Look = {"color": "#000000", "alpha": 0.22, "linewidth": 7, "solid_capstyle": "butt", "zorder": 1}


def style(algo_proto: AlgoProto) -> Look:
    """Of a line; light colours have a dark outline, to be seen on white. Markers of LL are empty, of LL128 half."""
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
