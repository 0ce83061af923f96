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


@pytest.mark.slow
@pytest.mark.parametrize("width", [400, 600, 1400])
def test_nothing_is_wider_than_the_window(browser: Any, address: str, width: int) -> None:
    sizes = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", sizes)
    asked(browser, address)
    wide, drawings = browser.execute_script(
        "return [document.documentElement.scrollWidth, document.querySelectorAll('#details svg[role=img]').length]"
    )
    assert wide <= width
    assert drawings == 2
