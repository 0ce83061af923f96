"""NVLinks that lead from GPU to GPU, as a table: rows send to columns."""

from tuner.cli.reports.svg import LIMIT, Canvas, Rectangle
from tuner.graphs.explain.records import Explanation

CELL, HEIGHT, LABEL, HEAD = 84, 34, 64, 44


def linked_gpus(explanation: Explanation) -> list[str]:
    """The GPUs that NVLinks join to others directly."""
    names = {device.name for device in explanation.devices if device.kind == "gpu"}
    links = [link for link in explanation.links if link.kind == "nvlink" and link.start in names and link.end in names]
    joined = {name for link in links for name in (link.start, link.end)}
    return [device.name for device in explanation.devices if device.name in joined]


def table_size(gpus: list[str]) -> tuple[int, int]:
    """Width and height in pixels."""
    return LABEL + CELL * len(gpus), HEAD + HEIGHT * len(gpus) + 24


def draw_table(canvas: Canvas, gpus: list[str], explanation: Explanation, at: tuple[int, int]) -> None:
    """Draws it from a place on."""
    x, y = at
    canvas.write((x, y + 12), "NVLink, from the GPU of the row to that of the column: GB/s taken of GB/s", "name")
    for number, gpu in enumerate(gpus):
        canvas.write((x + LABEL + CELL * number + CELL / 2, y + HEAD - 8), gpu, "small", "middle")
        canvas.write((x, y + HEAD + HEIGHT * number + 20), gpu, "small")
    places = {gpu: number for number, gpu in enumerate(gpus)}
    for link in explanation.links:
        if link.kind != "nvlink" or link.start not in places or link.end not in places:
            continue
        left, top = x + LABEL + CELL * places[link.end], y + HEAD + HEIGHT * places[link.start]
        canvas.rectangle(Rectangle(left, top, CELL - 2, HEIGHT - 2), "box gpu", 3)
        text = f"{f'{LIMIT} ' if link.limits else ''}{link.carries_gbs:.4g}/{link.link_gbs:.4g}"
        kind = "limit-text" if link.limits else "small"
        canvas.write((left + CELL / 2, top + 15), text, kind, "middle")
        canvas.bar(Rectangle(left + 6, top + 20, CELL - 14, 7), link)
