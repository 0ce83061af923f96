"""Makes the figures of a page without their data; figures.js fills them when the page opens and at every change."""

from typing import Any

import numpy as np
from bokeh.layouts import column
from bokeh.models import (
    ColumnDataSource,
    FixedTicker,
    HoverTool,
    PanTool,
    ResetTool,
    SaveTool,
    TapTool,
    WheelZoomTool,
)
from bokeh.models.annotations import Span, Title
from bokeh.plotting import figure

from tuner.answers.charts.palette import NOTHING_COLOUR
from tuner.base.sizes import human_bytes
from tuner.cli.reports.data import PageData

TICK_OCTAVES = 3  # so many powers of two lie between labels of sizes
INK = "#1b1f24"
MAP_TIP = """<div style="max-width:22rem"><b>@name</b>: @size on @nodes<br>@numbers<br>@next</div>"""
CURVE_TIP = """<div style="max-width:22rem"><b>@size: @name</b> @time{0.00} µs, @rate{0.00} GB/s<br>@all</div>"""


def figures(report: PageData) -> Any:
    """A column of three figures with a common axis of sizes (log2 of bytes): map, bus bandwidth and time."""
    logs = np.log2(report.sizes.astype(np.float64))
    middles = (logs[1:] + logs[:-1]) / 2
    edges = np.concatenate([[2 * logs[0] - middles[0]], middles, [2 * logs[-1] - middles[-1]]])
    choice = _map(report, edges)
    # Something to scale the axes by, until the page fills them.
    ends, some = [float(edges[0]), float(edges[-1])], [1.0, 10.0]
    curves = ColumnDataSource(
        {"name": [""], "xs": [ends], "times": [some], "rates": [some], "colour": [INK], "dash": [[]]}, name="curves"
    )
    envelope = ColumnDataSource(
        {"x": ends, "time": some, "rate": some, "size": ["", ""], "name": ["", ""], "all": ["", ""]}, name="envelope"
    )
    rate = _curve(
        "rate", curves, envelope, x_range=choice.x_range, y_axis_type="linear", y_axis_label="bus bandwidth (GB/s)"
    )
    time = _curve("time", curves, envelope, x_range=choice.x_range, y_axis_type="log", y_axis_label="time (µs)")
    for one in (choice, rate, time):
        _size_axis(one, report)
        one.toolbar.logo = None
    time.xaxis.axis_label = "size (NCCL's nBytes)"
    return column(choice, rate, time, sizing_mode="stretch_width")


HEIGHTS = {"map": 335, "rate": 190, "time": 205}
SIDES = ("left", "right", "top", "bottom")
ENDS = ("x0", "y0", "x1", "y1")
RUNS = ("fill", "ink", "hatch")
CELLS = ("name", "size", "nodes", "numbers", "next")


def _figure(**settings: Any) -> Any:
    return figure(
        sizing_mode="stretch_width",
        min_border_left=70,
        min_border_right=12,
        toolbar_location="right",
        lod_threshold=None,
        outline_line_color="#8c959f",
        **settings,
    )


def _map(report: PageData, edges: Any) -> Any:
    rows, columns = len(report.nodes), len(report.sizes)
    cells = ColumnDataSource(
        {
            "left": np.tile(edges[:-1], rows).tolist(),
            "right": np.tile(edges[1:], rows).tolist(),
            "bottom": np.repeat(np.arange(rows) - 0.5, columns).tolist(),
            "top": np.repeat(np.arange(rows) + 0.5, columns).tolist(),
            **{name: [""] * (rows * columns) for name in CELLS},
        },
        name="cells",
    )
    drawn = _figure(
        height=HEIGHTS["map"],
        tools=[],
        x_range=(float(edges[0]), float(edges[-1])),
        y_range=(-0.5, rows - 0.5),
        y_axis_label="nodes",
    )
    drawn.add_layout(_title("NCCL's pick by size and number of nodes; click a cell for its reasons", "map"), "above")
    _add_runs(drawn)
    borders = ColumnDataSource({name: [] for name in ENDS}, name="borders")
    drawn.segment(*ENDS, source=borders, line_color="#ffffff", line_width=2.5, line_cap="square")
    quads = drawn.quad(*SIDES, source=cells, fill_color=None, line_color=None)
    _add_labels(drawn)
    place = ColumnDataSource({name: [] for name in SIDES}, name="place")
    for colour, width in (("#ffffff", 5), ("#000000", 2.5)):
        drawn.quad(*SIDES, source=place, fill_color=None, line_color=colour, line_width=width)
    _add_pointer(drawn, quads)
    drawn.yaxis.ticker = FixedTicker(ticks=list(range(rows)))
    drawn.yaxis.major_label_overrides = {row: str(count) for row, count in enumerate(report.nodes)}
    drawn.yaxis.major_label_text_font_size = "10px"
    drawn.grid.visible = False
    drawn.background_fill_color = NOTHING_COLOUR
    return drawn


def _add_runs(drawn: Any) -> None:
    """Draws neighbouring sizes with the same pick as one area. Bokeh makes a hatch for each area, and fewer areas keep
    the page fast."""
    runs = ColumnDataSource({name: [] for name in (*SIDES, *RUNS)}, name="runs")
    drawn.quad(
        *SIDES,
        source=runs,
        fill_color="fill",
        line_color="fill",
        line_width=0.5,
        hatch_pattern="hatch",
        hatch_color="ink",
        hatch_scale=12,
        hatch_weight=1.2,
        hatch_alpha=0.8,
    )


def _add_labels(drawn: Any) -> None:
    labels = ColumnDataSource({"x": [], "y": [], "text": []}, name="labels")
    drawn.text(
        x="x",
        y="y",
        text="text",
        source=labels,
        text_align="center",
        text_baseline="middle",
        text_font_size="12px",
        text_font_style="bold",
        text_color=INK,
        background_fill_color="#ffffff",
        background_fill_alpha=0.88,
        padding=3,
        border_radius=3,
    )


def _add_pointer(drawn: Any, quads: Any) -> None:
    """Adds the text that the pointer shows for a cell, and lets a click select a cell, which panel.js then shows."""
    drawn.add_tools(
        HoverTool(renderers=[quads], tooltips=MAP_TIP, visible=False),
        TapTool(renderers=[quads], visible=False),
        *_moving(),
    )


def _curve(what: str, curves: ColumnDataSource, envelope: ColumnDataSource, **axes: Any) -> Any:
    drawn = _figure(name=what, height=HEIGHTS[what], tools=[], **axes)
    drawn.add_layout(_title("", what), "above")
    picked = drawn.line(x="x", y=what, source=envelope, line_color="#000000", line_alpha=0.22, line_width=9)
    for colour, width in ((INK, 3.2), ("colour", 2)):  # a dark edge, for the bright colours
        drawn.multi_line(
            xs="xs",
            ys=f"{what}s",
            source=curves,
            line_color=colour,
            line_dash="dash",
            line_width=width,
        )
    drawn.add_layout(Span(dimension="height", location=0, line_color=INK, line_width=1, name=f"{what} marker"))
    hover = HoverTool(renderers=[picked], tooltips=CURVE_TIP, mode="vline", line_policy="nearest", visible=False)
    drawn.add_tools(hover, *_moving())
    return drawn


def _title(text: str, name: str) -> Title:
    return Title(text=text, name=f"{name} title", text_font_size="13px", text_color=INK)


def _moving() -> list[Any]:
    return [PanTool(), WheelZoomTool(), ResetTool(), SaveTool()]


def _size_axis(drawn: Any, report: PageData) -> None:
    """Labels the axis of sizes at powers of two, including the largest size."""
    powers = range(int(report.sizes[-1]).bit_length() - 1, int(report.sizes[0]).bit_length() - 2, -TICK_OCTAVES)
    drawn.xaxis.ticker = FixedTicker(ticks=sorted(powers), minor_ticks=list(range(powers[-1], powers[0] + 1)))
    drawn.xaxis.major_label_overrides = {power: human_bytes(1 << power) for power in powers}
