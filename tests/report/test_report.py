"""The page of a report: what it holds and what it shows in a browser, against the picks of the emulator."""

import json
import re
import sys
import xml.etree.ElementTree as ET
import zlib
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from tests.support import browser as web
from tests.support import calibrations
from tests.support.command_line import run as run_command
from tuner.answers.calibrated import TimesWanted
from tuner.answers.charts.palette import COLOURS
from tuner.base.errors import BadInput
from tuner.base.names import ALGO_PROTOS, Algorithm, Collective, DataType, Op, Protocol
from tuner.cli import everything
from tuner.cli.reports import data
from tuner.cli.reports.data import NODES, SIZES, Packer, collect
from tuner.cli.reports.machine_picture import picture
from tuner.cli.reports.page import page
from tuner.cli.reports.policy import OF_ONE_FILE, with_policy
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.graphs import SearchRequest, searched
from tuner.graphs.explain import GraphExplanation, explain
from tuner.machine import catalogue
from tuner.scenario import Scenario
from tuner.times.timemodel import predict
from tuner.times.timemodel.features import Features
from tuner.times.timemodel.predict import CalibratedTimes, TimeModel

RELEASES = ("2.21.5", "2.25.1", "2.29.7")


def selection(nccl: str, nodes: int) -> Selection:
    return Selection(Scenario(nccl=nccl, machine="dgx-h100", nodes=nodes).communicator())


def request_of(collective: Collective) -> Request:
    return Request(collective, DataType.float32, Op.sum)


def name(algorithm: int, protocol: int) -> str:
    return f"{Algorithm(algorithm).name}/{Protocol(protocol).name}"


def names(nccl: str, collective: Collective) -> list[list[str]]:
    """The picks that a map has to show, [nodes][size]; every size of these collectives is a call."""
    found = []
    for nodes in NODES:
        picks = selection(nccl, nodes).pick(request_of(collective), SIZES)
        found.append([name(*pick) for pick in zip(picks.algorithm, picks.protocol, strict=True)])
    return found


@pytest.fixture(scope="module")
def html() -> str:
    pytest.importorskip("bokeh")
    scenario = Scenario(nccl=RELEASES[-1], machine="dgx-h100", nodes=2)
    return page(Packer(collect(scenario, RELEASES, DataType.float32, Op.sum)))[0]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with web.chromium(tmp_path_factory.mktemp("browser") / "profile") as browser:
        yield browser


def show(browser: Any, html: str, folder: Path) -> None:
    (folder / "page.html").write_text(html, "utf-8")
    browser.get(f"file://{folder / 'page.html'}")
    web.until(lambda: browser.execute_script("return document.body.dataset.ready"))


@pytest.fixture(scope="module")
def opened(html: str, browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    show(browser, html, tmp_path_factory.mktemp("report"))
    web.drawn(browser)
    assert "AllReduce of 1 MiB on 2 nodes (16 GPUs), NCCL 2.29.7" in text(browser, "explanation")
    return browser


@pytest.fixture
def tab(browser: Any) -> Iterator[Any]:
    """Another tab, for another page."""
    first = browser.current_window_handle
    browser.switch_to.new_window("tab")
    try:
        yield browser
    finally:
        browser.close()
        browser.switch_to.window(first)


def unpacked(html: str, element: str) -> bytes:
    found = re.search(rf'<script type="text/plain" id="{element}">(.*?)</script>', html, re.DOTALL)
    assert found
    return zlib.decompress(b64decode(found[1]))


class Held:
    """What a page holds, read from its text."""

    def __init__(self, html: str) -> None:
        self.index, numbers = json.loads(unpacked(html, "index")), unpacked(html, "numbers")
        count = 4 * self.index["floats"] * len(SIZES)
        planes = np.frombuffer(numbers[:count], np.uint8).reshape(4, -1)
        self.floats = planes.T.copy().view("<f4").reshape(-1, len(SIZES))
        self.shorts = np.frombuffer(numbers[count:], "<u2").reshape(-1, len(SIZES))

    def lines(self) -> Iterator[tuple[Selection, Request, list[Any], Any]]:
        """The communicator, the call, the line and which sizes are a call, for some numbers of nodes."""
        for release, nccl in enumerate(self.index["releases"]):
            for column, nodes in list(enumerate(self.index["nodes"]))[:12:2]:
                asked = selection(nccl, nodes)
                for collective in Collective:
                    line = self.index["lines"][self.index["places"][release][collective][column]]
                    yield asked, request_of(collective), line, line[2] <= SIZES


@pytest.mark.slow
def test_the_page_holds_the_cost_tables_and_the_picks(html: str) -> None:
    held = Held(html)
    for asked, request, (place, *_), calls in held.lines():
        candidates, *rows = held.index["numbers"][place]
        table, picks = asked.cost_table(request, SIZES), asked.pick(request, SIZES[calls])
        for algo_proto, row in candidates:
            expected = table[calls, ALGO_PROTOS[algo_proto][0], ALGO_PROTOS[algo_proto][1]]
            assert np.array_equal(held.floats[row][calls], expected)
        assert np.array_equal(held.floats[rows[0]][calls], picks.time_us)
        pick, channels, threads = (held.shorts[row][calls] for row in rows[1:])
        assert np.array_equal(pick, 3 * picks.algorithm.astype(int) + picks.protocol)
        assert np.array_equal(channels, picks.channels)
        assert np.array_equal(threads, picks.threads)
        assert {0xFFFF} >= set(held.shorts[rows[1]][~calls])


@pytest.mark.slow
def test_the_page_holds_the_steps_of_each_size(html: str) -> None:
    held = Held(html)

    def value(told: Any, at: int) -> float:
        return float(held.floats[told[0]][at] if isinstance(told, list) else told)

    for asked, request, (_, _, _, _, traces), calls in held.lines():
        for algo_proto, trace in traces:
            for at in np.flatnonzero(calls)[::7]:
                expected = [
                    step for step in asked.steps(request, int(SIZES[at]), ALGO_PROTOS[algo_proto]) if step.changes
                ]
                found = []
                for place, before, after in held.index["traces"][trace]:
                    if value(before, at) != value(after, at):
                        found.append([held.index["texts"][text] for text in held.index["steps"][place]])
                        step = expected[len(found) - 1]
                        assert np.float32(value(before, at)) == np.float32(step.before)
                        assert np.float32(value(after, at)) == np.float32(step.after)
                assert found == [[step.quantity, step.name, step.unit, step.says, step.source] for step in expected]


@pytest.fixture(scope="module")
def calibration(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(calibrations.file(tmp_path_factory.mktemp("calibration")))


@pytest.fixture(scope="module")
def with_times(calibration: str) -> str:
    """A page with calibrated times."""
    scenario = Scenario(nccl=RELEASES[-1], machine="dgx-h100", nodes=2)
    report = collect(scenario, RELEASES[1:], DataType.float32, Op.sum)
    return page(Packer(report, data.collect_calibrated(report, TimesWanted(True, calibration))))[0]


@pytest.mark.slow
def test_the_page_holds_calibrated_times_where_such_are_given(html: str, with_times: str, calibration: str) -> None:
    assert Held(html).index["calibrated"] is None
    held = Held(with_times)
    found = held.index["calibrated"]
    for release, nccl in enumerate(held.index["releases"]):
        for column, nodes in list(enumerate(held.index["nodes"]))[:12:4]:
            asked = selection(nccl, nodes)
            model = predict.of_communicator(asked, "dgx-h100", calibration)
            for collective in Collective:
                *rows, measured, said = found["rows"][found["places"][release][collective][column]]
                request = request_of(collective)
                calls = request.unit_bytes(8 * nodes) <= SIZES
                times = model.of_picks(request, asked.pick(request, SIZES[calls]))
                for row, expected in zip(rows, (times.time_us, times.low_us, times.high_us), strict=True):
                    assert held.floats[row][calls] == pytest.approx(expected, rel=5e-4)
                    assert np.isnan(held.floats[row][~calls]).all()
                assert np.array_equal(held.shorts[measured][calls] == 1, times.measured)
                over = "sizes" if nodes == 1 else "another site"
                assert f"made-up, as asked for; measured times are carried over to: {over}" in held.index["texts"][said]


@pytest.mark.slow
def test_a_clicked_cell_has_its_calibrated_time(tab: Any, with_times: str, calibration: str, tmp_path: Path) -> None:
    model = predict.of_communicator(selection("2.29.7", 2), "dgx-h100", calibration)
    request = request_of(Collective.AllReduce)
    times = model.of_picks(request, model.selection.pick(request, [1 << 20]))
    show(tab, with_times, tmp_path)
    shown = text(tab, "explanation")
    told = re.search(r"By measurements: ([\d.]+) µs \(90 %: ([\d.]+) to ([\d.]+) µs\)", shown)
    assert told, [line for line in shown.splitlines() if "easurement" in line]
    expected = [times.time_us[0], times.low_us[0], times.high_us[0]]
    assert [float(number) for number in told.groups()] == pytest.approx(expected, rel=1e-3)
    assert "By the calibration made-up, as asked for" in shown
    assert "extrapolated, as it was never measured for this collective" in shown
    tab.execute_script("report.show({size: 61})")
    assert "extrapolated, as it was never measured for this collective" in text(tab, "explanation")


@pytest.mark.slow
def test_a_cell_can_be_clicked_again(tab: Any, with_times: str, tmp_path: Path) -> None:
    from selenium.webdriver.support.ui import Select

    show(tab, with_times, tmp_path)
    for _ in range(2):
        web.drawn(tab)
        web.move(tab, 14, NODES.index(4), click=True)
        web.until(lambda: "AllReduce of 16 KiB on 4 nodes" in text(tab, "explanation"))
        Select(tab.find_element("id", "nodes")).select_by_index(0)
        web.until(lambda: "AllReduce of 16 KiB on 1 node" in text(tab, "explanation"))


@pytest.mark.slow
def test_what_a_text_brings_along_neither_runs_nor_loads(tab: Any, with_times: str, tmp_path: Path) -> None:
    show(tab, with_times, tmp_path)
    assert web.forbidden(tab) == web.ALL_FORBIDDEN
    show(tab, with_times.replace("Content-Security-Policy", "X-No-Policy"), tmp_path)
    plant = "const made = document.createElement('script'); made.text = 'var planted = 1'; document.body.append(made)"
    assert tab.execute_script(f"{plant}; return window.planted") == 1


@pytest.mark.slow
def test_a_text_of_a_file_never_becomes_markup(tab: Any, tmp_path: Path) -> None:
    """Names of files and values of variables are all that a page shows of a stranger's."""
    planted = "<img id=planted src=x onerror=\"document.body.dataset.planted='yes'\"></script><b id=planted>&amp;"
    topology = tmp_path / f"{planted.replace('/', '')}.xml"
    topology.write_text(catalogue.load("dgx-h100").topology_xml, "utf-8")
    scenario = Scenario(nccl="2.28.9", topology=topology, nodes=2, environment={"NCCL_NOT_ONE": planted})
    report = collect(scenario, ["2.28.9"], DataType.float32, Op.sum)
    show(tab, page(Packer(report))[0], tmp_path)
    assert planted in text(tab, "header")
    assert tab.find_elements("id", "planted") == []
    assert tab.execute_script("return document.body.dataset.planted ?? null") is None


@pytest.mark.parametrize(
    ("html", "wrong"),
    [
        ("<head></head><b onclick='x()'>", "a script in an attribute"),
        ("<p>nothing</p>", "without <head>"),
    ],
)
def test_a_page_that_no_policy_fits_is_refused(html: str, wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        with_policy(html, OF_ONE_FILE)


def test_a_script_of_the_page_is_allowed_by_its_sum() -> None:
    """The sum is that of the example in the standard (CSP Level 3)."""
    made = with_policy("<head><meta charset=utf-8></head><script>alert('Hello, world.');</script>", OF_ONE_FILE)
    assert "script-src 'sha256-qznLcsROx4GACP2dm0UCKCzCG+HiZ1guq6ZZDob/Tng=';" in made
    assert made.index("utf-8") < made.index("Content-Security-Policy") < made.index("<script>")


@pytest.mark.slow
def test_a_page_of_a_machine_without_a_calibration_says_why() -> None:
    scenario = Scenario(nccl="2.28.9", machine="pcie-l40s", nodes=1)
    report = collect(scenario, ["2.28.9"], DataType.float32, Op.sum)
    lines = data.collect_calibrated(report, TimesWanted(True))
    assert all("joined by" in line.used.reason and np.isnan(line.time_us).all() for line in lines.values())
    assert "By measurements: none" in page(Packer(report, lines))[0]
    with pytest.raises(BadInput, match="joined by"):
        data.collect_calibrated(report, TimesWanted(False))


def test_a_call_has_an_element_of_each_rank() -> None:
    scenario = Scenario(nccl="2.21.5", machine="dgx-h100", nodes=1)
    lines = collect(scenario, ["2.21.5"], DataType.float32, Op.sum).lines
    for collective, least in ((Collective.AllGather, 16 * 4), (Collective.AllReduce, 4)):
        line = lines["2.21.5", collective, 2]
        assert line.least_bytes == least
        assert ((line.pick == -1) == (least > SIZES)).all()
        assert (np.isnan(line.times_us) == (least > SIZES)).all()


@pytest.mark.slow
def test_the_same_report_is_the_same_page(html: str) -> None:
    scenario = Scenario(nccl=RELEASES[-1], machine="dgx-h100", nodes=2)
    assert page(Packer(collect(scenario, RELEASES, DataType.float32, Op.sum)))[0] == html


@pytest.mark.slow
def test_the_page_refers_to_nothing_outside(html: str) -> None:
    assert len(html.encode()) < 5e6
    assert not re.findall(r"<(?:link|script|img)\b[^>]*(?:href|src)=(?!\"data:,)[^>]*>", html)


def test_a_report_is_of_nodes_that_are_alike() -> None:
    mixed = Scenario(nccl="2.28.9", machine="dgx-h100", nodes=1, others=(Scenario("", 1, machine="dgx-a100"),))
    with pytest.raises(BadInput, match="use --machine or --topology"):
        collect(mixed, ["2.28.9"], DataType.float32, Op.sum)


def run(*words: str) -> Any:
    return CliRunner().invoke(everything, ["plot", "page", "--machine", "ws-2x-a6000", "--nccl", "2.28.9", *words])


@pytest.mark.slow
def test_json_says_what_the_page_is_made_of(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    done = run("--nccl", "2.21.5", "--out", str(file), "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["file_bytes"] == file.stat().st_size
    assert told["releases"] == ["2.21.5", "2.28.9"]
    assert told["picks"] == 2 * len(Collective) * len(told["nodes"]) * len(told["sizes_bytes"])


def test_what_cannot_be_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = tmp_path / "none" / "page.html"
    assert str(run("--out", str(missing)).exception) == f"{missing}: No such file or directory"
    monkeypatch.setitem(sys.modules, "bokeh", None)
    monkeypatch.delitem(sys.modules, "tuner.cli.reports.figures", raising=False)
    assert "pip install 'nccl-tuner[report]'" in str(run("--out", str(tmp_path / "page.html")).exception)


def shown(browser: Any) -> list[list[str]]:
    """What the map says of each cell, [nodes][size]."""
    column = browser.execute_script('return Bokeh.documents[0].get_model_by_name("cells").data.name')
    return [column[row * len(SIZES) : (row + 1) * len(SIZES)] for row in range(len(NODES))]


def set_release(browser: Any, nccl: str) -> None:
    """With the keys of the slider."""
    from selenium.webdriver.common.keys import Keys

    slider = browser.find_element("id", "release")
    slider.send_keys(Keys.HOME, *[Keys.ARROW_RIGHT] * RELEASES.index(nccl))
    web.drawn(browser)


def set_collective(browser: Any, collective: Collective) -> None:
    from selenium.webdriver.support.ui import Select

    Select(browser.find_element("id", "collective")).select_by_visible_text(collective.name)
    web.drawn(browser)


def text(browser: Any, element: str) -> str:
    return str(browser.find_element("css selector", element if element == "header" else f"#{element}").text)


@pytest.mark.slow
def test_slider_and_collective_change_the_map(opened: Any) -> None:
    web.move(opened, 20, NODES.index(2), click=True)
    for collective in (Collective.AllReduce, Collective.Broadcast):
        set_collective(opened, collective)
        for nccl in RELEASES:
            set_release(opened, nccl)
            assert text(opened, "release-name") == nccl
            assert shown(opened) == names(nccl, collective)
            assert f"{collective.name} of 1 MiB on 2 nodes (16 GPUs), NCCL {nccl}" in text(opened, "explanation")
    assert names(RELEASES[0], Collective.AllReduce) != names(RELEASES[1], Collective.AllReduce)


@pytest.mark.slow
def test_the_map_is_painted_with_the_picks(opened: Any) -> None:
    set_collective(opened, Collective.AllReduce)
    logs = np.log2(SIZES.astype(float))
    for nccl in RELEASES[::2]:
        set_release(opened, nccl)
        picture, expected, right, looked = web.screen(opened), names(nccl, Collective.AllReduce), 0, 0
        for row, column in np.ndindex(len(NODES), len(SIZES)):
            algorithm, protocol = expected[row][column].split("/")
            if protocol == "Simple" and row % 4 == 0:  # the others are hatched
                looked += 1
                colour = COLOURS[Algorithm[algorithm]]
                found = picture.getpixel(tuple(map(round, web.pixel_of(opened, logs[column], row))))
                right += found == tuple(int(colour[at : at + 2], 16) for at in (1, 3, 5))
        assert looked > 50
        assert right > 0.85 * looked  # names lie over some


@pytest.mark.slow
def test_hovering_says_the_pick(opened: Any) -> None:
    set_collective(opened, Collective.AllReduce)
    for nccl in RELEASES[:2]:
        set_release(opened, nccl)
        for nodes, size in ((4, 1 << 14), (64, 1 << 30)):
            picks = selection(nccl, nodes).pick(request_of(Collective.AllReduce), size)
            web.move(opened, np.log2(size), NODES.index(nodes))
            said = [
                name(picks.algorithm[0], picks.protocol[0]),
                f"{nodes} nodes",
                f"{picks.channels[0]} channels",
                f"{picks.threads[0]} threads",
                f"{picks.time_us[0]:.2f} µs",
            ]
            web.until(lambda said=said: all(word in web.tooltips(opened) for word in said))


@pytest.mark.slow
def test_clicking_explains(opened: Any) -> None:
    set_collective(opened, Collective.AllReduce)
    set_release(opened, "2.25.1")
    web.move(opened, 14, NODES.index(4), click=True)
    web.until(lambda: "AllReduce of 16 KiB on 4 nodes (32 GPUs), NCCL 2.25.1" in text(opened, "explanation"))
    told = text(opened, "explanation")
    asked, at = request_of(Collective.AllReduce), selection("2.25.1", 4)
    picks, table = at.pick(asked, 1 << 14), at.cost_table(asked, 1 << 14)[0]
    pick = name(picks.algorithm[0], picks.protocol[0])
    assert f"{picks.channels[0]} channels, {picks.threads[0]} threads, {picks.time_us[0]:.2f} µs" in told
    others = sorted(
        (table[algo_proto], name(*algo_proto)) for algo_proto in at.candidates(asked) if name(*algo_proto) != pick
    )
    slower = others[0][0] - picks.time_us[0]
    percent = 100 * slower / picks.time_us[0]
    assert f"Runner-up: {others[0][1]}, {slower:.2f} µs or {percent:.1f} % slower" in told
    assert all(reason in told for reason in at.excluded(asked).values())
    assert f"How {pick} comes to its numbers" in told
    for step in at.steps(asked, 1 << 14, (Algorithm(picks.algorithm[0]), Protocol(picks.protocol[0]))):
        assert (f"{step.before:.9g} → {step.after:.9g} {step.unit}".replace("us", "µs").strip() in told) == step.changes
    assert "--machine dgx-h100 --nodes 4 --nccl 2.25.1 --bytes 16384" in told
    assert "on 4 nodes, NCCL 2.25.1" in text(opened, "ranges-title")
    assert opened.find_element("id", "nodes").get_attribute("value") == str(NODES.index(4))


@pytest.mark.slow
def test_nothing_is_wrong_and_nothing_is_fetched(opened: Any) -> None:
    """The last of this file: what the browser has seen in all the others."""
    assert web.complaints(opened) == []
    assert opened.execute_script("return performance.getEntriesByType('resource').length") == 0


def test_a_place_that_cannot_be_written_is_refused_before_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def computed(*_: Any) -> None:
        raise AssertionError("computed before the place was looked at")

    monkeypatch.setattr("tuner.cli.reports.data.collect", computed)
    result = CliRunner().invoke(everything, ["plot", "page", "--machine", "dgx-h100", "-o", "/nowhere/page.html"])
    assert isinstance(result.exception, BadInput)
    assert "/nowhere/page.html: No such file" in str(result.exception)


def test_times_that_releases_have_alike_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    times = TimeModel.times

    def counted(self: TimeModel, request: Request, calls: Features) -> CalibratedTimes:
        asked.append(request)
        return times(self, request, calls)

    monkeypatch.setattr(TimeModel, "times", counted)

    def collected(*releases: str) -> tuple[int, dict[Any, data.CalibratedLine]]:
        asked.clear()
        report = collect(Scenario(nccl="2.28.9", machine="dgx-h100", nodes=2), releases, DataType.float32, Op.sum)
        lines = data.collect_calibrated(report, TimesWanted(True))
        return len(asked), lines

    (one, alone), (other, _), (both, lines) = collected("2.28.9"), collected("2.28.7"), collected("2.28.7", "2.28.9")
    assert both < 0.8 * (one + other)
    for at, line in alone.items():
        for name in ("time_us", "low_us", "high_us", "measured"):
            assert np.array_equal(getattr(lines[at], name), getattr(line, name), equal_nan=True)


def test_a_release_that_a_site_was_not_measured_with_has_its_own_intervals_beside_one_that_it_was() -> None:
    """The rows of alps between nodes are from 2.23.4, and 2.24.3 runs the same calls there."""

    def collected(*releases: str) -> data.CalibratedLines:
        report = collect(Scenario(nccl="2.24.3", machine="alps", nodes=2), releases, DataType.float32, Op.sum)
        return data.collect_calibrated(report, TimesWanted(True))

    both = collected("2.23.4", "2.24.3")
    for at, line in collected("2.24.3").items():
        assert both[at].used == line.used
        for name in ("time_us", "low_us", "high_us", "measured"):
            assert np.array_equal(getattr(both[at], name), getattr(line, name), equal_nan=True)


SVG = "{http://www.w3.org/2000/svg}"
WIDEST = 0.66  # of a letter, as a part of its height, on average of a line
NCCL = "2.28.9"


# Machine, whether there are several nodes, GPUs used. On one node a picture has the same devices as on several; the
# graphs of all GPUs of these machines with several nodes take long to search.
WHOLE_AND_PARTS = [("dgx-1v", False, 8), ("dgx-1v", True, 3), ("gh200-4x", False, 4), ("gh200-4x", True, 3)]


def request(name: str, several: bool, gpus: int, hosts: int = 1) -> SearchRequest:
    machine = catalogue.load(name)
    across = machine.peer_to_peer
    asked = SearchRequest(machine.topology_xml, gpus, several, dict(machine.environment), across)
    return replace(asked, hosts=hosts)


@cache
def explained(name: str, several: bool, graph: str = "ring", *, gpus: int, hosts: int = 1) -> GraphExplanation:
    return explain(request(name, several, gpus, hosts), NCCL, graph, with_lifts=False)


def boxes(root: ET.Element) -> list[tuple[float, float, float, float]]:
    found = [each for each in root.iter(f"{SVG}rect") if each.get("class", "").startswith("box")]
    return [tuple(float(each.get(name, "0")) for name in ("x", "y", "width", "height")) for each in found]


@pytest.mark.parametrize(("name", "several"), [("dgx-h100", True), ("dgx-1v", False), ("pcie-rtxpro6000", True)])
def test_a_picture_has_every_device_and_marks_every_limit(name: str, several: bool) -> None:
    explanation = explained(name, several, gpus=8)
    root = ET.fromstring(picture(explanation, f"a node of {name}"))
    assert root.get("role") == "img"
    title, description = root.find(f"{SVG}title"), root.find(f"{SVG}desc")
    assert title is not None
    assert title.text == f"ring of a node of {name}"
    assert description is not None
    assert "channel" in (description.text or "")
    drawn = " ".join(text.text or "" for text in root.iter(f"{SVG}text"))
    for device in explanation.devices:
        if device.kind in ("gpu", "cpu", "net"):
            assert device.says in drawn
    limits = {link.link for link in explanation.links if link.limits}
    assert limits
    marked = [each for each in root.iter(f"{SVG}rect") if each.get("class") == "gauge limit"]
    titles = {(each.findtext(f"{SVG}title") or "").partition(": ")[0] for each in marked}
    assert {each for each in titles if "gpu:" in each} == {each for each in limits if "gpu:" in each}
    assert drawn.count("\N{BLACK DIAMOND}") == len(marked)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "several", "gpus"), [("dgx-h100", True, 8), ("pcie-l40s", True, 8), *WHOLE_AND_PARTS])
def test_boxes_do_not_overlap_and_hold_their_text(name: str, several: bool, gpus: int) -> None:
    root = ET.fromstring(picture(explained(name, several, gpus=gpus), name))
    places = boxes(root)
    for number, (x, y, width, height) in enumerate(places):
        for other in places[:number]:
            apart = (
                x >= other[0] + other[2] or other[0] >= x + width or y >= other[1] + other[3] or other[1] >= y + height
            )
            assert apart, (places[number], other)
    for text in root.iter(f"{SVG}text"):
        at, line = float(text.get("x", "0")), float(text.get("y", "0"))
        around = [box for box in places if box[0] <= at <= box[0] + box[2] and box[1] <= line <= box[1] + box[3]]
        size = {"small": 10, "limit-text": 10, "name": 12}.get(text.get("class", ""), 17)
        if around and text.get("text-anchor") == "start":
            assert at + len(text.text or "") * size * WIDEST <= around[0][0] + around[0][2], text.text


@pytest.mark.each_choice
@pytest.mark.slow
@pytest.mark.parametrize("graph", ["ring", "tree", "nvls"])
@pytest.mark.parametrize(
    ("name", "several", "gpus"), [("dgx-h100", True, 8), ("pcie-rtxpro6000", True, 8), *WHOLE_AND_PARTS]
)
def test_no_link_carries_more_than_it_has(name: str, several: bool, gpus: int, graph: str) -> None:
    if graph not in searched(request(name, several, gpus), NCCL).graphs:
        return
    told = explained(name, several, graph, gpus=gpus)
    assert any(link.carries_gbs for link in told.links)
    for link in told.links:
        assert link.carries_gbs <= link.link_gbs + 0.01
        assert link.carries_gbs == pytest.approx(sum(link.channels_gbs.values()))
    used = {channel for link in told.links for channel in link.channels_gbs}
    assert used == set(range(told.found.channels))


def test_a_large_machine_has_what_channels_use() -> None:
    explanation = explained("dgx-b200", False, gpus=8, hosts=3)
    text = picture(explanation, "24 GPUs")
    assert "links that carry nothing are left out" in text
    assert "PCIe in" not in text
    assert text.count(">6 of these<") == 1  # a CPU with four GPUs stands for both of all three hosts
    assert [f">GPU {number}<" in text for number in range(5)] == [True] * 4 + [False]


def test_what_is_not_alike_is_not_folded() -> None:
    explanation = explained("dgx-b200", False, gpus=8, hosts=3)
    odd = next(link for link in explanation.links if link.start == "NVSwitch" and "host 2" in link.end)
    links = [replace(link, carries_gbs=link.carries_gbs / 2) if link is odd else link for link in explanation.links]
    text = picture(replace(explanation, links=tuple(links)), "24 GPUs")
    assert ">5 of these<" in text
    assert "of host 2<" in text


@pytest.mark.parametrize("graph", ["ring", "tree", "nvls"])
def test_a_topology_says_the_path_of_a_channel(graph: str, tmp_path: Path) -> None:
    words = ("--machine", "dgx-h100", "--nodes", "2", "--nccl", "2.28.9")
    file = tmp_path / "drawn.svg"
    said = run_command("plot", "topology", graph, *words, "--out", str(file)).stdout
    orders = json.loads(run_command("graphs", *words, "--json").stdout)["graphs"][graph]["orders"]
    shown = json.loads(run_command("plot", "topology", graph, *words, "--json").stdout)
    assert shown["graph"] == graph
    assert shown["orders"] == orders
    assert f"channel 0: {' '.join(orders[0])}" in " ".join(said.split())
    ET.fromstring(file.read_text())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("rings", "--json"), "valid: ring, tree, nvls"),
        (("ring", "tree", "--json"), "name one graph"),
        (("--out", "drawn.png"), "valid: --out FILE.svg"),
        ((), "nothing to write: add --out FILE.svg"),
        (("--points", "3", "--json"), "--points cannot be used with topology"),
    ],
)
def test_a_topology_refuses_what_it_cannot_draw(words: tuple[str, ...], said: str) -> None:
    done = run_command("plot", "topology", *words, "--machine", "dgx-h100", code=2)
    assert said in done.stderr


@pytest.mark.slow
def test_it_is_written_as_a_file_and_into_a_report(tmp_path: Path) -> None:
    words = ("--machine", "ws-2x-a6000", "--nccl", "2.28.9")
    drawn = run_command("graphs", *words, "--svg", str(tmp_path / "ring.svg"))
    assert drawn.stdout == ""
    text = (tmp_path / "ring.svg").read_text()
    assert "ring of 1 x ws-2x-a6000, 2 GPUs each, NCCL 2.28.9" in text
    run_command("plot", "topology", *words, "--out", str(tmp_path / "topology.svg"))
    assert (tmp_path / "topology.svg").read_text() == text
    pytest.importorskip("bokeh")
    run_command("plot", "page", *words, "--out", str(tmp_path / "page.html"))
    page = (tmp_path / "page.html").read_text()
    (inside,) = re.findall(r'<section id="machine">.*?</section>', page, re.DOTALL)
    assert text.strip() in inside
