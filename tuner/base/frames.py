"""Frames of pandas or polars from records of arrays, where those are installed: a column an array."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tuner.base.errors import BadInput
from tuner.base.names import Algorithm, Protocol


@dataclass(frozen=True, slots=True, eq=False)
class Named:
    """A column of NCCL's words, [row]: their numbers, below 0 where there is none."""

    words: type[IntEnum]
    numbers: NDArray[Any]


Column: TypeAlias = NDArray[Any] | Named | Sequence[str | None]


class Framed(ABC):
    """A record that has the form of a frame, too. Units are in the columns' names, NCCL's words are categories."""

    __slots__ = ()

    @abstractmethod
    def columns(self) -> dict[str, Column]:
        """The columns by name, each of one dimension and all of one length."""

    def to_pandas(self) -> Any:
        """A ``pandas.DataFrame`` of :meth:`columns`, words as ``Categorical``. Errors: BadInput without pandas."""
        try:
            import pandas
        except ImportError:
            raise _missing("pandas") from None
        return pandas.DataFrame({name: _for_pandas(pandas, column) for name, column in self.columns().items()})

    def to_polars(self) -> Any:
        """A ``polars.DataFrame`` of :meth:`columns`, words as ``Enum``. Errors: BadInput without polars."""
        try:
            import polars
        except ImportError:
            raise _missing("polars") from None
        return polars.DataFrame({name: _for_polars(polars, column) for name, column in self.columns().items()})


@dataclass(frozen=True, slots=True, eq=False)
class Costs(Framed):
    """A cost table with its sizes: ``bytes`` [size], ``time_us`` float32 [size][algorithm][protocol].

    As a frame it has a row for each combination that NCCL does not ignore: bytes, algorithm, protocol, time_us.
    """

    bytes: ArrayLike
    time_us: NDArray[np.float32]

    def columns(self) -> dict[str, Column]:
        """bytes, algorithm, protocol, time_us; by size, then in NCCL's order. Errors: BadInput for other shapes."""
        sizes, shape = np.atleast_1d(np.asarray(self.bytes)), np.shape(self.time_us)
        if shape != (len(sizes), len(Algorithm), len(Protocol)):
            raise BadInput(f"a cost table of shape {shape}; valid: [{len(sizes)} sizes][algorithm][protocol]")
        size, algorithm, protocol = np.nonzero(self.time_us >= 0)
        return {
            "bytes": sizes[size],
            "algorithm": Named(Algorithm, algorithm),
            "protocol": Named(Protocol, protocol),
            "time_us": self.time_us[size, algorithm, protocol],
        }


def _missing(package: str) -> BadInput:
    return BadInput(f"no {package} here; 'pip install {package}' installs it")


def _for_pandas(pandas: ModuleType, column: Column) -> Any:
    if isinstance(column, Named):
        return pandas.Categorical.from_codes(np.maximum(column.numbers, -1), [word.name for word in column.words])
    return column


def _for_polars(polars: ModuleType, column: Column) -> Any:
    if isinstance(column, Named):
        names = [word.name for word in column.words]
        return polars.Series([names[n] if n >= 0 else None for n in column.numbers], dtype=polars.Enum(names))
    return column
