"""What the pages name exists: files of this project, Python names, commands in the text; and the README is short."""

import importlib
import re
import shutil
from pathlib import Path

import pytest

from tests.support import command_line
from tests.support import doc_sessions as sessions

PROSE = re.compile(r"^```.*?^```$", re.M | re.S)
CODE = re.compile(r"`([^`\n]+)`")
FILE = re.compile(r"(?:tuner|tests|csrc|tables|docs|benchmarks|tools)/[\w./*-]+")
OF_NCCL = re.compile(r"src/|plugins/|include/")
PAGES = [*sessions.PAGES, sessions.ROOT / "CONTRIBUTING.md", sessions.ROOT / "csrc" / "README.md"]
START = "## Start here"


def spans(page: Path) -> list[str]:
    """The page's text in backticks, without its blocks."""
    return CODE.findall(PROSE.sub("", page.read_text("utf-8")))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_are_named_exist(page: Path) -> None:
    """A word in capitals, as in tables/machines/NAME, stands for any."""
    for span in spans(page):
        for name in FILE.findall(span) if not OF_NCCL.search(span) else []:
            pattern = re.sub(r"\b[A-Z]{2,}\b", "*", name.rstrip("./"))
            assert any(sessions.ROOT.glob(pattern)), f"{page.name}: {span}"


CITED = re.compile(r"(?<![\w/.-])(?:\.\./)*docs/([\w-]+\.md)(#[\w-]+)?")
CITING = ("tuner", "csrc", "tests", "distribution", "benchmarks", ".github")


def citations() -> list[tuple[str, str, str]]:
    """Files that cite a page, each with the page and its anchor."""
    named = (file for folder in CITING for file in (sessions.ROOT / folder).rglob("*.*"))
    files = [file for file in named if file.suffix in {".py", ".c", ".h", ".toml", ".md", ".yml", ".yaml"}]
    files += [sessions.ROOT / name for name in ("Makefile", "action.yml", "pyproject.toml", "CONTRIBUTING.md")]
    return [
        (str(file.relative_to(sessions.ROOT)), page, anchor)
        for file in files
        for page, anchor in CITED.findall(file.read_text("utf-8"))
    ]


def test_pages_that_files_cite_exist() -> None:
    found = citations()
    assert len(found) > 30
    for file, page, anchor in found:
        target = sessions.ROOT / "docs" / page
        assert target.exists(), f"{file} cites docs/{page}"
        assert not anchor or anchor[1:] in sessions.anchors(target), f"{file} cites docs/{page}{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_names_exist(page: Path) -> None:
    for span in spans(page):
        if match := re.fullmatch(r"(tuner(?:\.\w+)+)(?:\(.*\))?", span):
            assert found(match[1]), f"{page.name}: {span}"


def found(dotted: str) -> bool:
    """Whether a dotted name is a module, or something in one."""
    module, _, rest = dotted, "", ""
    while module:
        try:
            value = importlib.import_module(module)
        except ModuleNotFoundError:
            module, _, last = module.rpartition(".")
            rest = f"{last}.{rest}".rstrip(".")
            continue
        for part in rest.split(".") if rest else []:
            if not hasattr(value, part):
                return False
            value = getattr(value, part)
        return True
    return False


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_in_the_text_exist(page: Path) -> None:
    for span in spans(page):
        words = span.replace("...", "").split()
        if words[:1] == ["nccl-tuner"] and len(words) > 1 and words[1].islower():
            sessions.parse(words[1:])


def test_rules_and_constants_that_are_named_exist() -> None:
    tables = "".join(file.read_text("utf-8") for file in (sessions.ROOT / "tables" / "nccl").glob("*.toml"))
    code = "".join(file.read_text("utf-8") for file in (sessions.ROOT / "tuner").rglob("*.py"))
    for span in spans(sessions.ROOT / "docs" / "how-a-pick-is-made.md"):
        if re.fullmatch(r"[a-z0-9]+(_[a-z0-9]+)+", span):
            assert re.search(rf"\b{span}\b", tables) or re.search(rf"\b{span}\b", code), span


def test_a_name_that_is_none_is_not_found() -> None:
    assert found("tuner.scenario.Scenario")
    assert not found("tuner.scenario.Szenario")
    assert not found("tuner.nowhere.at_all")


def start_here() -> list[str]:
    """The commands of the README's first table."""
    text = (sessions.ROOT / "README.md").read_text("utf-8")
    table = text[text.index(START) :].split("\n\n")[1]
    return [span for span in CODE.findall(table) if span.startswith("nccl-tuner ")]


@pytest.mark.live
@pytest.mark.parametrize("command", start_here())
def test_what_the_readme_starts_with_answers(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder with docs/examples, as in a clone."""
    shutil.copytree(sessions.ROOT / "docs" / "examples", tmp_path / "docs" / "examples")
    monkeypatch.chdir(tmp_path)
    assert len(command_line.run(*command.split()[1:]).stdout.splitlines()) > 5


def test_the_readme_has_two_screens() -> None:
    text = (sessions.ROOT / "README.md").read_text("utf-8")
    assert len(text.splitlines()) <= 100
    assert text.index(START) < text.index("\n## ") + 2
    assert len(start_here()) >= 6
