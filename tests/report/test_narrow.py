"""The page in a narrow window: nothing but the picture of the machine, in its box, has to be scrolled sideways."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.support import browser as web
from tuner.cli import everything

WIDTH = 600
WIDTHS = """
return ["figures", "machine"].map((id) => document.getElementById(id)).concat(document.querySelector("aside"))
  .map((part) => [part.scrollWidth, part.clientWidth])
"""


@pytest.mark.slow
def test_no_part_scrolls_sideways(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    done = CliRunner().invoke(
        everything, ["plot", "page", "--machine", "dgx-h100", "--nccl", "2.28.9", "--out", str(file)]
    )
    assert done.exit_code == 0, done.output
    with web.chromium(tmp_path / "profile") as browser:
        viewport = {"width": WIDTH, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", viewport)
        browser.get(file.as_uri())
        web.drawn(browser)
        assert browser.execute_script("return document.documentElement.scrollWidth") <= WIDTH
        for needed, there in browser.execute_script(WIDTHS):
            assert needed <= there
