"""Draws a machine and the channels on it as SVG."""

import re
import xml.etree.ElementTree as ET
from collections import defaultdict
from dataclasses import field
from typing import NamedTuple

from tuner.base.dataclass import dataclass
from tuner.graphs.explain.records import GraphExplanation, LoadedLink, MachineDevice
from tuner.graphs.explain.runs import of_found

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
    """A rectangle, in pixels from the left and from the top."""

    x: float
    y: float
    width: float
    height: float


class Canvas:
    """A list of SVG shapes, in the order in which they are drawn."""

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
        """Writes a text whose beginning, middle or end is at a place."""
        place = {"x": f"{at[0]:g}", "y": f"{at[1]:g}", "class": kind, "text-anchor": anchor}
        ET.SubElement(self.root, "text", place).text = text

    def rectangle(self, place: Rectangle, kind: str, round_: int = 0) -> ET.Element:
        """Draws a rectangle with a class of the style sheet."""
        names = ("x", "y", "width", "height")
        sizes = {name: f"{value:g}" for name, value in zip(names, place, strict=True)}
        return ET.SubElement(self.root, "rect", {**sizes, "rx": str(round_), "class": kind})

    def line(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """Draws a straight line."""
        ends = {"x1": start[0], "y1": start[1], "x2": end[0], "y2": end[1]}
        ET.SubElement(self.root, "line", {**{name: f"{value:g}" for name, value in ends.items()}, "class": "wire"})

    def bar(self, place: Rectangle, link: LoadedLink) -> None:
        """Draws a bar for the part of a link that a channel uses; its name appears when the pointer is over it."""
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
        """The text of the SVG file."""
        return ET.tostring(self.root, encoding="unicode") + "\n"


CELL, HEIGHT, LABEL, TABLE_HEAD = 84, 34, 64, 44


def linked_gpus(explanation: GraphExplanation) -> list[str]:
    """The GPUs that NVLinks join directly to other GPUs."""
    names = {device.name for device in explanation.devices if device.kind == "gpu"}
    links = [link for link in explanation.links if link.kind == "nvlink" and link.start in names and link.end in names]
    joined = {name for link in links for name in (link.start, link.end)}
    return [device.name for device in explanation.devices if device.name in joined]


def table_size(gpus: list[str]) -> tuple[int, int]:
    """Width and height of the table in pixels."""
    return LABEL + CELL * len(gpus), TABLE_HEAD + HEIGHT * len(gpus) + 24


def draw_table(canvas: Canvas, gpus: list[str], explanation: GraphExplanation, at: tuple[int, int]) -> None:
    """Draws the table with its top left corner at this place."""
    x, y = at
    canvas.write((x, y + 12), "NVLink, from the GPU of the row to that of the column: GB/s taken of GB/s", "name")
    for number, gpu in enumerate(gpus):
        canvas.write((x + LABEL + CELL * number + CELL / 2, y + TABLE_HEAD - 8), gpu, "small", "middle")
        canvas.write((x, y + TABLE_HEAD + HEIGHT * number + 20), gpu, "small")
    places = {gpu: number for number, gpu in enumerate(gpus)}
    for link in explanation.links:
        if link.kind != "nvlink" or link.start not in places or link.end not in places:
            continue
        left, top = x + LABEL + CELL * places[link.end], y + TABLE_HEAD + HEIGHT * places[link.start]
        canvas.rectangle(Rectangle(left, top, CELL - 2, HEIGHT - 2), "box gpu", 3)
        text = f"{f'{LIMIT} ' if link.limits else ''}{link.carries_gbs:.4g}/{link.link_gbs:.4g}"
        kind = "limit-text" if link.limits else "small"
        canvas.write((left + CELL / 2, top + 15), text, kind, "middle")
        canvas.bar(Rectangle(left + 6, top + 20, CELL - 14, 7), link)


LEAF, GAP, PAGE = 156, 10, 1600
LINE, BAR, PADDING = 14, 9, 6
BETWEEN = 16  # levels of the tree
MARGIN = 24
HEAD = 92
WORDS = {"pcie": "PCIe", "nvlink": "NVLink", "c2c": "C2C", "adapter": "port", "sockets": "sockets"}
MOST_SOCKET_LINKS = 4
MOST_GPUS_WHOLE = 16  # of larger machines only what channels use is drawn
SWITCH = 30  # height of the box of all NVSwitches


@dataclass(slots=True)
class _Box:
    device: MachineDevice
    names: list[str]
    bars: list[tuple[str, LoadedLink]]
    below: list["_Box"] = field(default_factory=list)

    @property
    def width(self) -> int:
        return max(LEAF, sum(each.width + GAP for each in self.below) - GAP)

    @property
    def own_height(self) -> int:
        return 2 * PADDING + LINE * len(self.names) + (LINE + BAR) * len(self.bars)

    @property
    def height(self) -> int:
        return self.own_height + max((BETWEEN + each.height for each in self.below), default=0)


def picture(explanation: GraphExplanation, title: str) -> str:
    """The text of the SVG. ``title`` names the machine."""
    blocks = _blocks(explanation)
    rows = _rows(blocks)
    width = max(MARGIN * 2 + max(_row_width(row) for row in rows), 760)
    mesh = linked_gpus(explanation)
    tall = HEAD + sum(max(each.height for each in row) + 2 * MARGIN for row in rows)
    below = table_size(mesh) if mesh else (0, 0)
    switched = any(device.kind == "nvs" for device in explanation.devices)
    tall += SWITCH if switched else 0
    width = max(width, below[0] + 2 * MARGIN)
    canvas = Canvas(width, tall + below[1], _title(explanation, title), _description(explanation))
    _legend(canvas, explanation, title)
    y = HEAD
    for row in rows:
        x = MARGIN
        for block in row:
            _draw(canvas, block, x, y)
            x += block.width + 2 * GAP
        y += max(each.height for each in row) + 2 * MARGIN
    if switched:
        switch = Rectangle(MARGIN, y - MARGIN, width - 2 * MARGIN, SWITCH - 6)
        canvas.rectangle(switch, "box", 4)
        canvas.write((2 * MARGIN, y - 8), "NVSwitch: the NVLinks of all GPUs above lead to it", "name")
        y += SWITCH
    if mesh:
        draw_table(canvas, mesh, explanation, (MARGIN, y))
    return canvas.text()


def _title(explanation: GraphExplanation, title: str) -> str:
    return f"{explanation.graph} of {title}"


def _description(explanation: GraphExplanation) -> str:
    found = of_found(explanation.found, explanation.several_nodes)
    full = [link for link in explanation.links if link.limits]
    of = "; ".join(f"{link.link}: {link.carries_gbs:.4g} of {link.link_gbs:.4g} GB/s" for link in full)
    return f"{found}. {f'Links that keep it from having more: {of}.' if full else 'No link keeps it from having more.'}"


def _legend(canvas: Canvas, explanation: GraphExplanation, title: str) -> None:
    canvas.write((MARGIN, 28), _title(explanation, title), "title")
    canvas.write((MARGIN, 48), of_found(explanation.found, explanation.several_nodes), "text")
    says = "bars and numbers: GB/s that channels take of the GB/s of a link, as NCCL counts them; in: to the device"
    says += ", out: from it"
    if _is_large(explanation):
        says = (
            "GB/s that channels take of the GB/s of a link; what is alike is drawn once, and links that carry nothing "
        )
        says += "are left out"
    canvas.write((MARGIN, 66), says, "small")
    x = MARGIN
    if explanation.found.channels <= len(CHANNEL_COLOURS):
        for channel in range(explanation.found.channels):
            canvas.rectangle(Rectangle(x, 74, 10, 10), f"c{channel % len(CHANNEL_COLOURS)}")
            canvas.write((x + 13, 83), f"{channel}", "small")
            x += 32
        canvas.write((x, 83), "channel", "small")
        x += 64
    canvas.rectangle(Rectangle(x, 74, 26, 10), "gauge limit")
    canvas.write((x + 32, 83), f"{LIMIT} keeps the graph from having more", "limit-text")


def _blocks(explanation: GraphExplanation) -> list[_Box]:
    into: dict[str, list[LoadedLink]] = defaultdict(list)
    for link in explanation.links:
        into[link.end].append(link)
    below: dict[str | None, list[MachineDevice]] = defaultdict(list)
    for device in explanation.devices:
        below[device.above].append(device)
    pairs = {(link.start, link.end, link.kind): link for link in explanation.links}

    def box(device: MachineDevice) -> _Box:
        children = below[device.name]
        nets = [each for each in children if each.kind == "net"] if device.kind == "nic" else []
        names = _names(device, nets)
        bars = []
        for net in (device, *nets):
            for link in into[net.name]:
                if not _shown(link, device, net):
                    continue
                bars.append((f"{WORDS[link.kind]} in", link))
                back = pairs.get((link.end, link.start, link.kind))
                if back is not None:
                    bars.append((f"{WORDS[link.kind]} out", back))
        own = _Box(device, names, bars)
        own.below = [box(each) for each in children if each not in nets]
        return own

    blocks = [box(device) for device in below[None] if device.kind != "nvs"]
    return _folded([_used(each) for each in blocks]) if _is_large(explanation) else blocks


def _folded(blocks: list[_Box]) -> list[_Box]:
    """Merges blocks that differ only in numbers: each is drawn once, with its count. A rack becomes one tray and a
    number."""
    alike: dict[object, list[_Box]] = defaultdict(list)
    for block in blocks:
        alike[_likeness(block)].append(block)
    for first, *others in alike.values():
        if others:
            first.names.append(f"{len(others) + 1} of these")
    return [first for first, *_ in alike.values()]


def _likeness(box: _Box) -> tuple[object, ...]:
    names = tuple(re.sub(r"[0-9a-f:.]*\d[0-9a-f:.]*", "#", re.sub(r" of host \d+", "", name)) for name in box.names)
    bars = tuple((what, link.carries_gbs, link.link_gbs, link.limits) for what, link in box.bars)
    return box.device.kind, names, bars, tuple(map(_likeness, box.below))


def _is_large(explanation: GraphExplanation) -> bool:
    return sum(device.kind == "gpu" for device in explanation.devices) > MOST_GPUS_WHOLE


def _used(box: _Box) -> _Box:
    """The box of a device with only the links that carry something; below it are the devices with such links, and all
    GPUs."""
    bars = [(what, link) for what, link in box.bars if link.carries_gbs > 0]
    below: list[_Box] = []
    for each in map(_used, box.below):
        below += [each] if each.bars or each.device.kind == "gpu" else each.below
    return _Box(box.device, box.names, bars, below)


def _shown(link: LoadedLink, device: MachineDevice, end: MachineDevice) -> bool:
    """Whether a link is drawn in a device's box; only links upwards, to NVSwitches and to the network are."""
    if device.kind == "cpu":
        return link.kind == "sockets" and link.carries_gbs > 0
    return link.start in (device.above, "NVSwitch") or (end is not device and link.kind == "adapter")


def _names(device: MachineDevice, nets: list[MachineDevice]) -> list[str]:
    if nets:
        return [", ".join(each.says for each in nets), device.place if device.kind == "nic" else device.says]
    if device.kind in ("pci", "nic"):
        what = "PCIe switch" if device.kind == "pci" else "adapter"
        return [what, device.place]
    return [device.says]


def _rows(blocks: list[_Box]) -> list[list[_Box]]:
    rows: list[list[_Box]] = [[]]
    for block in blocks:
        if rows[-1] and _row_width([*rows[-1], block]) > PAGE:
            rows.append([])
        rows[-1].append(block)
    return rows


def _row_width(row: list[_Box]) -> int:
    return sum(block.width + 2 * GAP for block in row) - 2 * GAP


def _draw(canvas: Canvas, box: _Box, x: int, y: int) -> None:
    canvas.rectangle(Rectangle(x, y, box.width, box.own_height), f"box {box.device.kind}", 4)
    line = y + PADDING
    for number, text in enumerate(box.names):
        line += LINE
        canvas.write((x + PADDING, line - 3), text, "small" if number else "name")
    width = min(box.width, 2 * LEAF) - 2 * PADDING
    for what, link in box.bars[: None if box.device.kind != "cpu" else 2 * MOST_SOCKET_LINKS]:
        line += LINE
        text = f"{_far(what, link, box.device)} {link.carries_gbs:.4g}/{link.link_gbs:.4g}"
        marked = (f"{LIMIT} {text}", "limit-text") if link.limits else (text, "small")
        canvas.write((x + PADDING, line - 3), *marked)
        canvas.bar(Rectangle(x + PADDING, line, width, BAR - 3), link)
        line += BAR
    at, top = x, y + box.own_height
    for each in box.below:
        middle = at + each.width // 2
        canvas.line((middle, top), (middle, top + BETWEEN))
        _draw(canvas, each, at, top + BETWEEN)
        at += each.width + GAP


def _far(what: str, link: LoadedLink, device: MachineDevice) -> str:
    if device.kind != "cpu":
        return what
    return f"from {link.start}" if link.end == device.name else f"to {link.end}"
