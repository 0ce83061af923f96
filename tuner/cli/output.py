"""Printing: JSON, and tables for people."""

import csv
import io
import json
import os
import re
import shlex
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import click

from tuner.base.dataclass import dataclass
from tuner.base.numerics import NEVER_US
from tuner.base.records import to_json
from tuner.base.sizes import human_bytes as human_bytes
from tuner.base.sizes import plural as plural
from tuner.cli.command import with_options

WIDTH = 80  # of a table where nothing says how wide it may be
GAPS = (3, 2, 1)  # between columns, the first that fits
LEAST = 8  # a wrapped column is no narrower
LEFT_OUT = "left out for the width"  # columns; --json has them
LEAST_COLUMNS = 2  # that a table is left with
PROSE = 40  # a last column with longer cells goes below its rows where it has less than that beside them
INDENT = "     "
OF_A_NUMBER = re.compile(r"(?<=\d) (?=(?:[KMGTPE]i?)?B\b|us\b|ms\b|GB/s|%)")  # no line ends between it and its unit


def width_to_fit() -> int:
    """Columns that COLUMNS says, else the terminal's; 80 where neither is, as in a pipe or a file."""
    said = os.environ.get("COLUMNS", "")
    if said.isdecimal() and int(said) > 0:
        return int(said)
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDTH


def laid_out(columns: Sequence[str], body: Sequence[Sequence[str]], width: int, spare: Sequence[str] = ()) -> str:
    """The lines of a plain aligned table; columns whose cells are all numbers are set to the right.

    Of one that is wider than ``width``, columns called as in ``spare`` are left out, the first ones first; the cells of
    what is still wider are wrapped, and a last column of sentences goes below its rows; where that does not do, the
    last columns are left out. Where not even the first two fit, each row is a list.
    """
    whole = _Columns.of(columns, body)
    if whole.total <= width:
        return _table(columns, body, whole)
    left = width - whole.total + whole.widths[-1]  # for the last column
    prose = whole.widths[-1] > PROSE > left and len(columns) > 1 and columns[-1] not in spare
    places = list(range(len(columns) - prose))
    spared = [name for name in spare if name in columns]
    while True:
        shown, rows = [columns[at] for at in places], [[cells[at] for at in places] for cells in body]
        fitted = _fitting(shown, rows, width, wrapped=len(places) <= LEAST_COLUMNS or not spared)
        if fitted is not None:
            gone = [name for at, name in enumerate(columns[: len(columns) - prose]) if at not in places]
            table = _with_sentences(columns[-1], body, width, [fitted.lines(each) for each in [shown, *rows]])
            return (table if prose else _table(shown, rows, fitted)) + (_note(gone, width) if gone else "")
        if len(places) <= LEAST_COLUMNS:
            return _lists(columns, body, width)
        called = spared.pop(0) if spared else shown[-1]
        places.pop(len(shown) - 1 - shown[::-1].index(called))


def _note(gone: Sequence[str], width: int) -> str:
    return textwrap.fill(f"{LEFT_OUT}: {', '.join(gone)}", width, initial_indent=" ", subsequent_indent=" ") + "\n"


def _fitting(columns: Sequence[str], body: Sequence[Sequence[str]], width: int, wrapped: bool) -> "_Columns | None":
    """The columns as wide as their cells, closer together, or ``wrapped``; None where nothing fits."""
    whole = _Columns.of(columns, body)
    if whole.total <= width:
        return whole
    if not wrapped:
        words = [max(name.split(), key=len, default="") for name in columns]  # only names take several lines
        closer = (_Columns.of(words, body).closer(columns, width, gap) for gap in GAPS)
        return next(filter(None, closer), None)
    return next(filter(None, (whole.fitted([columns, *body], width, gap) for gap in GAPS)), None)


@dataclass(frozen=True, slots=True)
class _Columns:
    """The widths of columns, which of them are numbers, and the gap between them."""

    widths: tuple[int, ...]
    to_the_right: tuple[bool, ...]
    gap: int = GAPS[0]

    @classmethod
    def of(cls, columns: Sequence[str], body: Sequence[Sequence[str]]) -> "_Columns":
        along = list(zip(columns, *body, strict=True))
        return cls(tuple(max(map(len, cells)) for cells in along), tuple(all(map(_is_number, c[1:])) for c in along))

    @property
    def total(self) -> int:
        return 1 + sum(self.widths) + self.gap * (len(self.widths) - 1)

    def fitted(self, rows: Sequence[Sequence[str]], width: int, gap: int) -> "_Columns | None":
        """The widest columns narrowed first; None where a word would not fit."""
        words = [max(len(word) for cell in cells for word in _words(cell)) for cells in zip(*rows, strict=True)]
        least = [min(own, max(word, LEAST)) for own, word in zip(self.widths, words, strict=True)]
        widths = list(self.widths)
        while 1 + sum(widths) + gap * (len(widths) - 1) > width:
            loose = [at for at in range(len(widths)) if widths[at] > least[at]]
            if not loose:
                return None
            widest = max(loose, key=widths.__getitem__)
            widths[widest] -= 1
        return _Columns(tuple(widths), self.to_the_right, gap)

    def closer(self, columns: Sequence[str], width: int, gap: int) -> "_Columns | None":
        """Columns of the same widths or wider, for their names, with this gap; None where they do not fit."""
        widths, left = list(self.widths), width - 1 - sum(self.widths) - gap * (len(self.widths) - 1)
        for at, name in enumerate(columns):
            more = max(0, min(left, len(name) - widths[at]))
            widths[at], left = widths[at] + more, left - more
        return None if left < 0 else _Columns(tuple(widths), self.to_the_right, gap)

    def lines(self, cells: Sequence[str]) -> list[str]:
        """One row, as tall as its tallest cell."""
        wrapped = [_wrapped(cell, own) for cell, own in zip(cells, self.widths, strict=True)]
        tall = max(map(len, wrapped))
        filled = [[*part, *[""] * (tall - len(part))] for part in wrapped]
        return [self._line(parts) for parts in zip(*filled, strict=True)]

    def _line(self, cells: Sequence[str]) -> str:
        form = zip(cells, self.widths, self.to_the_right, strict=True)
        return " " + (" " * self.gap).join(cell.rjust(own) if right else cell.ljust(own) for cell, own, right in form)


def _table(columns: Sequence[str], body: Sequence[Sequence[str]], form: _Columns) -> str:
    rule = " " + "─" * (form.total - 1)
    rows = [line for cells in body for line in form.lines(cells)]
    return "\n".join(each.rstrip() for each in ["", *form.lines(columns), rule, *rows, ""])


def _with_sentences(name: str, body: Sequence[Sequence[str]], width: int, above: Sequence[Sequence[str]]) -> str:
    """The last column, of this name, with its cells below their rows, whose lines ``above`` has after the head's."""
    head, *rows = above
    lines = ["", *head, f"{INDENT}{name}", " " + "─" * (width - 1)]
    for (*_, sentence), row in zip(body, rows, strict=True):
        lines += [*row, *(f"{INDENT}{part}" for part in _wrapped(sentence, width - len(INDENT)))]
    return "\n".join(line.rstrip() for line in [*lines, ""])


def _lists(columns: Sequence[str], body: Sequence[Sequence[str]], width: int) -> str:
    names = max(map(len, columns))
    lines = [""]
    for cells in body:
        for name, cell in zip(columns, cells, strict=True):
            first, *more = _wrapped(cell, max(width - names - 4, LEAST))
            lines += [f" {name.ljust(names)}   {first}", *(f" {' ' * names}   {part}" for part in more)]
        lines.append("")
    return "\n".join(line.rstrip() for line in lines)


def _words(text: str) -> list[str]:
    return OF_A_NUMBER.sub("\N{NO-BREAK SPACE}", text).split(" ")


def _wrapped(text: str, width: int) -> list[str]:
    if len(text) <= width:
        return [text]
    kept = textwrap.wrap(" ".join(_words(text)), width, break_long_words=False, break_on_hyphens=False) or [""]
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in kept]


def _is_number(text: str) -> bool:
    return text[:1].isdigit() or text in ("", "-")


NOTES = "tuner.cli.notes_after"  # in click's context: lines that come after the answer
JSON = "tuner.cli.json"  # in click's context: whether the answer is to be JSON
LOG = "tuner.cli.log"  # in click's context: what the command's description has of a log


def say(text: str = "", err: bool = False) -> None:
    """A line for people, with the options of the arguments that it names, broken where the output ends."""
    click.echo(folded(with_options(text)), err=err)


def note_after(text: str) -> None:
    """Says a note on stderr when the command ends, so that its answer comes first; before a refusal, though."""
    ctx = click.get_current_context()
    notes: list[str] = ctx.meta.setdefault(NOTES, [])
    if not notes:
        ctx.call_on_close(lambda: say("\n".join(f"note: {each}" for each in notes), err=True))
    notes.append(text)


def progress(text: str) -> None:
    """A line on stderr, where that is a terminal, on what takes long."""
    if sys.stderr.isatty():
        say(f"{text} ...", err=True)


def folded(text: str) -> str:
    """The text with its lines no longer than :func:`width_to_fit`, between words."""
    return "\n".join(_folded(line, width_to_fit()) for line in text.split("\n"))


def _folded(line: str, width: int) -> str:
    plain = click.unstyle(line)
    if len(plain) <= width:
        return line
    indent = " " * (len(line) - len(line.lstrip()))
    broken = textwrap.fill(plain, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return line.replace(plain, broken) if plain in line else broken  # one style of all of it stays


def verdict(text: str, good: bool | None) -> str:
    """A verdict, on a terminal in green or red; None: it cannot be judged."""
    return click.style(text, fg={True: "green", False: "red", None: "yellow"}[good], bold=True)


def print_json(value: Any) -> None:
    """Records, or what is JSON already; with what is taken of a log, where one describes the communicator."""
    says, written = click.get_current_context().meta.get(LOG), to_json(value)
    if says is not None:
        log = {"log": to_json(says)}
        written = [each | log for each in written] if isinstance(written, list) else written | log
    click.echo(with_options(json.dumps(written, indent=1)))


def json_wanted() -> bool:
    """Whether the answer is to be JSON: the command has ``--json``, and it is given."""
    return bool(click.get_current_context().meta.get(JSON))


def shown_as_json(answer: Any) -> bool:
    """Whether the answer is to be JSON, which it is printed as then."""
    if json_wanted():
        print_json(answer)
    return json_wanted()


def show(answer: Any, printed: Callable[..., None], *more: Any) -> None:
    """An answer: its record as JSON, or as ``printed`` prints it for people, with what else that takes."""
    if not shown_as_json(answer):
        printed(answer, *more)


def print_table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], spare: Sequence[str] = ()
) -> None:
    """A plain aligned table; columns whose cells are all numbers are set to the right.

    It is no wider than :func:`width_to_fit`: ``spare`` columns are left out first. Notes of cells stand below it, once
    each. Not by a library: a table as plain as this would wait 20 ms for one that draws all kinds.
    """
    if title:
        click.echo(folded(title))
    numbers: dict[str, int] = {}  # of notes
    body = [[_shown(cell, numbers) for cell in row] for row in rows]
    table = laid_out(columns, body, width_to_fit(), spare)
    click.echo(table)
    for text, number in numbers.items():
        if f"[{number}]" in table:  # else its column was left out for the width
            click.echo(folded(f" [{number}] {text}"))


@dataclass(frozen=True, slots=True)
class NotedCell:
    """A cell of a table, and a note that goes below the table: ``41.2 to 55.1 [1]``."""

    text: str
    note: str

    def __str__(self) -> str:
        return f"{self.text}; {self.note}"


def _shown(cell: object, numbers: dict[str, int]) -> str:
    if isinstance(cell, NotedCell):
        return f"{cell.text} [{numbers.setdefault(cell.note, len(numbers) + 1)}]"
    return with_options(str(cell))


def print_csv(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Comma-separated values below their names; None is an empty cell."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    click.echo(text.getvalue(), nl=False)


def span(values: Sequence[int]) -> str:
    """``4``, or ``4-16`` where they differ."""
    return f"{min(values)}-{max(values)}" if min(values) < max(values) else str(values[0])


def number(value: float | None, digits: int) -> str:
    """A number with so many digits after the point; ``-`` where there is none, ``never`` for what NCCL never takes."""
    if value is not None and value >= NEVER_US:
        return "never"
    return "-" if value is None else f"{value:.{digits}f}"


def command_line() -> str:
    """This very call."""
    return shlex.join(["nccl-tuner", *sys.argv[1:]])
