"""Every public name that the documentation speaks of says what it is: shapes and units of arrays, errors it raises."""

import ast
import doctest
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from tuner.base import errors

MODULES = [
    "tuner.api",
    "tuner.emulator.selection",
    "tuner.analysis.choices",
    "tuner.analysis.explain",
    "tuner.scenario",
    "tuner.base.frames",
    "tuner.emulator.model",
    "tuner.base.names",
    "tuner.release",
    "tuner.machine.catalogue",
    "tuner.emulator.fitted_constants",
    "tuner.emulator.group",
    "tuner.answers.picks",
    "tuner.oracle.api",
    "tuner.oracle.facts",
    "tuner.oracle.groups",
    "tuner.oracle.library",
    "tuner.plugin.dry_run",
    "tuner.plugin.table.parse",
    "tuner.plugin.table.records",
    "tuner.plugin.table.text",
    "tuner.emulator.ranges",
    "tuner.analysis.diff",
    "tuner.measure.backend",
    "tuner.measure.verify",
    "tuner.measure.readers.any_file",
    "tuner.measure.records.results",
    "tuner.measure.records.samples",
    "tuner.measure.statistics",
    "tuner.costmodels.bandwidth",
]
ARRAYS = re.compile(r"NDArray|FloatArray|SizeArray|IntArray|ArrayLike")
SHAPE = re.compile(r"\[\w+\]|an element a|a row a|of each|for each|one dimension|one by one|[Aa] size\b|sizes")
UNIT = re.compile(r"\b(us|GB/s|1e9 B/s|bytes|nBytes|numbers?|words)\b|_(us|gbs|bytes)\b")
ERRORS = {name for name, value in vars(errors).items() if inspect.isclass(value) and issubclass(value, Exception)}


def public(module: ModuleType) -> Iterator[tuple[str, Any, str]]:
    """Names, objects, and the docstrings that speak for them: their own, and for a method that of its class, too."""
    for name, value in vars(module).items():
        if name.startswith("_") or getattr(value, "__module__", None) != module.__name__:
            continue
        if inspect.isclass(value):
            yield name, value, inspect.getdoc(value) or ""
            for part, method in vars(value).items():
                function = getattr(method, "fget", None) or getattr(method, "func", None) or method
                function = getattr(function, "__func__", function)
                if not part.startswith("_") and inspect.isfunction(function):
                    yield f"{name}.{part}", function, f"{inspect.getdoc(getattr(value, part)) or ''}\n\n{value.__doc__}"
        elif inspect.isfunction(inspect.unwrap(value)):
            yield name, inspect.unwrap(value), inspect.getdoc(value) or ""


PUBLIC = {
    f"{module}.{name}": (value, said)
    for module in MODULES
    for name, value, said in public(importlib.import_module(module))
}
ALL = pytest.mark.parametrize(("value", "said"), PUBLIC.values(), ids=PUBLIC.keys())


@ALL
def test_it_says_what_it_is(value: Any, said: str) -> None:
    first = said.partition("\n")[0]
    assert first, "no docstring"
    assert not first.startswith(f"{value.__name__}("), "that of a dataclass's making"
    assert len(first) <= 120


@ALL
def test_arrays_have_shapes_and_units(value: Any, said: str) -> None:
    kinds = value.__annotations__.values()
    if any(ARRAYS.search(kind if isinstance(kind, str) else str(kind)) for kind in kinds):
        assert SHAPE.search(said)
        assert UNIT.search(said)


@ALL
def test_errors_that_it_raises_are_named(value: Any, said: str) -> None:
    if not inspect.isclass(value):
        tree = ast.parse(textwrap.dedent(inspect.getsource(value)))
        raised = {
            node.exc.func.id
            for node in ast.walk(tree)
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and isinstance(node.exc.func, ast.Name)
        }
        assert [name for name in raised & ERRORS if name not in said] == []


def test_examples_are_true() -> None:
    found = doctest.testmod(importlib.import_module("tuner.api"))
    assert found.attempted > 0
    assert found.failed == 0
