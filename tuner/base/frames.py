"""Makes data frames of pandas or polars, if installed, from records of arrays: each array becomes a column."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from enum import IntEnum
from html import escape
from types import ModuleType
from typing import Any, TypeAlias, TypeVar, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput
from tuner.base.names import Algorithm, Collective, Protocol
from tuner.base.records import to_json


@dataclass(frozen=True, slots=True, eq=False)
class NamedColumn:
    """A column of NCCL's names, stored as their numbers [row]; a number below 0 means no name."""

    words: type[IntEnum]
    numbers: NDArray[Any]


Column: TypeAlias = NDArray[Any] | NamedColumn | Sequence[Any]
WORDS: Mapping[str, type[IntEnum]] = {"collective": Collective, "algorithm": Algorithm, "protocol": Protocol}
R = TypeVar("R")
MOST_ROWS_SHOWN = 20  # rows that a notebook shows


def arrays_of(record: object, *names: str) -> dict[str, Column]:
    """The named fields and properties of a record as columns: arrays of one dimension. The names contain units such as
    us or bytes.
    """
    return {name: _words_or(name, np.ravel(getattr(record, name))) for name in names}


def of_records(records: Sequence[Any], **dtypes: Any) -> dict[str, Column]:
    """One column for each field in ``dtypes``, with one element per record. A column is an array of the given type, in
    which None becomes NaN, or, for the type ``str``, a list of texts.

    Names contain units such as us or bytes.
    """
    values = {name: [getattr(each, name) for each in records] for name in dtypes}
    return {
        name: list(map(str, values[name])) if kind is str else _words_or(name, np.array(values[name], kind))
        for name, kind in dtypes.items()
    }


def _words_or(name: str, numbers: NDArray[Any]) -> Column:
    return NamedColumn(WORDS[name], numbers) if name in WORDS else numbers


class Framed(ABC):
    """A record that can also be used as a data frame. Units are in the columns' names; NCCL's names are categories."""

    __slots__ = ()

    def __repr__(self) -> str:
        columns = self.columns()
        first = next(iter(columns.values()), ())
        rows = len(first.numbers if isinstance(first, NamedColumn) else first)
        return f"<{type(self).__name__}: {rows} rows of {', '.join(columns)}>"

    def _repr_html_(self) -> str:
        """A table of the first rows, for notebooks."""
        rows = self.rows()
        more = f"and {len(rows) - MOST_ROWS_SHOWN:,} more rows" if len(rows) > MOST_ROWS_SHOWN else ""
        return html_table(type(self).__name__, [*self.columns()], rows[:MOST_ROWS_SHOWN], more)

    @abstractmethod
    def columns(self) -> dict[str, Column]:
        """The columns by name: arrays of one dimension and the same length, with units such as us or bytes in their
        names.
        """

    def rows(self) -> list[tuple[Any, ...]]:
        """The rows of :meth:`columns` as Python values, with NCCL's names as text; a missing value is None."""
        return list(zip(*(_values(column) for column in self.columns().values()), strict=True))

    def to_pandas(self) -> Any:
        """A ``pandas.DataFrame`` of :meth:`columns`, with NCCL's names as ``Categorical``. BadInput without pandas."""
        try:
            import pandas
        except ImportError:
            raise _missing("pandas") from None
        return pandas.DataFrame({name: _for_pandas(pandas, column) for name, column in self.columns().items()})

    def to_polars(self) -> Any:
        """A ``polars.DataFrame`` of :meth:`columns`, with NCCL's names as ``Enum``. BadInput without polars."""
        try:
            import polars
        except ImportError:
            raise _missing("polars") from None
        return polars.DataFrame({name: _for_polars(polars, column) for name, column in self.columns().items()})


@dataclass(frozen=True, slots=True, repr=False)
class Rows(Framed, Sequence[R]):
    """Records of one kind that can also be used as a data frame: a row per record, a column per field.

    A record inside a record becomes columns for its fields, prefixed with its own name: ``before_algorithm``.
    """

    records: tuple[R, ...]

    def __len__(self) -> int:
        return len(self.records)

    @overload
    def __getitem__(self, at: int) -> R: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[R, ...]: ...
    def __getitem__(self, at: int | slice) -> R | tuple[R, ...]:
        return self.records[at]

    def __repr__(self) -> str:
        kind = f" of {type(self.records[0]).__name__}" if self.records else ""
        return f"<{type(self).__name__}: {len(self.records)}{kind}>"

    def columns(self) -> dict[str, Column]:
        """The fields of the records as columns with one element per record: numbers or texts; None if a record lacks
        the field.
        """
        rows = [_flat(to_json(record)) for record in self.records]
        names = dict.fromkeys(name for row in rows for name in row)
        return {name: [row.get(name) for row in rows] for name in names}


def html_table(caption: str, columns: Sequence[str], rows: Sequence[Sequence[object]], below: str = "") -> str:
    """A table in HTML, as notebooks show it, with ``caption`` above and ``below`` under it."""
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join(f"<tr>{''.join(map(_html_cell, row))}</tr>" for row in rows)
    caption = f'<caption style="caption-side: top">{escape(caption)}</caption>' if caption else ""
    after = f"<p>{escape(below)}</p>" if below else ""
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{after}"


def _html_cell(value: object) -> str:
    if value is None:
        return "<td></td>"
    if isinstance(value, float):
        return f'<td style="text-align: right">{value:,.2f}</td>'
    return f'<td style="text-align: {"right" if isinstance(value, int) else "left"}">{escape(str(value))}</td>'


def _flat(record: Mapping[str, object], before: str = "") -> dict[str, object]:
    flat: dict[str, object] = {}
    for name, value in record.items():
        flat |= _flat(value, f"{before}{name}_") if isinstance(value, Mapping) else {f"{before}{name}": value}
    return flat


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Costs(Framed):
    """A cost table with its sizes: ``bytes`` [size], ``time_us`` float32 [size][algorithm][protocol].

    As a data frame it has a row for each combination that NCCL does not ignore: bytes, algorithm, protocol, time_us.
    """

    bytes: ArrayLike
    time_us: NDArray[np.float32]

    def columns(self) -> dict[str, Column]:
        """The columns bytes, algorithm, protocol and time_us. Rows are in the order of the sizes, and for each size in
        NCCL's order of algorithms and protocols. BadInput if the shape of the cost table does not match the sizes.
        """
        sizes, shape = np.atleast_1d(np.asarray(self.bytes)), np.shape(self.time_us)
        if shape != (len(sizes), len(Algorithm), len(Protocol)):
            raise BadInput(f"a cost table has shape {shape}, not [{len(sizes)} sizes][algorithm][protocol]")
        size, algorithm, protocol = np.nonzero(self.time_us >= 0)
        return {
            "bytes": sizes[size],
            "algorithm": NamedColumn(Algorithm, algorithm),
            "protocol": NamedColumn(Protocol, protocol),
            "time_us": self.time_us[size, algorithm, protocol],
        }


def _values(column: Column) -> list[Any]:
    if isinstance(column, NamedColumn):
        names = [word.name for word in column.words]
        return [names[number] if number >= 0 else None for number in column.numbers.tolist()]
    values = column.tolist() if isinstance(column, np.ndarray) else list(column)
    return [None if isinstance(value, float) and np.isnan(value) else value for value in values]


def _missing(package: str) -> BadInput:
    return BadInput(f"{package} is not installed: pip install {package}")


def _for_pandas(pandas: ModuleType, column: Column) -> Any:
    if isinstance(column, NamedColumn):
        return pandas.Categorical.from_codes(np.maximum(column.numbers, -1), [word.name for word in column.words])
    return column


def _for_polars(polars: ModuleType, column: Column) -> Any:
    if isinstance(column, NamedColumn):
        names = [word.name for word in column.words]
        return polars.Series([names[n] if n >= 0 else None for n in column.numbers], dtype=polars.Enum(names))
    return column
