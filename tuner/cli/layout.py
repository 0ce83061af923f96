"""Tables within the width of a terminal: cells are wrapped at words, and columns are left out, which a line says."""

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Sequence

from tuner.base.dataclass import dataclass

GAPS = (3, 2, 1)  # between columns, the first that fits
LEAST = 8  # a wrapped column is no narrower
LEFT_OUT = "left out for the width"  # columns; --json has them
LEAST_COLUMNS = 2  # that a table is left with
PROSE = 40  # a last column with longer cells goes below its rows where it has less than that beside them
INDENT = "     "
OF_A_NUMBER = re.compile(r"(?<=\d) (?=(?:[KMGTPE]i?)?B\b|us\b|ms\b|GB/s|%)")  # no line ends between it and its unit


def width_to_fit() -> int | None:
    """What COLUMNS says, else the terminal's width; None where there is no terminal, as in a pipe or a file."""
    said = os.environ.get("COLUMNS", "")
    if said.isdecimal() and int(said) > 0:
        return int(said)
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def laid_out(
    columns: Sequence[str], body: Sequence[Sequence[str]], width: int | None, spare: Sequence[str] = ()
) -> str:
    """The lines of a plain aligned table; columns whose cells are all numbers are set to the right.

    Of one that is wider than ``width`` the cells are wrapped, and a last column of sentences goes below its rows; where
    that does not do, columns are left out, first those called as in ``spare``, then the last ones. Where not even the
    first two fit, each row is a list.
    """
    whole = _Columns.of(columns, body)
    if width is None or whole.total <= width:
        return _table(columns, body, whole)
    left = width - whole.total + whole.widths[-1]  # for the last column
    if whole.widths[-1] > PROSE > left and len(columns) > 1:
        return _with_sentences(columns, body, width)
    kept = list(range(len(columns)))
    while True:
        shown, rows = [columns[at] for at in kept], [[cells[at] for at in kept] for cells in body]
        fitted = _fitting(shown, rows, width)
        if fitted is not None:
            gone = [name for at, name in enumerate(columns) if at not in kept]
            return _table(shown, rows, fitted) + (_note(gone, width) if gone else "")
        if len(kept) == LEAST_COLUMNS:
            return _lists(columns, body, width)
        called = next((name for name in spare if name in shown), shown[-1])
        kept.pop(len(shown) - 1 - shown[::-1].index(called))


def _note(gone: Sequence[str], width: int) -> str:
    return textwrap.fill(f"{LEFT_OUT}: {', '.join(gone)}", width, initial_indent=" ", subsequent_indent=" ") + "\n"


def _fitting(columns: Sequence[str], body: Sequence[Sequence[str]], width: int) -> "_Columns | None":
    """The columns as wide as their cells, or with cells wrapped; None where neither fits."""
    whole = _Columns.of(columns, body)
    if whole.total <= width:
        return whole
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


def _with_sentences(columns: Sequence[str], body: Sequence[Sequence[str]], width: int) -> str:
    """The last column's cells below their rows."""
    above = _Columns.of(columns[:-1], [cells[:-1] for cells in body])
    if above.total > width:
        return _lists(columns, body, width)
    lines = ["", *above.lines(columns[:-1]), f"{INDENT}{columns[-1]}", " " + "─" * (width - 1)]
    for *cells, sentence in body:
        lines += [*above.lines(cells), *(f"{INDENT}{part}" for part in _wrapped(sentence, width - len(INDENT)))]
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
