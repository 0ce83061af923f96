"""Files pasted into the page to try: the browser against the command line, and what the page does with them."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.scripts import write_browser_python as written
from tests.support import browser as web
from tuner.cli.pasted import answers
from tuner.cli.reports.policy import OF_THE_SITE, with_policy

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "examples"
FILES = (  # with the machine that the reader names
    ("all_reduce.log", ""),
    ("all_reduce.log", "dgx-h100"),
    ("all_reduce-ring.log", "dgx-h100"),
    ("coll.log", ""),
    ("deepspeed.log", ""),
    ("flight-recorder.json", ""),
    ("graphs.xml", ""),
    ("guest.xml", ""),
    ("inspector.log", "dgx-h100"),
    ("inspector.prom", ""),
    ("job.csv", ""),
    ("lstopo.xml", ""),
    ("nccl.log", ""),
    ("node.xml", ""),
    ("nsight.sqlite", ""),
    ("nvlink-domain.log", ""),
    ("profiler-plugin.json", ""),
    ("skeleton.xml", ""),
    ("topo.txt", ""),
    ("trace.json", ""),
    ("two-sockets.xml", ""),
    ("vllm.log", "dgx-h100"),
    ("read_picks.cc", ""),
)
NATIVE = """
import json, sys
from tuner.cli.pasted import answers
from tuner.cli.reports.policy import OF_THE_SITE, with_policy
print(json.dumps([[each.title, list(each.words), each.exit_code, each.verdict, each.output, each.errors]
                  for each in answers([sys.argv[1]], sys.argv[2])]))
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The part of the page that reads files, without the theme around it; in the folder "without" it has no Python."""
    folder = tmp_path_factory.mktemp("site")
    if not written.write(folder / "python"):
        pytest.skip("no Pyodide here")
    (form,) = re.findall(r'^<form id="paste".*</script>$', (ROOT / "docs" / "try.md").read_text("utf-8"), re.M | re.S)
    head = '<head><meta charset=utf-8><title>A file</title><link rel="stylesheet" href="site/try.css"></head>'
    for place in (folder, folder / "without"):
        (place / "site").mkdir(parents=True)
        for name in ("try_paste.js", "try_worker.js", "try.css"):
            shutil.copy(ROOT / "docs" / "site" / name, place / "site")
        html = f"<!doctype html>{head}<body>{form}</body>"
        (place / "try.html").write_text(with_policy(html, OF_THE_SITE), "utf-8")
    with web.served(folder) as root:
        yield root


@pytest.fixture
def address(root: str) -> str:
    return f"{root}/try.html"


@pytest.fixture(scope="module")
def browser(root: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with web.chromium(tmp_path_factory.mktemp("browser") / "profile") as browser:
        browser.get(f"{root}/try.html")
        yield browser


def sections(browser: Any) -> list[dict[str, Any]]:
    """What the page shows, once it has answered what was asked last."""
    web.until(lambda: browser.execute_script("return document.getElementById('pasted').dataset.done"))
    found: list[dict[str, Any]] = browser.execute_script(
        """return [...document.querySelectorAll("#pasted section")].map((one) => ({
             title: one.querySelector("h3").textContent, text: one.querySelector("pre").textContent,
             command: one.querySelector("code").textContent, exit: Number(one.dataset.exit), look: one.className}))"""
    )
    return found


def ask(browser: Any, file: Path, machine: str = "") -> list[dict[str, Any]]:
    browser.execute_script(
        "document.querySelector('#paste [name=files]').value = '';"
        "delete document.getElementById('pasted').dataset.done;"
        "document.querySelector('#paste [name=machine]').value = arguments[0]",
        machine,
    )
    browser.find_element("css selector", "#paste [name=files]").send_keys(str(file))
    return sections(browser)


def status(browser: Any) -> str:
    text: str = browser.execute_script("return document.querySelector('#paste output').textContent")
    return text


def closely(value: Any) -> Any:
    """Numbers to twelve digits: the last ones of exp and log are each computer's own."""
    if isinstance(value, float):
        return float(f"{value:.12g}")
    if isinstance(value, list):
        return [closely(each) for each in value]
    return {key: closely(each) for key, each in value.items()} if isinstance(value, dict) else value


@pytest.mark.slow
@pytest.mark.parametrize(("file", "machine"), FILES, ids=[f"{file}-{machine or 'alone'}" for file, machine in FILES])
def test_the_browser_says_what_the_command_line_says(browser: Any, file: str, machine: str) -> None:
    browser.execute_script("document.querySelector('#paste [name=text]').focus()")  # which offers the machines
    web.until(lambda: browser.execute_script("return document.querySelectorAll('#paste option').length > 1"))
    shown = ask(browser, EXAMPLES / file, machine)
    columns = browser.execute_script("return document.getElementById('pasted').dataset.columns")
    environment = {**os.environ, "COLUMNS": columns, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", NATIVE, file, machine]
    done = subprocess.run(command, cwd=EXAMPLES, env=environment, capture_output=True, text=True, check=True)
    native = json.loads(done.stdout)
    assert [(each["title"], each["exit"]) for each in shown] == [(title, code) for title, _, code, *_ in native]
    for each, (_, words, _, verdict, output, errors) in zip(shown, native, strict=True):
        assert each["text"] == f"{output}{errors}".rstrip()
        assert each["look"] == {"answered": "good", "no": "bad"}.get(verdict, "open")
        assert each["command"].split()[1] == words[0]
    browser.find_element("css selector", "#pasted section button").click()
    whole = web.until(lambda: browser.execute_script("return document.querySelector('#pasted .json')?.textContent"))
    command = [sys.executable, "-m", "tuner", *native[0][1], "--json"]
    done = subprocess.run(command, cwd=EXAMPLES, env=environment, capture_output=True, text=True, check=False)
    assert closely(json.loads(whole)) == closely(json.loads(done.stdout))


@pytest.mark.slow
def test_nothing_is_loaded_before_somebody_comes_and_nothing_is_sent(browser: Any, address: str) -> None:
    browser.get(address)
    fetched = "return performance.getEntriesByType('resource').map((each) => new URL(each.name).pathname)"
    assert set(browser.execute_script(fetched)) == {"/site/try.css", "/site/try_paste.js"}
    browser.get_log("browser")
    ask(browser, EXAMPLES / "topo.txt")
    assert set(browser.execute_script(fetched)) <= {
        "/site/try.css", "/site/try_paste.js", "/site/try_worker.js", "/python/index.json"
    }  # fmt: skip
    assert [each["message"] for each in browser.get_log("browser") if "favicon" not in each["message"]] == []


@pytest.mark.slow
def test_pasted_text_is_read_a_machine_is_believed_and_mistakes_are_said(browser: Any, address: str) -> None:
    browser.get(address)
    button = browser.find_element("css selector", "#paste [name=ask]")
    button.click()
    assert "Nothing is pasted" in web.until(lambda: "Nothing" in status(browser) and status(browser))
    text = (EXAMPLES / "all_reduce.log").read_text("utf-8")
    browser.execute_script("document.querySelector('#paste [name=text]').value = arguments[0]", text)
    browser.execute_script("document.querySelector('#paste [name=machine]').value = 'dgx-h100'")
    browser.execute_script("delete document.getElementById('pasted').dataset.done")
    button.click()
    titles = [each["title"] for each in sections(browser)]
    assert titles == [
        "What is it, and is anything wrong?", "Is it as fast as it should be?", "What would NCCL pick?"
    ]  # fmt: skip
    browser.execute_script(
        """
        const files = new DataTransfer();
        files.items.add(new File([new Uint8Array(51 * 2 ** 20)], "large.log"));
        delete document.getElementById("pasted").dataset.done;
        document.getElementById("paste").dispatchEvent(new DragEvent("drop", {dataTransfer: files, cancelable: true}));
        """
    )
    web.until(lambda: "up to 52.4 MB" in status(browser))
    assert sections(browser) == []


@pytest.mark.slow
def test_a_site_without_python_says_so(browser: Any, root: str) -> None:
    browser.get(f"{root}/without/try.html")
    browser.find_element("css selector", "#paste [name=text]").click()
    web.until(lambda: "built without Python" in status(browser))


def test_each_file_is_answered_and_a_machine_of_its_own_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLES)
    found = list(answers(["guest.xml"]))
    assert [each.words[0] for each in found] == ["diagnose", "pick"]
    assert found[0].verdict == "no"
    assert found[1].command.startswith("nccl-tuner pick allreduce --topology guest.xml --bytes ")
    both = list(answers(["all_reduce.log", "nccl.log"], "dgx-h100", "1"))
    assert {each.title.partition(" (")[2].rstrip(")") for each in both[1:]} == {"all_reduce.log", "nccl.log"}
    (wrong,) = answers(["nccl.log"], "dgx-h1000")
    assert (wrong.exit_code, wrong.verdict) == (2, "")
    assert "did you mean dgx-h100" in wrong.errors
