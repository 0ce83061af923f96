"""README.md and docs/*.md: every command prints what is shown, Python too, links lead somewhere, nothing is stale."""

import difflib
import re
import shlex
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from tests.support import available_releases as here
from tests.support import derived_docs as derived
from tests.support import doc_sessions as sessions
from tests.support import recorded
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
