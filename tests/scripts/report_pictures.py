"""`python -m tests.scripts.report_pictures`: takes the pictures of docs/report.md in a headless browser."""

from math import log2
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.support import browser as web
from tuner.analysis.calibrated import TimesWanted
from tuner.base.names import DataType, Op
from tuner.report import calibrated
from tuner.report.data import NODES, collect
from tuner.report.page import page
from tuner.scenario import Scenario

HOME = Path(__file__).parents[2] / "docs" / "report"
COLOURS = 96  # keeps the files small


def main() -> None:
    scenario = Scenario(nccl="2.32.3", machine="dgx-h100", nodes=2)
    releases = scenario.releases
    with TemporaryDirectory() as folder, web.chromium(Path(folder) / "profile") as browser:
        file = Path(folder) / "page.html"
        report = collect(scenario, releases, DataType.float32, Op.sum)
        file.write_text(page(report, calibrated.collect(report, TimesWanted(beside_nccl=True))).html, "utf-8")
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
    web.screen(browser).quantize(COLOURS, dither=0).save(HOME / name, optimize=True)


if __name__ == "__main__":
    HOME.mkdir(exist_ok=True)
    main()
