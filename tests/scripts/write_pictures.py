"""`make pictures`: all pictures of the documentation, as its commands draw them now.

Those of docs/plots.md are what the page's own commands write; those of docs/report.md are taken in a headless browser.
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
from tuner.base.names import DataType, Op
from tuner.cli.reports import calibrated
from tuner.cli.reports.data import NODES, collect
from tuner.cli.reports.page import page
from tuner.scenario import Scenario

DOCS = sessions.ROOT / "docs"
COLOURS = 96  # keeps the files small


def plots() -> None:
    """Each picture that docs/plots.md shows, from the folder in which its commands were run."""
    plots_page = DOCS / "plots.md"
    for block in sessions.runnable(plots_page):
        sessions.ran(block)
    for picture in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", plots_page.read_text("utf-8")):
        shutil.copy(sessions.folder(plots_page) / Path(picture).name, DOCS / picture)


def report() -> None:
    """The page of a machine, as a reader sees it who clicks a cell and moves the slider."""
    scenario = Scenario(nccl="2.32.3", machine="dgx-h100", nodes=2)
    releases = scenario.releases
    with TemporaryDirectory() as folder, web.chromium(Path(folder) / "profile") as browser:
        file = Path(folder) / "page.html"
        data = collect(scenario, releases, DataType.float32, Op.sum)
        file.write_text(page(data, calibrated.collect(data, TimesWanted(beside_nccl=True))).html, "utf-8")
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
    report()
