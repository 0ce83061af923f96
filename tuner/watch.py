"""Watching the model compute: the loops that apply rules tell each step to whoever asked, and to nobody otherwise."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from inspect import getmodule
from typing import Any

import numpy as np

from tuner.cfloat import shortest


@dataclass(frozen=True, slots=True)
class Step:
    """A rule's effect on a quantity, for one size.

    ``name`` is the rule's; ``says`` the first line of its docstring, which may be empty; ``source`` where NCCL has it.
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
        return self.before != self.after


_steps: ContextVar[list[Step] | None] = ContextVar("steps", default=None)


@contextmanager
def watching() -> Iterator[list[Step]]:
    """The steps of what is computed inside, in order. Computations there have to be of one size."""
    seen: list[Step] = []
    token = _steps.set(seen)
    try:
        yield seen
    finally:
        _steps.reset(token)


def step(quantity: str, unit: str, rule: Callable[..., Any], before: Any, after: Any) -> None:
    """Tells that ``rule`` made ``after`` of ``before``, each a number or an array of one."""
    seen = _steps.get()
    if seen is not None:
        seen.append(Step(quantity, rule.__name__, _number(before), _number(after), unit, _says(rule), source(rule)))


def _number(value: Any) -> float | int:
    number = np.asarray(value).reshape(-1)
    if number.size != 1:
        raise ValueError(f"a watched computation has one size, not {number.size}")
    if number.dtype != np.float32:
        return int(number[0])
    return shortest(number[0]) if np.isfinite(number[0]) else float(number[0])


def _says(rule: Callable[..., Any]) -> str:
    text = (rule.__doc__ or "").partition("Source:")[0].strip()
    return re.sub(r":func:`(\w+)`|``", r"\1", text.partition("\n")[0]).strip()


def source(rule: Callable[..., Any]) -> str:
    """What follows "Source:" in the rule's docstring, else in its module's."""
    text = "\n\n".join(filter(None, (rule.__doc__, getattr(getmodule(rule), "__doc__", None))))
    after = text.partition("Source:")[2].partition("\n\n")[0]
    return " ".join(after.split()).removesuffix(".")
