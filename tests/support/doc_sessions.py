"""The documentation's commands, run as shown; `make docs` writes what they print now, and what is derived from tables.

A block of README.md or docs/*.md that begins with `$ ` is a session: commands, each with its output below. The blocks
of a page share one folder, in their order, which begins with docs/examples in it and is shown as /job. A `$ cat FILE`
of no file yet writes it. `...` on a line of its own stands for lines that are left out. What cannot run here stands in
```sh without a prompt. ```pycon is Python in the same folder, with what it answers.
"""

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
from dataclasses import dataclass
from functools import cache
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


def blocks(page: Path) -> list[Block]:
    text = page.read_text("utf-8")
    return [Block(page, text.count("\n", 0, m.start()) + 1, m[1], m[2]) for m in FENCE.finditer(text)]


@cache
def ran(page: Path) -> dict[Block, list[tuple[str, ...] | NotRun]]:
    """What each command of the page's sessions printed, stdout and stderr as they came; of Python the whole block."""
    names: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), patch.dict(os.environ, _environment()):
        if (ROOT / "docs" / "examples").is_dir():
            shutil.copytree(ROOT / "docs" / "examples", Path("docs") / "examples")
        found: dict[Block, list[tuple[str, ...] | NotRun]] = {}
        for block in blocks(page):
            if block.is_session:
                found[block] = _answers(block, os.path.realpath(folder))
            elif block.language == "pycon":
                found[block] = [_python(block, names)]
        return found


def _answers(block: Block, folder: str) -> list[tuple[str, ...] | NotRun]:
    printed: list[tuple[str, ...] | NotRun] = []
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
    return {"COLUMNS": "120", "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def _run(command: Command, folder: str) -> tuple[str, ...] | NotRun:
    words = shlex.split(command.line, comments=True)
    if words[0] == "cat" and len(words) == 2 and not Path(words[1]).exists():
        Path(words[1]).write_text("".join(f"{line}\n" for line in command.shown), "utf-8")
    plain = not any(SHELL.issuperset(word) for word in shlex.shlex(command.line, posix=True, punctuation_chars=True))
    printed = _own(words) if words[0] == "nccl-tuner" and plain else _shell(command.line)
    if isinstance(printed, NotRun):
        return printed
    return tuple(line.rstrip() for line in printed.replace(folder, "/job").rstrip().splitlines())


def _own(words: list[str]) -> str | NotRun:
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
    context = click.Context(command)
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
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
    for block, printed in ran(page).items():
        now = _session(block, printed) if block.is_session else _block(block, printed[0])
        text = text.replace(f"```{block.language}\n{block.text}```", f"```{block.language}\n{now}```")
    return derived.written_into(text, page)


def _block(block: Block, printed: tuple[str, ...] | NotRun) -> str:
    return block.text if isinstance(printed, NotRun) else "".join(f"{line}\n" for line in printed)


def _session(block: Block, printed: list[tuple[str, ...] | NotRun]) -> str:
    outputs = [
        command.shown if isinstance(lines, NotRun) else refreshed(command.shown, lines)
        for command, lines in zip(block.commands, printed, strict=True)
    ]
    prompts = re.findall(r"^\$ (?:.*\\\n)*.*\n", block.text, flags=re.M)
    return "".join(p + "".join(f"{line}\n" for line in lines) for p, lines in zip(prompts, outputs, strict=True))
