"""The form of the project: sizes of files, parameters of functions, floors of imports, words that are gone."""

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = sorted((ROOT / "tuner").rglob("*.py"))
C = sorted((ROOT / "csrc").rglob("*.[ch]"))
MOST_LINES = 400
MOST_PARAMETERS = 5
# What was called so has a word of the field now (CHANGELOG.md); names of file formats and JSON keys are strings.
GONE = {
    "departure",
    "door",
    "endless",
    "layer",
    "leaves",
    "leaves_for",
    "nobody_asks",
    "passing",
    "setup",
    "sixteen_of_somewhat_more_on_one_node",
    "stranger",
    "told",
    "visit",
    "visits",
    "watch",
    "words_are_unset",
}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(module: Path) -> Iterator[Function]:
    tree = ast.parse(module.read_text("utf-8"))
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def parameters(function: Function) -> list[str]:
    """All of them, keyword-only ones too, without ``self`` and ``cls``."""
    given = function.args
    every = [*given.posonlyargs, *given.args, *given.kwonlyargs, *filter(None, (given.vararg, given.kwarg))]
    names = [each.arg for each in every]
    return names[1:] if names[:1] in (["self"], ["cls"]) else names


def is_click_callback(function: Function) -> bool:
    return any(re.search(r"\b(command|option|argument)s?\b", ast.unparse(each)) for each in function.decorator_list)


def identifiers(module: Path) -> set[str]:
    found = {module.stem}
    for node in ast.walk(ast.parse(module.read_text("utf-8"))):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.arg(arg=name) | ast.Attribute(attr=name) | ast.Name(id=name):
                found.add(name)
    return found


@pytest.mark.parametrize("file", [*PYTHON, *C], ids=lambda file: str(file.relative_to(ROOT)))
def test_a_file_is_short(file: Path) -> None:
    assert len(file.read_text("utf-8").splitlines()) <= MOST_LINES


def test_no_function_has_many_parameters() -> None:
    many = [
        f"{module.relative_to(ROOT)}:{function.lineno} {function.name} has {len(parameters(function))}"
        for module in PYTHON
        for function in functions(module)
        if len(parameters(function)) > MOST_PARAMETERS and not is_click_callback(function)
    ]
    assert many == []


def test_parameters_are_counted_with_keyword_only_ones_and_without_self() -> None:
    (function,) = ast.parse("def f(self, a, /, b, *c, d=1, **e): ...").body
    assert isinstance(function, ast.FunctionDef)
    assert parameters(function) == ["a", "b", "d", "c", "e"]


@pytest.mark.parametrize("module", PYTHON, ids=lambda module: str(module.relative_to(ROOT)))
def test_words_that_are_gone_stay_away(module: Path) -> None:
    parts = {name for each in identifiers(module) for name in (each.lower(), *re.split(r"_|(?<=[a-z])(?=[A-Z])", each))}
    assert {part.lower() for part in parts} & GONE == set()


def test_imports_go_one_way() -> None:
    command = shutil.which("lint-imports", path=str(Path(sys.executable).parent))
    if command is None:
        pytest.skip("import-linter is not installed")
    done = subprocess.run([command, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_test_imports_another() -> None:
    for module in (ROOT / "tests").rglob("*.py"):
        for node in ast.walk(ast.parse(module.read_text("utf-8"))):
            imported = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if isinstance(node, ast.ImportFrom | ast.Import):
                imported += [each.name for each in node.names]
            assert not any(part.startswith("test_") for name in imported for part in name.split(".")), module


def test_a_commits_checks_have_the_versions_of_make_lint() -> None:
    """A formatter of another version formats otherwise."""
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]["lint"]
    pinned = dict(each.split("==") for each in extra if "==" in each)
    hooks = (ROOT / ".pre-commit-config.yaml").read_text("utf-8")
    revisions = dict(
        re.findall(r"repo: https://github\.com/\S+/(?:mirrors-)?([a-z-]+?)(?:-pre-commit)?\n +rev: v(\S+)", hooks)
    )
    assert revisions == {name: pinned[name] for name in ("ruff", "clang-format")}
