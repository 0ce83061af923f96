"""Shows answers as tables: each column is declared once; text, CSV, Markdown and data frames are made from it.

A record says how a field is shown with :func:`column` in the field's metadata, and how a property is shown with
:func:`shown`; :func:`columns_of` finds these by name. A column that no record describes is made as a :class:`Column`. A
row of a table is one record, or several that are shown together, such as neighbouring ranges with one pick.
"""

import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from operator import attrgetter, itemgetter
from typing import Any, TypeAlias, TypeVar

from tuner.base.dataclass import dataclass
from tuner.base.expressions import expression
from tuner.base.numerics import NEVER_US
from tuner.base.printable import csv_cell

Row: TypeAlias = Any  # a record, or a sequence of records that stand in one row
FIRST, LAST = itemgetter(0), itemgetter(-1)  # the first and the last record of a row of several records

GAPS = (3, 2, 1)  # spaces between columns; the first number that fits is used
LEAST = 8  # a wrapped column is at least this wide
LEFT_OUT = "left out for the width"  # columns; JSON has them
LEAST_COLUMNS = 2  # a table keeps at least this many columns
PROSE = 40  # if a table leaves less width than this for a last column of sentences, these go below the rows
INDENT = "     "
# No line ends between a number and its unit
OF_A_NUMBER = expression(r"(?<=\d) (?=(?:[KMGTPE]i?)?B\b|us\b|ms\b|GB/s|%)")


def number(value: float | None, digits: int) -> str:
    """A number as text with ``digits`` digits after the point; ``-`` for None, and ``never`` for what NCCL never picks
    by itself."""
    if value is not None and value >= NEVER_US:
        return "never"
    return "-" if value is None else f"{value:.{digits}f}"


def decimals(digits: int) -> Callable[[float | None], str]:
    """A function that shows a number with ``digits`` digits after the point."""
    return lambda value: number(value, digits)


def percent(value: float | None) -> str:
    """A percentage as text: ``4.2 %``; ``-`` for None."""
    return "-" if value is None else f"{value:.1f} %"


def as_percent(form: str) -> Callable[[float | None], str]:
    """A function that shows a share of 1 as a percentage: the format ``.1f`` gives ``4.2 %``, ``+.0f`` gives ``+4 %``;
    None gives ``-``.
    """
    return lambda value: "-" if value is None else f"{100 * value:{form}} %"


def in_percent(share: float | None) -> str:
    """A share of 1 as a percentage: ``4.2 %``; ``-`` for None."""
    return as_percent(".1f")(share)


def as_ms(form: str) -> Callable[[float | None], str]:
    """A function that shows microseconds as milliseconds, in a format such as ``.3f``; ``-`` for None."""
    return lambda value: "-" if value is None else f"{value / 1000:{form}}"


def span(values: Sequence[int]) -> str:
    """The range of the values as text: ``4-16``, or ``4`` if they are equal."""
    return f"{min(values)}-{max(values)}" if min(values) < max(values) else str(values[0])


def of_all(text: Callable[[Sequence[Any]], object], name: str) -> Callable[[Row], Any]:
    """A function that makes text for a row that is several records. It calls ``text`` with a list: the field ``name``
    of each of the records.
    """
    return lambda records: text([getattr(each, name) for each in records])


def plain(value: object) -> object:
    """The value itself; ``-`` for None."""
    return "-" if value is None else value


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    ``value`` returns the row's value; ``text`` shows it to people, below ``title``. On a narrow terminal, columns whose
    ``spare`` is not 0 are left out, those with the lowest number first. Programs read the column as ``key``, which is
    empty for columns that are only for people.
    """

    title: str
    value: Callable[[Row], Any]
    text: Callable[[Any], object] = plain
    spare: int = 0
    key: str = ""


_METADATA = "column"


def column(
    title: str = "",
    *,
    digits: int | None = None,
    text: Callable[[Any], object] | None = None,
    spare: int = 0,
    key: str | None = None,
) -> Mapping[str, Any]:
    """A dataclass field's ``metadata`` that says how its column is shown; the arguments are as in :class:`Column`.

    With ``digits``, ``text`` shows a number with that many digits after the point; ``key`` is the field's name by
    default.
    """
    text = text or (plain if digits is None else decimals(digits))
    return {_METADATA: {"title": title, "text": text, "spare": spare, "key": key}}


F = TypeVar("F", bound=Callable[..., Any])


def shown(title: str = "", **said: Any) -> Callable[[F], F]:
    """Declares how a property is shown, like :func:`column` for a field; to be written between ``@property`` and the
    function."""

    def decorated(function: F) -> F:
        vars(function).update(column(title, **said))
        return function

    return decorated


def columns_of(kind: Any, *names: str, of: str | Callable[[Row], Any] = "") -> tuple[Column, ...]:
    """The columns of the named fields and properties of a record.

    ``of`` says where a row has the record: in the field of this name, or where a function of the row, such as
    :data:`FIRST`, finds it. If ``of`` is empty, the row itself is the record. LookupError for a name without
    :func:`column` or :func:`shown`. If no names are given, all fields with :func:`column` become columns.
    """
    names = names or tuple(each.name for each in fields(kind) if _METADATA in each.metadata)
    inside = attrgetter(of) if isinstance(of, str) and of else of or (lambda row: row)
    assert callable(inside)
    return tuple(_column(kind, name, inside) for name in names)


def _column(kind: Any, name: str, inside: Callable[[Row], Any]) -> Column:
    said = next((each.metadata for each in fields(kind) if each.name == name), None) if is_dataclass(kind) else None
    said = vars(getattr(kind, name).fget) if said is None and isinstance(getattr(kind, name, None), property) else said
    if said is None or _METADATA not in said:
        raise LookupError(f"{kind.__name__}.{name} does not say how it is shown")
    form = dict(said[_METADATA])

    def value(row: Row) -> Any:
        record = inside(row)
        found = None if record is None else getattr(record, name)
        return found.name if isinstance(found, Enum) else found

    key = form.pop("key")
    return Column(value=value, key=name if key is None else key, **form)


def cells(columns: Sequence[Column], rows: Iterable[Row]) -> list[list[object]]:
    """The texts that people read, for each row."""
    return [[each.text(each.value(row)) for each in columns] for row in rows]


def spare(columns: Iterable[Column]) -> list[str]:
    """The titles of the columns that may be left out, in the order in which they are left out."""
    return [each.title for each in sorted(columns, key=lambda each: each.spare) if each.spare]


def to_csv(columns: Sequence[Column], rows: Iterable[Row]) -> str:
    """The columns with a key as comma-separated values, with the keys as the header; None is an empty cell."""
    keyed = [each for each in columns if each.key]
    return csv_lines([each.key for each in keyed], ([each.value(row) for each in keyed] for row in rows))


def csv_lines(names: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Comma-separated values with their names as the header; None is an empty cell."""
    import csv  # most answers are not printed as CSV
    import io

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(csv_cell, names))
    writer.writerows(map(csv_cell, row) for row in rows)
    return text.getvalue()


@dataclass(frozen=True, slots=True)
class NotedCell:
    """The text of a cell and a note that goes below the table: ``41.2 to 55.1 [1]``."""

    text: str
    note: str

    def __str__(self) -> str:
        return f"{self.text}; {self.note}"


def numbered(rows: Iterable[Sequence[object]]) -> tuple[list[list[str]], dict[str, int]]:
    """The cells as text, and the number of each note. The text of a cell with a note ends in the note's number, such as
    ``[1]``.
    """
    notes: dict[str, int] = {}
    return [[_cell(cell, notes) for cell in row] for row in rows], notes


def _cell(cell: object, notes: dict[str, int]) -> str:
    if isinstance(cell, NotedCell):
        return f"{cell.text} [{notes.setdefault(cell.note, len(notes) + 1)}]"
    return str(cell)


def laid_out(columns: Sequence[str], body: Sequence[Sequence[str]], width: int, spare: Sequence[str] = ()) -> str:
    """The lines of a plain aligned table; columns whose cells are all numbers are set to the right.

    If a table is wider than ``width``, three things are tried. First, the columns named in ``spare`` are left out, in
    that order. Then cells are wrapped, and a last column of sentences is moved below the rows. Then the last columns
    are left out. If not even the first two columns fit, each row becomes a list.
    """
    whole = _Columns.of(columns, body)
    if whole.total <= width:
        return _table(columns, body, whole)
    left = width - whole.total + whole.widths[-1]  # the width that is left for the last column
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
    """The columns at the width of their cells, with a smaller gap, or ``wrapped``; None if nothing fits."""
    whole = _Columns.of(columns, body)
    if whole.total <= width:
        return whole
    if not wrapped:
        words = [max(name.split(), key=len, default="") for name in columns]  # only column names may take several lines
        closer = (_Columns.of(words, body).closer(columns, width, gap) for gap in GAPS)
        return next(filter(None, closer), None)
    return next(filter(None, (whole.fitted([columns, *body], width, gap) for gap in GAPS)), None)


@dataclass(frozen=True, slots=True)
class _Columns:
    """Columns as they are laid out: their widths, whether they are numbers, and the gap between them."""

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
        """The columns, narrowed step by step until they fit into ``width``; each step narrows the widest column. None
        if a column would become too narrow for one of its words.
        """
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
        """The columns with ``gap`` spaces between them, widened for longer titles if there is room. None if the columns
        do not fit into ``width``.
        """
        widths, left = list(self.widths), width - 1 - sum(self.widths) - gap * (len(self.widths) - 1)
        for at, name in enumerate(columns):
            more = max(0, min(left, len(name) - widths[at]))
            widths[at], left = widths[at] + more, left - more
        return None if left < 0 else _Columns(tuple(widths), self.to_the_right, gap)

    def lines(self, cells: Sequence[str]) -> list[str]:
        """The lines of one row, which is as high as its highest cell."""
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
    """A table whose last column, called ``name``, is written below each row; ``above``: the lines of the header and the
    rows."""
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
