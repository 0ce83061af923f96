"""README.md and docs/*.md: every command prints what is shown, what pages name exists, nothing is stale."""

import difflib
import importlib
import re
import shlex
import shutil
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from tests.support import available_releases as here
from tests.support import command_line, json_schemas, recorded
from tests.support import derived_docs as derived
from tests.support import doc_sessions as sessions
from tuner import release
from tuner.oracle import library
from tuner.oracle.conformance.check import KINDS

INDEX = sessions.ROOT / "docs" / "README.md"
BLOCKS = [block for page in sessions.PAGES for block in sessions.blocks(page)]
SESSIONS = [block for block in BLOCKS if block.is_session]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


ASKS = re.compile(r"^\$ nccl-tuner (?:oracle|check|memory)\b|^\$ .* --libnccl\b|^>>> with Oracle\(", re.M)
# What follows them on a page may use none of what they write: without libnccl they are left out.
ASKING = frozenset(block for block in BLOCKS if ASKS.search(block.text))


def marked(blocks: list[sessions.Block]) -> list[ParameterSet]:
    return [pytest.param(block, id=str(block), marks=[pytest.mark.live] if block in ASKING else []) for block in blocks]


def ran(block: sessions.Block) -> sessions.Printed:
    """A block that does not ask libnccl is run without those that do."""
    return sessions.ran(block) if block in ASKING else sessions.ran(block, leave_out=ASKING)


def written(language: str) -> list[sessions.Block]:
    return [block for block in BLOCKS if block.language == language]


@pytest.mark.slow
@pytest.mark.parametrize("block", marked(SESSIONS))
def test_commands_print_what_is_shown(block: sessions.Block) -> None:
    missing, wrong = set(), []
    for command, printed in zip(block.commands, ran(block), strict=True):
        if isinstance(printed, sessions.NotRun):
            missing.add(printed.why)
        elif not sessions.same(command.shown, printed):
            wrong += [f"$ {command.line}", *difflib.unified_diff(command.shown, printed, lineterm="", n=1)]
    assert not wrong, "\n".join([f"{block}; `make docs` writes what is printed now", *wrong])
    if missing:
        pytest.skip("; ".join(missing))


@pytest.mark.slow
@pytest.mark.parametrize("block", marked(SESSIONS))
def test_commands_print_json_as_their_schemas_say(block: sessions.Block) -> None:
    """Every command that is shown, once more with ``--json``: tests/conftest.py holds it against its schema."""
    asked = [words for command in block.commands if (words := json_schemas.as_json(command.line)) is not None]
    if not asked:
        pytest.skip("nothing here prints JSON")
    ran(block)
    with sessions.inside(block.page):
        for words in asked:
            printed = str(sessions.own(["nccl-tuner", *words]))
            assert '"nccl_tuner_json": 1' in printed or "nccl-tuner: " in printed, words


def test_every_prompt_is_run() -> None:
    for block in BLOCKS:
        assert block.is_session or not re.search(r"^\$ ", block.text, re.M), f"{block}: begins with no prompt"
        assert not block.is_session or block.language in ("", "console"), f"{block}: valid: ```console"


@pytest.mark.parametrize("block", SESSIONS, ids=str)
def test_libnccl_is_asked_of_releases_that_the_tests_fetch(block: sessions.Block) -> None:
    for command in block.commands:
        # What a log or a job shows is compared with the emulator alone.
        if re.match(r"nccl-tuner (oracle|check(?! (log|run)\b))(?!\S)", command.line):
            assert set(re.findall(r"--nccl (\S+)", command.line)) & here.FEW, f"{command.line}: valid: {here.FEW}"


@pytest.mark.parametrize("block", written("sh"), ids=str)
def test_commands_that_are_not_run_exist(block: sessions.Block) -> None:
    for line in block.text.replace("\\\n", "").splitlines():
        words = shlex.split(line, comments=True)
        if "nccl-tuner" in words:
            sessions.parse(words[words.index("nccl-tuner") + 1 :])


@pytest.mark.slow
@pytest.mark.parametrize("block", marked(written("pycon")))
def test_python_prints_what_is_shown(block: sessions.Block) -> None:
    (printed,) = ran(block)
    if isinstance(printed, sessions.NotRun):
        pytest.skip(printed.why)
    shown = block.text.splitlines()
    assert list(printed) == shown, "\n".join(difflib.unified_diff(shown, printed, f"{block}", "printed", lineterm=""))


LINKING = [*sessions.PAGES, *(sessions.ROOT / name for name in ("CONTRIBUTING.md", "CHANGELOG.md", "csrc/README.md"))]


@pytest.mark.parametrize("page", LINKING, ids=lambda page: str(page.relative_to(sessions.ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(page.read_text("utf-8")):
        file, _, anchor = link.partition("#")
        if re.match(r"https?:", link):
            continue
        target = page.parent / file if file else page
        assert target.exists(), link
        assert not anchor or anchor in sessions.anchors(target), link


def test_the_index_names_every_page() -> None:
    linked = set(LINK.findall(INDEX.read_text("utf-8")))
    assert {page.name for page in INDEX.parent.glob("*.md")} - {INDEX.name} <= linked


@pytest.mark.slow
@pytest.mark.parametrize("page", sessions.PAGES, ids=lambda page: page.name)
def test_what_is_derived_is_not_stale(page: Path) -> None:
    text = page.read_text("utf-8")
    assert derived.written_into(text, page) == text, "make docs"


def test_the_list_for_programs_that_read_is_not_stale() -> None:
    """Its links are pages, and its commands exist."""
    text = (INDEX.parent / "llms.txt").read_text("utf-8")
    assert derived.llms() == text, "make docs"
    for target in LINK.findall(text):
        assert (INDEX.parent / target.replace(".html", ".md")).exists(), target
    examples = re.findall(r"; such as `nccl-tuner (.*)`$", text, re.M)
    assert len(examples) > 40
    for example in examples:
        sessions.parse(shlex.split(example))


def test_every_release_was_compared_and_matched() -> None:
    found = recorded.read("releases")
    assert list(found) == release.names(), "make test-releases"
    for name, row in found.items():
        assert row["libnccl_sha256"] == release.load(name).library["cu12"]["x86_64"].sha256, name
        assert row["failed"] == 0, name
        assert row["cells"]["compared"] >= 500_000, name
        assert all(row[kind]["matched"] == row[kind]["compared"] > 0 for kind in KINDS), name


def test_every_build_for_cuda_13_was_compared_and_answers_the_same() -> None:
    found = recorded.read("builds")
    assert list(found) == library.with_build("cu13"), "make test-releases"
    for name, row in found.items():
        assert row["sha256"] == release.load(name).library["cu13"]["x86_64"].sha256, name
        assert row["cuda"].startswith("13."), name
        assert row["same"] == row["compared"] > 300_000, name


def test_a_share_is_100_only_where_all_match() -> None:
    assert derived.share(10**6, 10**6) == "100 %"
    assert derived.share(10**6 - 1, 10**6) == "99.99 %"
    assert derived.share(1, 3) == "33.33 %"


PRINTED = ("title", "", "a 1", "b 2", "c 3", "d 4", "end")


@pytest.mark.parametrize(
    "shown",
    [
        PRINTED,
        ("title", "...", "end"),
        ("...", "b 2", "c 3", "..."),
        ("title", "...", "b 2", "...", "d 4", "end"),
    ],
)
def test_left_out_lines_may_be_anything(shown: tuple[str, ...]) -> None:
    assert sessions.same(shown, PRINTED)
    assert sessions.refreshed(shown, PRINTED) == shown


@pytest.mark.parametrize(
    "shown",
    [
        (),
        ("title",),
        PRINTED[:-1],
        ("title", "...", "c 3", "b 2", "..."),
        ("a 1", "..."),
        ("...", "c 3"),
        ("title", "", "...", "a 1", "b 2", "c 3", "d 4", "end"),
        ("...", "b 2", "d 4", "..."),
    ],
)
def test_what_is_shown_has_to_be_printed_in_that_order(shown: tuple[str, ...]) -> None:
    assert not sessions.same(shown, PRINTED)


def test_refreshed_keeps_what_was_left_out() -> None:
    changed = ("title", "", "a 9", "b 8", "c 7", "d 6", "end")
    shown = ("title", "...", "b 2", "c 3", "...", "end")
    assert sessions.refreshed(shown, changed) == ("title", "...", "b 8", "c 7", "...", "end")
    assert sessions.refreshed(PRINTED, changed) == changed


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
