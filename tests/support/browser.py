"""A headless Chromium for tests of pages, and where things are on them."""

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

WIDTH, HEIGHT = 1400, 900
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--force-device-scale-factor=1",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    f"--window-size={WIDTH},{HEIGHT}",
)
WAIT_S = 120


@contextmanager
def chromium(profile: Path) -> Iterator[Any]:
    """A browser that finds no host but this computer; the test is skipped where there is no Chromium."""
    selenium = pytest.importorskip("selenium.webdriver")
    browser, driver = (shutil.which(name) for name in ("chromium", "chromedriver"))
    if not browser or not driver:
        pytest.skip("no chromium and chromedriver here; the Debian packages are chromium and chromium-driver")
    options = selenium.ChromeOptions()
    options.binary_location = browser
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    opened = selenium.Chrome(options=options, service=selenium.ChromeService(driver))
    try:
        viewport = {"width": WIDTH, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False}
        opened.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", viewport)
        yield opened
    finally:
        opened.quit()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Nothing, as the requests are the browser's."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a folder, which this computer serves."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def until(found: Callable[[], Any]) -> Any:
    """What ``found`` returns once it is true."""
    end = time.monotonic() + WAIT_S
    while not (value := found()):
        assert time.monotonic() < end, "the page did not get there"
        time.sleep(0.05)
    return value


def forbidden(browser: Any) -> set[str]:
    """What the page's policy refuses of a script, a picture and a form that a text brought along; none of it ran."""
    assert complaints(browser) == []
    refused, ran = browser.execute_async_script(
        """
        const done = arguments[0], refused = new Set();
        document.addEventListener("securitypolicyviolation", (event) => refused.add(event.effectiveDirective));
        const add = (tag, attributes) => {
          const made = document.createElement(tag);
          for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
          return document.body.appendChild(made);
        };
        add("script", {}).text = "document.body.dataset.planted = 'inline'";
        add("script", {src: "data:text/javascript,document.body.dataset.planted='data'"});
        add("script", {src: "http://example.invalid/x.js"});
        add("img", {src: "http://example.invalid/x.png"});
        add("b", {onclick: "document.body.dataset.planted = 'attribute'"}).click();
        add("object", {data: "data:text/html,x"});
        add("base", {href: "http://example.invalid/"});
        add("form", {action: "http://example.invalid/"}).submit();
        fetch("http://example.invalid/x").catch(() => null);
        setTimeout(() => {  // the driver's own script may compile text
          try { new Function("document.body.dataset.planted = 'text'")(); } catch (error) { refused.add(error.name); }
        });
        setTimeout(() => done([[...refused], document.body.dataset.planted ?? null]), 500);
        """
    )
    assert ran is None, ran
    assert all("Content Security Policy" in each["message"] for each in complaints(browser))
    return set(refused)


def complaints(browser: Any) -> list[dict[str, Any]]:
    """What the browser has found wrong since it was last asked; but for a small picture that no page here has."""
    wrong = [each for each in browser.get_log("browser") if each["level"] in ("SEVERE", "WARNING")]
    return [each for each in wrong if "favicon" not in each["message"]]


ALL_FORBIDDEN = {
    "script-src-elem",
    "script-src-attr",
    "img-src",
    "object-src",
    "base-uri",
    "form-action",
    "connect-src",
    "EvalError",
    "script-src",
}


def drawn(browser: Any) -> None:
    """Waits until Bokeh has nothing left to draw, and the browser has shown it."""
    until(lambda: browser.execute_script("return Bokeh.documents.every((one) => one.is_idle)"))
    browser.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")


def pixel_of(browser: Any, x: float, y: float) -> tuple[float, float]:
    """Where in the window a point of the first figure is, by its data."""
    left, top = browser.execute_script(
        """
        const {frame, el} = [...Bokeh.index][0].child_views[0], {left, top} = el.getBoundingClientRect();
        return [left + frame.x_scale.compute(arguments[0]), top + frame.y_scale.compute(arguments[1])];
        """,
        x,
        y,
    )
    return left, top


def move(browser: Any, x: float, y: float, click: bool = False) -> None:
    """The pointer to a point of the first figure."""
    from selenium.webdriver import ActionChains

    left, top = pixel_of(browser, x, y)
    chain = ActionChains(browser)
    chain.w3c_actions.pointer_action.move_to_location(round(left), round(top))
    if click:
        chain.w3c_actions.pointer_action.click()
    chain.perform()


def tooltips(browser: Any) -> str:
    """The text of the tooltips that are shown, from all shadow trees."""
    text: str = browser.execute_script(
        """
        const inside = (root) => [...root.querySelectorAll("*")].flatMap((one) =>
          [...(one.matches(".bk-Tooltip, .bk-tooltip") && one.shadowRoot ? [one.shadowRoot.textContent] : []),
           ...(one.shadowRoot ? inside(one.shadowRoot) : [])]);
        return inside(document).join(" | ");
        """
    )
    return text


def screen(browser: Any) -> Any:
    """The window's picture."""
    from PIL import Image

    return Image.open(BytesIO(browser.get_screenshot_as_png())).convert("RGB")
