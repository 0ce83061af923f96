"""The documentation's commands, run as shown; `make docs` writes what they print now, and what is derived from tables.

A block of README.md or docs/*.md that begins with `$ ` is a session: commands, each with its output below. The blocks
of a page share one folder, in their order, which begins with docs/examples in it and is shown as /job. A `$ cat FILE`
of no file yet writes it. `...` on a line of its own stands for lines that are left out. What cannot run here stands in
```sh without a prompt. ```pycon is Python in the same folder, with what it answers.
"""

import atexit
import contextlib
import difflib
import doctest
import io
import itertools
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Container, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import click

from tests.support import derived_docs as derived
from tuner import cli
from tuner.base.errors import OracleUnavailable

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LEFT_OUT = "..."
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
SHELL = frozenset("();<>|&")


@dataclass(frozen=True)
class Command:
    line: str
    shown: tuple[str, ...]


@dataclass(frozen=True)
class Block:
    page: Path
    at: int  # line of the fence
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.name}:{self.at}"

    @property
    def is_session(self) -> bool:
        return self.text.startswith("$ ")

    @property
    def commands(self) -> list[Command]:
        parts = re.split(r"^\$ ((?:.*\\\n)*.*)\n", self.text, flags=re.M)[1:]
        return [
            Command(line.replace("\\\n", ""), tuple(output.rstrip().splitlines()))
            for line, output in zip(parts[::2], parts[1::2], strict=True)
        ]


@dataclass(frozen=True)
class NotRun:
    """A command that asks a libnccl which is not on this computer, or comes after one in its session."""

    why: str


Printed = list[tuple[str, ...] | NotRun]


def blocks(page: Path) -> list[Block]:
    text = page.read_text("utf-8")
    return [Block(page, text.count("\n", 0, m.start()) + 1, m[1], m[2]) for m in FENCE.finditer(text)]


def anchors(page: Path) -> set[str]:
    """Of its headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


class Session:
    """The blocks of a page, run in its order in one folder, with one set of Python names."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.folder = Path(self._folder.name)
        atexit.register(self._folder.cleanup)
        self._names: dict[str, Any] = {}
        self.printed: dict[Block, Printed] = {}
        if (ROOT / "docs" / "examples").is_dir():
            shutil.copytree(ROOT / "docs" / "examples", Path(self._folder.name) / "docs" / "examples")

    def run(self, block: Block) -> None:
        """Runs the block after those that were run before."""
        folder = self._folder.name
        with contextlib.chdir(folder), patch.dict(os.environ, _environment()):
            if block.is_session:
                self.printed[block] = _answers(block, os.path.realpath(folder))
            else:
                self.printed[block] = [_python(block, self._names)]


_sessions: dict[Path, Session] = {}


def ran(block: Block, leave_out: Container[Block] = ()) -> Printed:
    """What each command of the block printed, stdout and stderr as they came; of Python the whole block.

    The blocks of its page before it were run then, without those that are to be left out.
    """
    before = itertools.takewhile(lambda each: each.at < block.at, runnable(block.page))
    needed = [each for each in before if each not in leave_out] + [block]
    session = _sessions.get(block.page) or Session()
    _sessions[block.page] = session
    missing = [each for each in needed if each not in session.printed]
    if missing and any(each.at > missing[0].at for each in session.printed):
        # What comes later on the page was run: once more, from its beginning.
        session, missing = Session(), needed
        _sessions[block.page] = session
    for each in missing:
        session.run(each)
    return session.printed[block]


def folder(page: Path) -> Path:
    """Where the page's blocks that were run have written."""
    return _sessions[page].folder


@contextlib.contextmanager
def inside(page: Path) -> Iterator[None]:
    """In the folder of the page's blocks that were run, with their environment."""
    with contextlib.chdir(folder(page)), patch.dict(os.environ, _environment()):
        yield


def runnable(page: Path) -> list[Block]:
    """Sessions and Python."""
    return [each for each in blocks(page) if each.is_session or each.language == "pycon"]


def _answers(block: Block, folder: str) -> Printed:
    printed: Printed = []
    for command in block.commands:
        missing = printed[-1] if printed and isinstance(printed[-1], NotRun) else None
        printed.append(missing or _run(command, folder))
    return printed


def _python(block: Block, names: dict[str, Any]) -> tuple[str, ...] | NotRun:
    """The block's lines, with what its examples answer now."""
    test = doctest.DocTestParser().get_doctest(block.text, names, str(block), str(block.page), 0)
    wrong = Wrong()
    wrong.run(test, clear_globs=False)
    if wrong.missing:
        return NotRun(wrong.missing)
    names |= test.globs
    lines = block.text.splitlines()
    for example in reversed(test.examples):
        if example in wrong.answers:
            start = example.lineno + example.source.count("\n")
            lines[start : start + example.want.count("\n")] = wrong.answers[example].splitlines()
    return tuple(lines)


class Wrong(doctest.DocTestRunner):
    """Examples that answer otherwise, with their answers."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: dict[doctest.Example, str] = {}
        self.missing = ""

    def report_failure(self, out: Any, test: Any, example: doctest.Example, got: str) -> None:
        self.answers[example] = got

    def report_unexpected_exception(self, out: Any, test: Any, example: doctest.Example, exc_info: Any) -> None:
        if isinstance(exc_info[1], OracleUnavailable):
            self.missing = str(exc_info[1])
        message = traceback.format_exception_only(exc_info[0], exc_info[1])[-1]
        self.answers[example] = f"Traceback (most recent call last):\n{message}"


def _environment() -> dict[str, str]:
    return {"COLUMNS": "1000", "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def _run(command: Command, folder: str) -> tuple[str, ...] | NotRun:
    words = shlex.split(command.line, comments=True)
    if words[0] == "cat" and len(words) == 2 and not Path(words[1]).exists():
        Path(words[1]).write_text("".join(f"{line}\n" for line in command.shown), "utf-8")
    plain = not any(SHELL.issuperset(word) for word in shlex.shlex(command.line, posix=True, punctuation_chars=True))
    printed = own(words) if words[0] == "nccl-tuner" and plain else _shell(command.line)
    if isinstance(printed, NotRun):
        return printed
    return tuple(line.rstrip() for line in printed.replace(folder, "/job").rstrip().splitlines())


def own(words: list[str]) -> str | NotRun:
    """In this process, which has everything loaded already."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output), patch.object(sys, "argv", words):
        try:
            cli.main()
        except SystemExit as end:
            if isinstance(end.__context__, OracleUnavailable):
                return NotRun(str(end.__context__))
    return output.getvalue()


def _shell(line: str) -> str:
    done = subprocess.run(
        ["bash", "-c", line], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300, check=False
    )
    return done.stdout


def parse(words: list[str]) -> None:
    """Fails where the command line has no such command or option."""
    command: click.Command = cli.everything
    context = click.Context(command, **command.context_settings)  # click keeps the first one's options for help
    while isinstance(command, click.Group) and words and (getattr(command, "default", None) or words[0][:1] != "-"):
        if words[0] not in command.list_commands(context) and getattr(command, "default", None) is not None:
            words = [command.default, *words]  # type: ignore[attr-defined]
        found = command.get_command(context, words[0])
        assert found is not None, words[0]
        command, words = found, words[1:]
    end = next((at for at, word in enumerate(words) if SHELL.issuperset(word)), len(words))
    command.make_parser(context).parse_args(words[:end])


def same(shown: tuple[str, ...], printed: tuple[str, ...]) -> bool:
    """Whether the shown lines are the printed ones, in their order, with only marked lines left out."""
    pattern = "".join(r"(?:.*\n)+?" if line == LEFT_OUT else re.escape(line) + r"\n" for line in shown)
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in printed)) is not None


def refreshed(shown: tuple[str, ...], printed: tuple[str, ...]) -> tuple[str, ...]:
    """The printed lines; where some were left out, as many as before around the mark, the most alike."""
    if same(shown, printed):
        return shown
    first, *others = _between_marks(shown)
    kept = list(printed[: len(first)]) if others else list(printed)
    at = len(kept)
    for number, part in enumerate(others, start=1):
        end = len(printed) - len(part)
        at = (
            end
            if number == len(others)
            else max(range(at, end + 1), key=lambda start: _likeness(part, printed[start : start + len(part)]))
        )
        kept += [LEFT_OUT, *printed[at : at + len(part)]]
        at += len(part)
    return tuple(kept)


def _between_marks(shown: tuple[str, ...]) -> list[tuple[str, ...]]:
    marks = [-1, *(at for at, line in enumerate(shown) if line == LEFT_OUT), len(shown)]
    return [shown[start + 1 : end] for start, end in itertools.pairwise(marks)]


def _likeness(one: tuple[str, ...], other: tuple[str, ...]) -> float:
    return difflib.SequenceMatcher(None, "\n".join(one), "\n".join(other), autojunk=False).ratio()


def rewritten(page: Path) -> str:
    """The page with what its commands print now and what is derived; unchanged where a libnccl is missing."""
    text = page.read_text("utf-8")
    for block in runnable(page):
        printed = ran(block)
        now = _session(block, printed) if block.is_session else _block(block, printed[0])
        text = text.replace(f"```{block.language}\n{block.text}```", f"```{block.language}\n{now}```")
    return derived.written_into(text, page)


def _block(block: Block, printed: tuple[str, ...] | NotRun) -> str:
    return block.text if isinstance(printed, NotRun) else "".join(f"{line}\n" for line in printed)


def _session(block: Block, printed: Printed) -> str:
    outputs = [
        command.shown if isinstance(lines, NotRun) else refreshed(command.shown, lines)
        for command, lines in zip(block.commands, printed, strict=True)
    ]
    prompts = re.findall(r"^\$ (?:.*\\\n)*.*\n", block.text, flags=re.M)
    return "".join(p + "".join(f"{line}\n" for line in lines) for p, lines in zip(prompts, outputs, strict=True))
