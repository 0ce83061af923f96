"""The page to try it on: its look-ups against the emulator, and what a reader sees of it in a browser."""

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from tests.scripts import write_picks_to_try as written
from tests.support import browser as web
from tests.support.command_line import TREE
from tuner.answers.exports.choices import read_compiled
from tuner.answers.tuners import with_tuner
from tuner.base.names import Collective, DataType, Op
from tuner.cli.reports.policy import OF_THE_SITE, with_policy
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.scenario import Scenario
from tuner.times import measured

MACHINES = ("dgx-h100", "aws-p5-rdma", "dgx-b200")
RELEASES = ("2.22.3", "2.28.9", "2.32.3")
NODES = (1, 2, 24)
LOOK_UP = """
const [questions, done] = arguments;
import(new URL("site/try_lookup.js", location)).then(async (lookup) => {
  const files = {};
  for (const {machine} of questions) {
    if (!files[machine]) {
      const response = await fetch(`try/${machine}.picks.gz`);
      files[machine] = lookup.parse(await lookup.unpacked(await response.arrayBuffer()));
    }
  }
  done(questions.map(({machine, sizes, ...question}) => {
    const {picks, candidates} = lookup.answerOf(files[machine], question);
    return sizes.map((bytes) => ({
      pick: lookup.lookUp(picks, bytes), candidates: candidates.map((each) => lookup.lookUp(each, bytes)),
    }));
  }));
}).catch((error) => done(String(error)));
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page as the site has it, without the theme around it."""
    folder = tmp_path_factory.mktemp("site")
    written.write(folder / "try", MACHINES, RELEASES, NODES)
    (folder / "site").mkdir()
    for file in (TREE / "docs" / "site").glob("try*"):
        (folder / "site" / file.name).write_bytes(file.read_bytes())
    text = (TREE / "docs" / "try.md").read_text("utf-8")
    (body,) = re.findall(r"^<link.*</script>$", text, re.M | re.S)
    html = f"<!doctype html><head><meta charset=utf-8><title>Try it</title></head>{body}"
    (folder / "try.html").write_text(with_policy(html, OF_THE_SITE), "utf-8")
    return folder


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    with web.served(folder) as root:
        yield f"{root}/try.html"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with web.chromium(tmp_path_factory.mktemp("browser") / "profile") as browser:
        yield browser


def answered(browser: Any) -> dict[str, Any]:
    found = web.until(lambda: browser.execute_script("return document.body.dataset.answered"))
    answer: dict[str, Any] = json.loads(found)
    return answer


def asked(browser: Any, address: str, question: str = "") -> dict[str, Any]:
    browser.get(f"{address}{question}")
    return answered(browser)


def text(browser: Any, element: str) -> str:
    found: str = browser.execute_script("return document.getElementById(arguments[0]).textContent", element)
    return found


def number(collective: Collective, nodes: int, machine: str, nccl: str, tuner: str) -> tuple[Selection, Request]:
    scenario = with_tuner(Scenario(nccl=nccl, machine=machine, nodes=nodes), tuner)
    return Selection(scenario.communicator()), Request(collective, DataType.float32, Op.sum)


@pytest.mark.slow
def test_random_questions_are_answered_as_by_the_emulator(browser: Any, address: str) -> None:
    asked(browser, address)
    random = Random(44)
    questions: list[dict[str, Any]] = []
    for _ in range(60):
        machine = random.choice(MACHINES)
        tuners = [written.NO_TUNER] + ["aws-ofi-nccl=1.21.1"] * (machine == "aws-p5-rdma")
        questions.append(
            {
                "machine": machine,
                "tuners": random.choice(tuners),
                "releases": random.choice(RELEASES),
                "nodes": random.choice(NODES),
                "collectives": random.choice(written.COLLECTIVES).name,
                "sizes": sorted({4 * int(2 ** random.uniform(4, 33)) for _ in range(50)}),
            }
        )
    found = browser.execute_async_script(LOOK_UP, questions)
    assert isinstance(found, list), found
    compared = launches = 0
    for question, answers in zip(questions, found, strict=True):
        collective = Collective[question["collectives"]]
        words: list[Any] = [question[key] for key in ("nodes", "machine", "releases", "tuners")]
        selection, request = number(collective, *words)
        sizes = np.array(question["sizes"], np.uint64)
        picks, costs = selection.pick(request, sizes), selection.cost_table(request, sizes)
        for at, answer in enumerate(answers):
            where = f"{words} {collective.name} of {sizes[at]} bytes"
            if (pick := answer["pick"]) is None:
                assert (question["machine"], question["releases"]) == ("dgx-b200", "2.32.3"), where
                continue
            assert (pick["algorithm"], pick["protocol"]) == (picks.algorithm[at], picks.protocol[at]), where
            assert pick["timeUs"] == float(picks.time_us[at]), where
            if pick["threads"]:  # else the table is without launches
                assert (pick["channels"], pick["threads"]) == (picks.channels[at], picks.threads[at]), where
                launches += 1
            for cell in filter(None, answer["candidates"]):
                assert cell["timeUs"] == float(costs[at, cell["algorithm"], cell["protocol"]]), where
            compared += 1
    assert compared > 2000
    assert launches > 1000


def test_python_reads_such_a_file_too(tmp_path: Path) -> None:
    content = written.MachineFile("dgx-h100", RELEASES, NODES).content()
    (tmp_path / "one.picks").write_bytes(gzip.decompress(content))
    tables = read_compiled(tmp_path / "one.picks")
    selection, request = number(Collective.AllReduce, 1, "dgx-h100", RELEASES[0], written.NO_TUNER)
    assert tables["0"].time_us(1 << 20) == selection.pick(request, 1 << 20).time_us[0]


@pytest.mark.slow
def test_a_link_carries_the_question_and_the_page_asks_nobody_else(browser: Any, address: str) -> None:
    link = "?machine=aws-p5-rdma&nodes=24&nccl=2.28.9&tuner=none&collective=AllGather&bytes=1.5M"
    answer = asked(browser, address, link)
    assert answer["bytes"] == 3 << 19
    selection, request = number(Collective.AllGather, 24, "aws-p5-rdma", "2.28.9", "none")
    pick = selection.pick(request, 3 << 19)
    assert answer["pick"]["timeUs"] == float(pick.time_us[0])
    assert f"{float(pick.time_us[0]):.2f} us" in text(browser, "answer")
    assert browser.current_url == address + link
    fetched = browser.execute_script("return performance.getEntriesByType('resource').map((each) => each.name)")
    assert {each.rsplit("/", 1)[0] for each in fetched} == {
        address.rsplit("/", 1)[0] + part for part in ("/site", "/try")
    }
    assert web.complaints(browser) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("question", "unknown"),
    [
        ("machine=dgx-h1000&nodes=24", ["machine"]),
        ("machine=dgx-h100&nodes=23", ["nodes"]),
        ("nodes=-1&nccl=2.28.10&tuner=own&collective=AllReduced", ["nodes", "nccl", "tuner", "collective"]),
        ("machine=<b id=planted>&nodes=1", ["machine"]),
    ],
)
def test_what_an_address_asks_for_and_is_not_there_is_said(
    browser: Any, address: str, question: str, unknown: list[str]
) -> None:
    """And nothing else is answered instead; the form asks from there."""
    from selenium.webdriver.common.keys import Keys

    answer = asked(browser, address, f"?{question}")
    assert [line.split(" ")[0] for line in answer["error"].splitlines()] == unknown
    assert "not on this page; valid: " in text(browser, "answer")
    assert not browser.execute_script("return document.getElementById('planted')")
    assert browser.find_elements("css selector", "#details *") == []
    size = browser.find_element("name", "bytes")
    size.send_keys(Keys.CONTROL, "a")
    size.send_keys("2M")
    web.until(lambda: answered(browser).get("pick"))


@pytest.mark.slow
def test_what_a_text_brings_along_neither_runs_nor_loads(browser: Any, address: str) -> None:
    asked(browser, address)
    assert web.forbidden(browser) == web.ALL_FORBIDDEN


@pytest.mark.slow
def test_the_keyboard_asks_and_a_wrong_size_is_said(browser: Any, address: str) -> None:
    from selenium.webdriver.common.keys import Keys

    asked(browser, address)
    size = browser.find_element("name", "bytes")
    size.send_keys(Keys.CONTROL, "a")
    size.send_keys("lots")
    assert 'Size "lots": expected bytes such as 8' in web.until(
        lambda: "lots" in text(browser, "answer") and text(browser, "answer")
    )
    assert browser.find_elements("css selector", "#details *") == []  # what was drawn is of another size
    size.send_keys(Keys.CONTROL, "a")
    size.send_keys("256M")
    web.until(lambda: answered(browser).get("bytes") == 1 << 28)
    nodes = browser.find_element("name", "nodes")
    nodes.send_keys("24")
    web.until(lambda: answered(browser)["question"]["nodes"] == "24")
    selection, request = number(Collective.AllReduce, 24, "dgx-h100", "2.32.3", "none")
    assert answered(browser)["pick"]["timeUs"] == float(selection.pick(request, 1 << 28).time_us[0])


@pytest.mark.slow
def test_channels_that_are_left_out_are_said(browser: Any, address: str) -> None:
    rows = "return [...document.querySelectorAll('#details table')].at(-1).innerText.trim().split('\\n').slice(1)"
    said = []
    for collective in ("Broadcast", "AllReduce"):
        asked(browser, address, f"?machine=dgx-h100&nodes=2&nccl=2.28.9&tuner=none&collective={collective}&bytes=1M")
        said.append([row.split("\t")[2] for row in browser.execute_script(rows)])
        assert len(said[-1]) == len(RELEASES)
        marked = "* The channels of these picks change at too many sizes" in text(browser, "details")
        assert marked == ("*" in said[-1])
    assert set(said[0]) == {"*"}
    assert all(each == "*" or int(each) > 0 for each in said[1]), said
    assert set(said[1]) != {"*"}


ROWS = """
const heading = [...document.querySelectorAll("#details h2")].find((each) => each.textContent.startsWith("Measured"));
const found = [heading.textContent];
for (let next = heading.nextElementSibling; next && next.tagName !== "H2"; next = next.nextElementSibling)
  found.push(next.matches(".wide") ? [...next.querySelectorAll("tbody tr")].map((row) =>
    [...row.children].map((cell) => cell.textContent)) : next.textContent);
return found;
"""


def test_measured_runs_are_those_of_the_tables() -> None:
    """Every out-of-place time of a whole node count is in one curve, with its settings and whether it was forced."""
    runs = written.measured_runs("dgx-b200", NODES)
    assert {each["nodes"] for each in runs} <= set(NODES)
    table = measured.load("b200-8x-64n__2.29.7__together")
    ring = [
        block
        for block in table.blocks
        if block.nodes == 2
        and block.point.name == "allreduce"
        and str(block.requested).startswith("Forced(algorithm='Ring'")
    ]
    (found,) = (
        each
        for each in runs
        if (each["table"], each["nodes"], each["collective"], each["forced"]) == (table.name, 2, "AllReduce", "Ring")
    )
    assert found["points"] == [
        [block.point.bytes, block.times_us[0]] for block in sorted(ring, key=lambda one: one.point)
    ]
    assert "NCCL_NVLS_ENABLE=0" in found["settings"]
    assert not any(each.startswith("NCCL_ALGO") for each in found["settings"])
    assert written.measured_runs("gb200-nvl72", (1,))[0]["nodes"] == 1  # 18 trays are one domain


@pytest.mark.slow
def test_measured_times_stand_beside_those_of_the_model(browser: Any, address: str) -> None:
    size = 1 << 30
    answer = asked(
        browser, address, f"?machine=dgx-h100&nodes=2&nccl=2.28.9&tuner=none&collective=AllReduce&bytes={size}"
    )
    heading, _, _, rows, *_ = browser.execute_script(ROWS)
    assert heading == f"Measured: {len(rows)} public runs on 2 nodes"
    nebius = measured.load("h100-8x-2n__unknown__nebius").blocks
    (us,) = (block.times_us[0] for block in nebius if block.point.bytes == size and not block.point.in_place)
    by_name = {row[0]: row[1:] for row in rows}
    expected = [us, size / us / 1000 * 2 * 15 / 16, answer["pick"]["timeUs"], us / answer["pick"]["timeUs"]]
    assert by_name["nebius"] == [f"{each:.2f}" for each in expected[:3]] + [f"{expected[3]:.2f} x"]
    assert [float(row[2]) for row in rows] == sorted((float(row[2]) for row in rows), reverse=True)
    usual = [
        float(row[1]) for row in rows if row[0].split(",")[0] in ("nebius", "crusoe", "aion") and "Ring" not in row[0]
    ]
    said = re.findall(r"Measured on (\d+) public runs: ([\d.]+) us to ([\d.]+) us", text(browser, "answer"))
    assert said == [("3", f"{min(usual):.2f}", f"{max(usual):.2f}")]
    assert any("degraded" in name for name in by_name)  # and not among those
    assert any(", Ring" in name for name in by_name)
    drawn = "return [...document.querySelectorAll('#details .measured')].map((each) => each.getAttribute('stroke'))"
    assert len(set(browser.execute_script(drawn))) == 2


@pytest.mark.slow
def test_a_measured_size_nearby_is_named(browser: Any, address: str) -> None:
    asked(browser, address, f"?machine=dgx-h100&nodes=2&nccl=2.28.9&tuner=none&collective=AllReduce&bytes={3 << 29}")
    _, _, _, rows, *_ = browser.execute_script(ROWS)
    assert {row[0].rsplit(", at ", 1)[1] for row in rows} <= {"1 GiB", "2 GiB"}
    assert "Measured on" not in text(browser, "answer")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("question", "said"),
    [
        ("machine=dgx-h100&nodes=24", "on 24 nodes of this machine is known here; there are some on 1, 2."),
        (
            "machine=dgx-h100&nodes=2&collective=Reduce",
            "No public run of Reduce on 2 nodes of this machine is known here.",
        ),
        ("machine=aws-p5-rdma&nodes=1", "on 1 node of this machine is known here; there are some on 2."),
    ],
)
def test_where_nobody_measured_is_said(browser: Any, address: str, question: str, said: str) -> None:
    asked(browser, address, f"?{question}")
    heading, words = browser.execute_script(ROWS)
    assert heading == "Measured"
    assert said in words


SMALLEST = """
const size = (element) => parseFloat(getComputedStyle(element).fontSize);
const scaled = [...document.querySelectorAll("#details svg text")].map((each) =>
  size(each) * each.ownerSVGElement.getBoundingClientRect().width / each.ownerSVGElement.viewBox.baseVal.width);
const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), plain = [];
while (walk.nextNode()) {
  const {parentElement: one, textContent} = walk.currentNode;
  if (textContent.trim() && one.checkVisibility() && !one.closest("svg, script")) plain.push(size(one));
}
return [Math.min(...scaled), Math.min(...plain)];
"""


@pytest.mark.slow
@pytest.mark.parametrize("width", [375, 600, 1400])
def test_nothing_is_wider_than_the_window(browser: Any, address: str, width: int) -> None:
    sizes = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", sizes)
    asked(browser, address)
    wide, drawings = browser.execute_script(
        "return [document.documentElement.scrollWidth, document.querySelectorAll('#details svg[role=img]').length]"
    )
    assert wide <= width
    assert drawings == 3
    in_pictures, outside = browser.execute_script(SMALLEST)
    assert in_pictures >= 11  # pixels of a phone's browser
    assert outside >= 9
