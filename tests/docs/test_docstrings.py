"""Every public name of the library says what it is: shapes and units of arrays, errors it raises."""

import ast
import doctest
import importlib
import inspect
import pkgutil
import re
import textwrap
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

import tuner
from tuner.base import errors

LEFT_OUT = ("tuner.cli.",)  # commands have their help
MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(tuner.__path__, "tuner.")
    if not f"{module.name}.".startswith(LEFT_OUT) and not module.name.rpartition(".")[2].startswith("_")
)
ARRAYS = re.compile(r"ndarray|NDArray|FloatArray|SizeArray|IntArray|ArrayLike")
SHAPE = re.compile(r"\[\w+\]|an element a|a row a|of each|for each|one dimension|one by one|[Aa] size\b|sizes")
UNIT = re.compile(r"\b(us|GB/s|1e9 B/s|bytes|nBytes|numbers?|words)\b|_(us|gbs|bytes)\b")
UNIT_NAME = re.compile(r"^(nbytes|sizes|ranks|counts?)$|_(us|gbs|bytes)$")
MODULE_SHAPES = re.compile(r"^Shapes: .*?(?=\n\n|\Z)", re.MULTILINE | re.DOTALL)
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


def arrays_of(value: Any) -> dict[str, str]:
    """Kinds of the parameters and fields that are arrays by name; what a function returns goes by the function's."""
    kinds = {name: kind if isinstance(kind, str) else str(kind) for name, kind in value.__annotations__.items()}
    return {value.__name__ if name == "return" else name: kind for name, kind in kinds.items() if ARRAYS.search(kind)}


def module_shapes(value: Any) -> str:
    """The paragraph ``Shapes:`` of a module's docstring, which speaks for every array of the module."""
    said = MODULE_SHAPES.search(inspect.getmodule(value).__doc__ or "")
    return said[0] if said else ""


@ALL
def test_it_says_what_it_is(value: Any, said: str) -> None:
    first = said.partition("\n")[0]
    assert first, "no docstring"
    assert not first.startswith(f"{value.__name__}("), "that of a dataclass's making"
    assert len(first) <= 120


@ALL
def test_arrays_have_shapes_and_units(value: Any, said: str) -> None:
    if arrays := arrays_of(value):
        assert SHAPE.search(said + module_shapes(value)), arrays
        without = [name for name, kind in arrays.items() if "bool" not in kind and not UNIT_NAME.search(name)]
        assert not without or UNIT.search(said + module_shapes(value)), without


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


def test_modules_and_arrays_are_there_to_be_looked_at() -> None:
    """What is checked above exists: an annotation printed in another way would pass unseen."""
    packages = {module.split(".")[1] for module in MODULES}
    assert {"api", "scenario", "base", "release", "emulator", "oracle", "measure", "plugin"} <= packages
    assert sum(bool(arrays_of(value)) for value, _ in PUBLIC.values()) > 150


def test_examples_are_true() -> None:
    found = doctest.testmod(importlib.import_module("tuner.api"))
    assert found.attempted > 0
    assert found.failed == 0
