"""Traces the model: if a trace is on, the loops that apply rules report the effect of each rule."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.base.dataclass import dataclass
from tuner.base.numerics import shortest
from tuner.base.registry import source_of


@dataclass(frozen=True, slots=True)
class TraceStep:
    """The effect of one rule on a quantity, for one size.

    ``name`` is the rule's name, ``says`` the first line of its docstring, ``source`` the place of the rule in the
    release.
    """

    quantity: str
    name: str
    before: float | int
    after: float | int
    unit: str
    says: str
    source: str

    @property
    def changes(self) -> bool:
        """Whether the rule changed the quantity."""
        return self.before != self.after


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """The effect of one rule for several sizes; ``before`` and ``after`` are numbers in ``unit``, [size], as computed.
    One object may stand for several releases that have the same ``rule`` and compute the same numbers.
    """

    quantity: str
    rule: Callable[..., Any]
    before: NDArray[Any]
    after: NDArray[Any]
    unit: str

    @property
    def name(self) -> str:
        """Name of the rule."""
        return self.rule.__name__

    @property
    def says(self) -> str:
        """The first line of the rule's docstring."""
        return _says(self.rule)

    def source(self, nccl: str) -> str:
        """The place of the rule in a release."""
        return _source_text(self.rule, nccl)


Listener = Callable[[str, str, Callable[..., Any], Any, Any], None]
_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def tracing(nccl: str) -> Iterator[list[TraceStep]]:
    """Records the steps that are computed for a release inside the block, in order. Each computation inside the block
    has to be of one size.
    """
    seen: list[TraceStep] = []

    def listen(quantity: str, unit: str, rule: Callable[..., Any], before: Any, after: Any) -> None:
        source = _source_text(rule, nccl)
        seen.append(TraceStep(quantity, rule.__name__, _number(before), _number(after), unit, _says(rule), source))

    with _reporting_to(listen):
        yield seen


@contextmanager
def tracing_sizes(count: int) -> Iterator[list[Steps]]:
    """Records the steps inside the block that change the quantity at one size or more, in computations of ``count``
    sizes."""
    seen: list[Steps] = []

    def listen(quantity: str, unit: str, rule: Callable[..., Any], before: Any, after: Any) -> None:
        changed = before != after
        if not (changed.any() if isinstance(changed, np.ndarray) else changed):
            return
        first, then = _of_each(before, count), _of_each(after, count)
        seen.append(Steps(quantity, rule, first, then, unit))

    with _reporting_to(listen):
        yield seen


def _of_each(value: Any, count: int) -> NDArray[Any]:
    """A copy of numbers, [count]; a single number is repeated."""
    numbers = np.asarray(value)
    if numbers.shape == (count,):
        return numbers.copy()
    each = np.empty(count, numbers.dtype)
    each[:] = numbers
    return each


@contextmanager
def _reporting_to(listen: Listener) -> Iterator[None]:
    token = _listener.set(listen)
    try:
        yield
    finally:
        _listener.reset(token)


def listening() -> bool:
    """Whether a trace is on. While no trace is on, loops over rules need not report their steps."""
    return _listener.get() is not None


def kept(values: NDArray[Any]) -> NDArray[Any]:
    """The numbers [size] to report if ``values`` are changed in place: a copy if a trace is on, else ``values``
    itself.
    """
    return values if _listener.get() is None else values.copy()


def step(quantity: str, unit: str, rule: Callable[..., Any], before: Any, after: Any) -> None:
    """Reports that ``rule`` turned ``before`` into ``after``; each is a number or an array with one element per
    size.
    """
    listen = _listener.get()
    if listen is not None:
        listen(quantity, unit, rule, before, after)


def _number(value: Any) -> float | int:
    number = np.asarray(value).reshape(-1)
    if number.size != 1:
        raise ValueError(f"a traced computation has one size, not {number.size}")
    if number.dtype != np.float32:
        return int(number[0])
    return shortest(number[0]) if np.isfinite(number[0]) else float(number[0])


@cache
def _source_text(rule: Callable[..., Any], nccl: str) -> str:
    return source_of(rule, nccl).text(nccl)


@cache
def _says(rule: Callable[..., Any]) -> str:
    text = (rule.__doc__ or "").partition("Source:")[0].strip()
    return re.sub(r":func:`(\w+)`|``", r"\1", text.partition("\n")[0]).strip()
