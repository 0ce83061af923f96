"""`make pictures`: all pictures of the documentation, as its commands draw them now.

Those of docs/plots.md and docs/two-minutes.md are what the pages' own commands write, but for the path from a topology
to a pick, which is drawn here; those of docs/report.md are taken in a headless browser.
"""

import re
import shutil
from math import log2
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.support import browser as web
from tests.support import doc_sessions as sessions
from tuner.answers.calibrated import TimesWanted
from tuner.answers.serving import ServedGroup
from tuner.base.names import AlgoProto, Collective, DataType, Op
from tuner.base.sizes import human_bytes
from tuner.cli.reports.data import NODES, Packer, collect, collect_calibrated
from tuner.cli.reports.page import page
from tuner.emulator.request import Request
from tuner.emulator.rules.call import RuleCall
from tuner.emulator.selection import Selection
from tuner.scenario import Scenario

DOCS = sessions.ROOT / "docs"
COLOURS = 96  # keeps the files small


def plots() -> None:
    """Each picture that the pages show, from the folder in which their commands were run."""
    for shown in (DOCS / "plots.md", DOCS / "two-minutes.md"):
        for block in sessions.runnable(shown):
            sessions.ran(block)
        for picture in re.findall(r"!\[[^\]]*\]\((plots/[^)]+\.png)\)", shown.read_text("utf-8")):
            shutil.copy(sessions.folder(shown) / Path(picture).name, DOCS / picture)


def path() -> None:
    """The path from a topology to a pick, with the numbers of 2 DGX H100."""
    scenario, size = Scenario(nccl="2.28.9", machine="dgx-h100", nodes=2), 1 << 20
    selection, request = Selection(scenario.communicator()), Request(Collective.AllReduce, DataType.float32, Op.sum)
    graphs = selection.communicator.graphs
    costs = selection.cost_table(request, size)[0]
    cells = sorted(selection.candidates(request), key=lambda cell: float(costs[*cell]))
    model: list[tuple[AlgoProto, float, float]] = [
        (cell, *_numbers(selection.model_of(RuleCall(selection.communicator, request, cell)))) for cell in cells
    ]
    boxes = {
        "Topology": ["8 GPUs, 4 NVSwitches", "8 adapters of 400 Gb/s", "CPUs, PCI switches", "and how all are linked"],
        "Graphs": [
            f"{algorithm.name}: {one.channels} x {one.bw_intra_gbs:g} GB/s"
            for algorithm, one in graphs.items()
            if one.channels
        ],
        "Table": [f"{name_of(cell)}: {latency:.1f} us, {bandwidth:.0f} GB/s" for cell, latency, bandwidth in model[:5]],
        "Pick at 1 MiB": [f"{name_of(cell)}: {float(costs[*cell]):.1f} us" for cell in cells[:4]],
    }
    between = ["search", "latencies, bandwidths", "size: the least time"]
    width, high, gap = 252, 138, 84
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {4 * width + 3 * gap + 4} {high + 4}" '
        'font-family="system-ui, sans-serif" font-size="13">',
        f'<rect width="{4 * width + 3 * gap + 4}" height="{high + 4}" fill="#fff"/>',
    ]
    for number, (title, lines) in enumerate(boxes.items()):
        x = 2 + number * (width + gap)
        parts.append(f'<rect x="{x}" y="2" width="{width}" height="{high}" rx="8" fill="#eef2f6" stroke="#00487A"/>')
        parts.append(f'<text x="{x + 12}" y="26" font-weight="bold" font-size="15">{title}</text>')
        for line, text in enumerate(lines):
            bold = ' font-weight="bold"' if number == 3 and not line else ""
            parts.append(f'<text x="{x + 12}" y="{48 + 19 * line}"{bold}>{text}</text>')
        if number < len(between):
            start, end = x + width + 6, x + width + gap - 6
            parts.append(f'<path d="M{start} 66H{end}m-8 -6l8 6l-8 6" fill="none" stroke="#00487A" stroke-width="2"/>')
            for line, text in enumerate(between[number].split(" ", 1)):
                place = f'x="{(start + end) / 2}" y="{84 + 14 * line}" text-anchor="middle" font-size="10"'
                parts.append(f"<text {place}>{text}</text>")
    (DOCS / "plots" / "path.svg").write_text("\n".join([*parts, "</svg>", ""]), "utf-8")


def _numbers(model: tuple[Any, Any]) -> tuple[float, float]:
    return float(model[0]), float(model[1])


def name_of(cell: AlgoProto) -> str:
    return f"{cell[0].name}/{cell[1].name}"


ENGINES = ("vllm@0.33.0", "sglang@0.5.23", "tensorrt-llm@1.4.0rc1", "lmdeploy@0.18.0", "tgi@3.3.6")
FIRST, LAST = 10, 30  # powers of two: 1 KiB to 1 GiB
FILLS = ("#00487A", "#C45A00", "#2E7D32", "#7B3F98", "#8A6D00", "#9FB3C8")


def engines() -> None:
    """Who carries an AllReduce of bfloat16 by its size: engines on eight H100 and on eight B200."""
    left, width, high, gap = 190, 720, 26, 14
    request = Request(Collective.AllReduce, DataType.bfloat16, Op.sum)
    fills: dict[str, str] = {"NCCL": FILLS[-1]}
    parts: list[str] = []
    y = 24
    for machine in ("dgx-h100", "dgx-b200"):
        parts.append(f'<text x="8" y="{y}" font-weight="bold">8 x {machine.removeprefix("dgx-").upper()}</text>')
        y += 10
        for engine in ENGINES:
            group = ServedGroup(Scenario(nccl="2.30.7", machine=machine, nodes=1), engine)
            parts.append(f'<text x="8" y="{y + 18}">{engine}</text>')
            for each in group.ranges(request, 1 << FIRST, 1 << LAST):
                title = "measured at start" if each.carrier == "autotuned" else each.title.partition(",")[0]
                fill = fills.setdefault(title, FILLS[len(fills) - 1])
                start, end = (
                    left + width * (log2(size) - FIRST) / (LAST - FIRST) for size in (each.from_bytes, each.to_bytes)
                )
                parts.append(f'<rect x="{start:.1f}" y="{y}" width="{end - start:.1f}" height="{high}" fill="{fill}"/>')
                if each.to_bytes < 1 << LAST:  # the largest size of a colour stands at its end
                    last = f'x="{end - 6:.1f}" y="{y + 18}" text-anchor="end" fill="#fff"'
                    parts.append(f"<text {last}>to {human_bytes(each.to_bytes)}</text>")
            y += high + gap
        y += 16
    for power in range(FIRST, LAST + 1, 4):
        x = left + width * (power - FIRST) / (LAST - FIRST)
        parts.append(f'<text x="{x:.1f}" y="{y}" text-anchor="middle">{human_bytes(1 << power)}</text>')
    y += 30
    for number, (title, fill) in enumerate(fills.items()):
        x = 8 + 300 * (number % 3)
        parts.append(f'<rect x="{x}" y="{y + 24 * (number // 3) - 12}" width="16" height="14" fill="{fill}"/>')
        parts.append(f'<text x="{x + 24}" y="{y + 24 * (number // 3)}">{title}</text>')
    y += 24 * ((len(fills) - 1) // 3) + 12
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + width + 40} {y}" '
    head += 'font-family="system-ui, sans-serif" font-size="13">'
    ground = f'<rect width="{left + width + 40}" height="{y}" fill="#fff"/>'
    (DOCS / "plots" / "engines.svg").write_text("\n".join([head, ground, *parts, "</svg>", ""]), "utf-8")


def report() -> None:
    """The page of a machine, as a reader sees it who clicks a cell and moves the slider."""
    scenario = Scenario(nccl="2.32.3", machine="dgx-h100", nodes=2)
    releases = scenario.releases
    with TemporaryDirectory() as folder, web.chromium(Path(folder) / "profile") as browser:
        file = Path(folder) / "page.html"
        data = collect(scenario, releases, DataType.float32, Op.sum)
        file.write_text(page(Packer(data, collect_calibrated(data, TimesWanted(beside_nccl=True))))[0], "utf-8")
        browser.get(f"file://{file}")
        web.until(lambda: browser.execute_script("return document.body.dataset.ready"))
        web.move(browser, log2(3 << 23), NODES.index(24), click=True)
        web.until(lambda: "24 nodes" in web.tooltips(browser))
        save(browser, "clicked.png")
        browser.execute_script("report.show({release: arguments[0]})", releases.index("2.21.5"))
        web.move(browser, log2(1 << 29), NODES.index(8))
        web.until(lambda: "8 nodes" in web.tooltips(browser))
        save(browser, "slid.png")


def save(browser: Any, name: str) -> None:
    web.drawn(browser)
    web.screen(browser).quantize(COLOURS, dither=0).save(DOCS / "report" / name, optimize=True)


if __name__ == "__main__":
    plots()
    path()
    engines()
    report()
