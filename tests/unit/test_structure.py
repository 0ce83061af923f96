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


def nodes(module: Path) -> Iterator[ast.AST]:
    return ast.walk(ast.parse(module.read_text("utf-8")))


def functions(module: Path) -> Iterator[Function]:
    return (node for node in nodes(module) if isinstance(node, Function))


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
    for node in nodes(module):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.arg(arg=name) | ast.Attribute(attr=name) | ast.Name(id=name):
                found.add(name)
    return found


def test_files_are_short() -> None:
    lines = {str(file.relative_to(ROOT)): len(file.read_text("utf-8").splitlines()) for file in [*PYTHON, *C]}
    assert len(lines) > 400
    long = [f"{file}: {count} lines" for file, count in lines.items() if count > MOST_LINES]
    assert not long, "\n".join(long)


@pytest.mark.slow
def test_no_function_has_many_parameters() -> None:
    many = [
        f"{module.relative_to(ROOT)}:{function.lineno} {function.name} has {len(parameters(function))}"
        for module in PYTHON
        for function in functions(module)
        if len(parameters(function)) > MOST_PARAMETERS and not is_click_callback(function)
    ]
    assert not many, "\n".join(many)


def test_parameters_are_counted_with_keyword_only_ones_and_without_self() -> None:
    (function,) = ast.parse("def f(self, a, /, b, *c, d=1, **e): ...").body
    assert isinstance(function, ast.FunctionDef)
    assert parameters(function) == ["a", "b", "d", "c", "e"]


def words(identifier: str) -> set[str]:
    return {part.lower() for part in (identifier, *re.split(r"_|(?<=[a-z])(?=[A-Z])", identifier))}


@pytest.mark.slow
def test_words_that_are_gone_stay_away() -> None:
    used = {module.relative_to(ROOT): set().union(*map(words, identifiers(module))) & GONE for module in PYTHON}
    gone = [f"{module}: {', '.join(sorted(those))}" for module, those in used.items() if those]
    assert not gone, "\n".join(gone)


def test_words_are_seen_in_every_spelling_of_an_identifier() -> None:
    assert words("asWatched_layer") >= {"as", "watched", "layer"}
    assert "leaves_for" in words("leaves_for")
    assert {"identifiers", "MOST_LINES", "rglob", "module"} <= identifiers(Path(__file__))


def test_imports_go_one_way() -> None:
    command = shutil.which("lint-imports", path=str(Path(sys.executable).parent))
    if command is None:
        pytest.skip("import-linter is not installed")
    done = subprocess.run([command, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def imported(module: Path) -> Iterator[str]:
    for node in nodes(module):
        if isinstance(node, ast.ImportFrom):
            yield node.module or ""
        if isinstance(node, ast.ImportFrom | ast.Import):
            yield from (each.name for each in node.names)


def test_no_test_imports_another() -> None:
    modules = (ROOT / "tests").rglob("*.py")
    imports = [
        f"{module.relative_to(ROOT)}: {name}"
        for module in modules
        for name in imported(module)
        if any(part.startswith("test_") for part in name.split("."))
    ]
    assert not imports, "\n".join(imports)


def test_a_commits_checks_have_the_versions_of_make_lint() -> None:
    """A formatter of another version formats otherwise."""
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]["lint"]
    pinned = dict(each.split("==") for each in extra if "==" in each)
    hooks = (ROOT / ".pre-commit-config.yaml").read_text("utf-8")
    revisions = dict(
        re.findall(r"repo: https://github\.com/\S+/(?:mirrors-)?([a-z-]+?)(?:-pre-commit)?\n +rev: v(\S+)", hooks)
    )
    assert revisions == {name: pinned[name] for name in ("ruff", "clang-format")}
