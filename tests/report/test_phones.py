"""The site on a phone: its pictures keep a size at which their letters are read, and no page is moved sideways."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import browser as web
from tests.support.command_line import TREE

DOCS, BUILT = TREE / "docs", TREE / "build" / "site"
PHONE = {"width": 375, "height": 812, "deviceScaleFactor": 2, "mobile": True}
ROOT_FONT = "125%"  # of the theme: 20 px
LEAST_SHARE = 0.65  # of a picture's own size: its letters have 12 to 14 pixels
SEEN = """
const size = (one) => parseFloat(getComputedStyle(one).fontSize);
const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), sizes = [];
while (walk.nextNode()) {
  const {parentElement: one, textContent} = walk.currentNode;
  if (textContent.trim() && one.checkVisibility() && !one.closest("svg, script, style")) sizes.push(size(one));
}
const pictures = [...document.querySelectorAll(".md-typeset img")];
return [document.documentElement.scrollWidth, Math.min(...sizes),
        pictures.map((one) => [one.currentSrc, one.naturalWidth, one.getBoundingClientRect().width])];
"""


@pytest.fixture(scope="module")
def phone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with web.chromium(tmp_path_factory.mktemp("browser") / "profile") as browser:
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", PHONE)
        yield browser


def check(browser: Any) -> int:
    """How many pictures the page has that is open; none is too small."""
    width, smallest, pictures = browser.execute_script(SEEN)
    assert width <= PHONE["width"]
    assert smallest >= 10
    for name, own, shown in pictures:
        assert own, name
        assert shown >= LEAST_SHARE * own, name
    return len(pictures)


@pytest.mark.slow
def test_letters_in_pictures_are_readable(phone: Any, tmp_path: Path) -> None:
    """By the site's own style, without the theme around it."""
    pictures = sorted([*(DOCS / "plots").glob("*"), *(DOCS / "report").glob("*.png")])
    shown = "".join(
        f'<p>Text <img src="{each.as_uri()}"></p><p><a href="#"><img src="{each.as_uri()}"></a></p>'
        for each in pictures
    )
    style = (DOCS / "site" / "pictures.css").read_text("utf-8")
    theme = f"html {{ font-size: {ROOT_FONT} }} img {{ max-width: 100% }}"
    head = f"<meta charset=utf-8><meta name=viewport content='width=device-width'><style>{theme} {style}</style>"
    file = tmp_path / "page.html"
    file.write_text(f"<!doctype html><head>{head}</head><body><div class=md-typeset>{shown}</div></body>", "utf-8")
    phone.get(file.as_uri())
    assert check(phone) == 2 * len(pictures) > 10


@pytest.mark.slow
def test_pages_of_the_built_site(phone: Any) -> None:
    """Those with pictures, the one with the widest tables and the one to try."""
    if not (BUILT / "index.html").is_file():
        pytest.skip("no site here: make site")
    pages = [each.name for each in BUILT.glob("*.html") if "<img " in each.read_text("utf-8")]
    with web.served(BUILT) as root:
        for page in (*pages, "releases.html", "try.html"):
            phone.get(f"{root}/{page}")
            check(phone)
    assert len(pages) >= 4
