"""Every public name of the library says what it is: shapes and units of arrays, errors it raises."""

import ast
import doctest
import importlib
import inspect
import pkgutil
import re
import textwrap
from collections.abc import Callable, Iterator
from functools import cache
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
SHAPE = re.compile(
    r"\[\w+\]|an element a|a row a|(element|row|value) per |of each|for each|one dimension|one by one|[Aa] size\b|sizes"
)
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


@cache
def public_of(module: str) -> list[tuple[str, Any, str]]:
    return list(public(importlib.import_module(module)))


def package_of(module: str) -> str:
    return ".".join(module.split(".")[:2])


EACH_PACKAGE = pytest.mark.parametrize("package", sorted(set(map(package_of, MODULES))))


def arrays_of(value: Any) -> dict[str, str]:
    """Kinds of the parameters and fields that are arrays by name; what a function returns goes by the function's."""
    kinds = {name: kind if isinstance(kind, str) else str(kind) for name, kind in value.__annotations__.items()}
    return {value.__name__ if name == "return" else name: kind for name, kind in kinds.items() if ARRAYS.search(kind)}


def module_shapes(value: Any) -> str:
    """The paragraph ``Shapes:`` of a module's docstring, which speaks for every array of the module."""
    said = MODULE_SHAPES.search(inspect.getmodule(value).__doc__ or "")
    return said[0] if said else ""


def objects_with_faults(within: str, fault: Callable[[Any, str], str]) -> list[str]:
    """The public objects of a package's modules that have the fault, each with what it is."""
    own = [module for module in MODULES if package_of(module) == within]
    faults = ((f"{module}.{name}", fault(value, said)) for module in own for name, value, said in public_of(module))
    return [f"{name}: {what}" for name, what in faults if what]


def without_first_line(value: Any, said: str) -> str:
    first = said.partition("\n")[0]
    if not first:
        return "no docstring"
    if first.startswith(f"{value.__name__}("):
        return "that of a dataclass's making"
    return "" if len(first) <= 120 else f"a first line of {len(first)} characters"


def without_shapes_and_units(value: Any, said: str) -> str:
    arrays = arrays_of(value)
    if not arrays:
        return ""
    if not SHAPE.search(said + module_shapes(value)):
        return f"no shape of {arrays}"
    unnamed = [name for name, kind in arrays.items() if "bool" not in kind and not UNIT_NAME.search(name)]
    return f"no unit of {unnamed}" if unnamed and not UNIT.search(said + module_shapes(value)) else ""


def without_its_errors(value: Any, said: str) -> str:
    if inspect.isclass(value):
        return ""
    tree = ast.parse(textwrap.dedent(inspect.getsource(value)))
    raised = {
        node.exc.func.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and isinstance(node.exc.func, ast.Name)
    }
    missing = sorted(name for name in raised & ERRORS if name not in said)
    return f"raises {', '.join(missing)}" if missing else ""


@EACH_PACKAGE
def test_each_says_what_it_is(package: str) -> None:
    faults = objects_with_faults(package, without_first_line)
    assert not faults, "\n".join(faults)


@EACH_PACKAGE
def test_arrays_have_shapes_and_units(package: str) -> None:
    faults = objects_with_faults(package, without_shapes_and_units)
    assert not faults, "\n".join(faults)


@pytest.mark.slow
@EACH_PACKAGE
def test_errors_that_are_raised_are_named(package: str) -> None:
    faults = objects_with_faults(package, without_its_errors)
    assert not faults, "\n".join(faults)


def test_modules_and_arrays_are_there_to_be_looked_at() -> None:
    """What is checked above exists: an annotation printed in another way would pass unseen."""
    packages = {module.split(".")[1] for module in MODULES}
    assert {"api", "scenario", "base", "release", "emulator", "oracle", "bench", "plugin"} <= packages
    assert sum(bool(arrays_of(value)) for module in MODULES for _, value, _ in public_of(module)) > 150


def test_examples_are_true() -> None:
    found = doctest.testmod(importlib.import_module("tuner.api"))
    assert found.attempted > 0
    assert found.failed == 0
