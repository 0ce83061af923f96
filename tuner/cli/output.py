"""Prints JSON, and tables for people."""

import json
import os
import shlex
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import click

from tuner.base import view
from tuner.base.errors import TunerError
from tuner.base.printable import in_a_line, styled, unstyled
from tuner.base.records import to_json, versioned
from tuner.base.sizes import human_bytes as human_bytes
from tuner.base.sizes import plural as plural
from tuner.base.view import Column, laid_out
from tuner.base.view import NotedCell as NotedCell
from tuner.base.view import number as number
from tuner.base.view import span as span

WIDTH = 80  # of a table where nothing says how wide it may be


def width_to_fit() -> int:
    """Width of the output in characters: COLUMNS, or else the terminal's width; 80 without either, as in a pipe or a
    file."""
    said = os.environ.get("COLUMNS", "")
    if said.isdecimal() and int(said) > 0:
        return int(said)
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDTH


NOTES = "tuner.cli.notes_after"  # in click's context: lines that come after the answer
JSON = "tuner.cli.json"  # in click's context: whether the answer is to be JSON
LOG = "tuner.cli.log"  # in click's context: what the command's description has of a log
ENV_FILES = "tuner.cli.env_files"  # what the variables of --env-file do
STANDING = "tuner.cli.standing"  # and what stands behind releases that were not compared, by name


def say(text: str = "", err: bool = False) -> None:
    """Prints a line for people, broken at the width of the output."""
    click.echo(folded(text), err=err)


def note_after(text: str, of_answer: bool = False) -> None:
    """Prints a note on stderr when the command ends, after its answer; if the command fails, before the error.

    A note that is only about the answer (``of_answer``) is not printed before an error.
    """
    ctx = click.get_current_context()
    notes: list[tuple[str, bool]] = ctx.meta.setdefault(NOTES, [])
    if not notes:
        ctx.call_on_close(lambda: _say_notes(notes))
    notes.append((text, of_answer))


def _say_notes(notes: Sequence[tuple[str, bool]]) -> None:
    refused = isinstance(sys.exc_info()[1], TunerError)
    if said := [f"note: {text}" for text, of_answer in notes if not (refused and of_answer)]:
        say("\n".join(said), err=True)


def progress(text: str) -> None:
    """Prints on stderr what the user is waiting for, if stderr is a terminal."""
    if sys.stderr.isatty():
        say(f"{text} ...", err=True)


def folded(text: str) -> str:
    """The text, broken between words into lines that are no longer than :func:`width_to_fit`."""
    return "\n".join(_folded(line, width_to_fit()) for line in text.split("\n"))


def _folded(line: str, width: int) -> str:
    plain = unstyled(line)
    if len(plain) <= width:
        return line
    indent = " " * (len(line) - len(line.lstrip()))
    broken = textwrap.fill(plain, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return line.replace(plain, broken) if plain in line else broken  # one style of all of it stays


def verdict(text: str, good: bool | None) -> str:
    """The text of a verdict, on a terminal in green or red; None: it cannot be judged."""
    return styled(text, {True: "green", False: "red", None: "yellow"}[good])


def print_json(value: Any, several: str | None = None) -> None:
    """Prints one JSON object: the keys of a record, or a list of records under the key ``several``.

    The first key is the version of the format (docs/json.md). The last ones say what comes from the log that describes
    the communicator, what the variables in files do, and what answers for a release rest on that was not compared.
    """
    written = versioned(value, several)
    if (says := click.get_current_context().meta.get(LOG)) is not None:
        written["log"] = to_json(says)
    if (effects := click.get_current_context().meta.get(ENV_FILES)) is not None:
        written["env_files"] = to_json(effects)
    if (standing := click.get_current_context().meta.get(STANDING)) is not None:
        words = [f"{name}: {text}" if len(standing) > 1 else text for name, text in standing.items()]
        written["standing"] = "; ".join(words)
    click.echo(json.dumps(written, indent=1))


def json_wanted() -> bool:
    """Whether the answer has to be JSON: the command has ``--json``, and the user gave it."""
    return bool(click.get_current_context().meta.get(JSON))


def shown_as_json(answer: Any, several: str | None = None) -> bool:
    """Whether the answer has to be JSON; if so, prints it like :func:`print_json`."""
    if json_wanted():
        print_json(answer, several)
    return json_wanted()


def show(answer: Any, printed: Callable[..., None], *more: Any, several: str | None = None) -> None:
    """Prints an answer: its record as JSON (a list of records under the key ``several``), or else by the function
    ``printed``, which also gets the other arguments."""
    if not shown_as_json(answer, several):
        printed(answer, *more)


def print_table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], spare: Sequence[str] = ()
) -> None:
    """Prints a plain aligned table; columns with only numbers are aligned to the right.

    The table is no wider than :func:`width_to_fit`: ``spare`` columns are left out first. Notes of cells are printed
    below it, once each. No library is used, as importing one takes 20 ms.
    """
    if title:
        click.echo(folded(title))
    body, notes = view.numbered(rows)
    body = [[in_a_line(cell) for cell in row] for row in body]
    table = laid_out(columns, body, width_to_fit(), spare)
    click.echo(table)
    for text, place in notes.items():
        if f"[{place}]" in table:  # else its column was left out for the width
            click.echo(folded(f" [{place}] {text}"))


def print_view(title: str, columns: Sequence[Column], rows: Iterable[Any]) -> None:
    """Prints a table of records, or of several records per row; ``columns`` say what is shown."""
    columns = [each for each in columns if each.title]
    print_table(title, [each.title for each in columns], view.cells(columns, rows), view.spare(columns))


def print_csv(columns: Sequence[Column], rows: Iterable[Any]) -> None:
    """Prints the columns that have a key, as comma-separated values."""
    click.echo(view.to_csv(columns, rows), nl=False)


def command_line() -> str:
    """The command line of the running process."""
    return shlex.join(["nccl-tuner", *sys.argv[1:]])
