"""A plain SVG file: boxes, lines, text and bars, readable on light and dark pages and by screen readers."""

import xml.etree.ElementTree as ET
from typing import NamedTuple

from tuner.graphs.explain.records import LoadedLink

# Okabe and Ito's hues (jfly.uni-koeln.de/color), channel by channel; the numbers stand beside them.
CHANNEL_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#B3A900", "#7A7A7A")
LIMIT = "\N{BLACK DIAMOND}"  # before what limits
STYLE = """
svg.machine { background: #ffffff; font: 11px system-ui, "Segoe UI", "Helvetica Neue", Arial, sans-serif; }
svg.machine text { fill: #1b1f24; }
svg.machine .title { font-size: 17px; font-weight: 600; }
svg.machine .text { font-size: 13px; }
svg.machine .name { font-weight: 600; font-size: 12px; }
svg.machine .small { fill: #424a53; font-size: 10px; }
svg.machine .limit-text { fill: #b3261e; font-size: 10px; font-weight: 600; }
svg.machine .box { fill: #f6f8fa; stroke: #8c959f; }
svg.machine .gpu { fill: #e6f2e9; }
svg.machine .nic, svg.machine .net { fill: #e8effa; }
svg.machine .cpu { fill: #f1ecf7; }
svg.machine .wire { stroke: #57606a; stroke-width: 1.5; }
svg.machine .gauge { fill: #ffffff; stroke: #8c959f; stroke-width: 0.8; }
svg.machine .gauge.limit { stroke: #b3261e; stroke-width: 2; stroke-dasharray: 4 2; }
svg.machine .part { stroke: #ffffff; stroke-width: 0.6; }
@media (prefers-color-scheme: dark) {
  svg.machine { background: #15191e; }
  svg.machine text { fill: #e6edf3; }
  svg.machine .small { fill: #b5bec8; }
  svg.machine .limit-text { fill: #ff9a8f; }
  svg.machine .box { fill: #22272e; stroke: #768390; }
  svg.machine .gpu { fill: #1d3327; }
  svg.machine .nic, svg.machine .net { fill: #1c2a40; }
  svg.machine .cpu { fill: #2c2537; }
  svg.machine .wire { stroke: #909dab; }
  svg.machine .gauge { fill: #15191e; stroke: #768390; }
  svg.machine .gauge.limit { stroke: #ff9a8f; }
  svg.machine .part { stroke: #15191e; }
}
"""


class Rectangle(NamedTuple):
    """A place, in pixels from the left and from the top."""

    x: float
    y: float
    width: float
    height: float


class Canvas:
    """What is drawn, in the order in which it is drawn."""

    def __init__(self, width: int, height: int, title: str, description: str) -> None:
        size = {"width": str(width), "height": str(height), "viewBox": f"0 0 {width} {height}"}
        names = {"class": "machine", "role": "img", "aria-labelledby": "machine-title machine-description"}
        self.root = ET.Element("svg", {"xmlns": "http://www.w3.org/2000/svg", **size, **names})
        ET.SubElement(self.root, "title", id="machine-title").text = title
        ET.SubElement(self.root, "desc", id="machine-description").text = description
        colours = "".join(
            f"svg.machine .c{number} {{ fill: {colour}; }}\n" for number, colour in enumerate(CHANNEL_COLOURS)
        )
        ET.SubElement(self.root, "style").text = STYLE + colours

    def write(self, at: tuple[float, float], text: str, kind: str, anchor: str = "start") -> None:
        """Text whose line begins (or has its middle, or ends) at a place."""
        place = {"x": f"{at[0]:g}", "y": f"{at[1]:g}", "class": kind, "text-anchor": anchor}
        ET.SubElement(self.root, "text", place).text = text

    def rectangle(self, place: Rectangle, kind: str, round_: int = 0) -> ET.Element:
        """A rectangle of a class of the style."""
        names = ("x", "y", "width", "height")
        sizes = {name: f"{value:g}" for name, value in zip(names, place, strict=True)}
        return ET.SubElement(self.root, "rect", {**sizes, "rx": str(round_), "class": kind})

    def line(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """A straight line."""
        ends = {"x1": start[0], "y1": start[1], "x2": end[0], "y2": end[1]}
        ET.SubElement(self.root, "line", {**{name: f"{value:g}" for name, value in ends.items()}, "class": "wire"})

    def bar(self, place: Rectangle, link: LoadedLink) -> None:
        """How much of a link each channel takes; what it is called appears where a pointer rests on it."""
        gauge = self.rectangle(place, f"gauge{' limit' if link.limits else ''}")
        of = f"{link.carries_gbs:.4g} of {link.link_gbs:.4g} GB/s"
        ET.SubElement(gauge, "title").text = f"{link.link}: {of}"
        at = place.x
        for channel, gbs in link.channels_gbs.items():
            width = place.width * min(1.0, gbs / link.link_gbs) if link.link_gbs else 0.0
            part = self.rectangle(
                Rectangle(at, place.y + 1, width, place.height - 2), f"part c{channel % len(CHANNEL_COLOURS)}"
            )
            ET.SubElement(part, "title").text = f"{link.link}: channel {channel}, {gbs:.4g} GB/s"
            at += width

    def text(self) -> str:
        """The file."""
        return ET.tostring(self.root, encoding="unicode") + "\n"
