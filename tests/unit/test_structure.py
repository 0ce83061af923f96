"""The form of the project: class names, words of messages and docstrings, floors of imports, words that are gone."""

import ast
import importlib
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import structure

ROOT = Path(__file__).parents[2]
PYTHON = sorted((ROOT / "tuner").rglob("*.py"))
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


def nodes(module: Path) -> Iterator[ast.AST]:
    return ast.walk(ast.parse(module.read_text("utf-8")))


def identifiers(module: Path) -> set[str]:
    found = {module.stem}
    for node in nodes(module):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.arg(arg=name) | ast.Attribute(attr=name) | ast.Name(id=name):
                found.add(name)
    return found


def test_only_known_exceptions_to_the_form_remain() -> None:
    """What is new keeps the form; what is mended leaves structure_exceptions.toml, where no number rises again."""
    listed, found = structure.listed(), structure.found()
    assert sorted(listed) == sorted(found)
    for rule, files in found.items():
        allowed = listed[rule]
        counts = {name: len(files.get(name, [])) for name in {*files, *allowed}}
        more = [f"{name}: {', '.join(files[name])}" for name, n in counts.items() if n > allowed.get(name, 0)]
        fewer = [f"{name}: {n} left" for name, n in counts.items() if n < allowed.get(name, 0)]
        assert not more, f"{structure.RULES[rule]}\n" + "\n".join(more)
        assert not fewer, f"{rule}: python -m tests.scripts.lower_structure_exceptions\n" + "\n".join(fewer)


def test_exceptions_to_the_form_are_seen() -> None:
    source = '''"""Those of a mask."""
class A:
    """Says what ``--env`` is."""
    class A:
        """What it is."""
        def f(self):
            """Whether it is so."""
            return "--env and -x --node, not a--b", f"{1} --machine", "--", ["--nodes"], p.add_argument("--nccl")
'''
    found = structure.found_in({"tuner/emulator/a.py": source, "tuner/cli/a.py": source})
    assert {name: len(places) for name, places in found["classes"].items()} == {"A": 4}
    at = "tuner/emulator/a.py:8: "
    assert found["options"] == {"tuner/emulator": [f"{at}--env", f"{at}--node", f"{at}--machine"]}


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
    assert {"identifiers", "PYTHON", "rglob", "module"} <= identifiers(Path(__file__))


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


SCRIPTS = [file for folder in ("benchmarks", "distribution") for file in sorted((ROOT / folder).glob("*.py"))]


SLOW_TO_LOAD = re.compile(r"^from dataclasses import .*\bdataclass\b|^\w+(: .*)? = re\.compile\(", re.M)


def test_modules_make_nothing_as_they_load_that_can_wait() -> None:
    """Methods of dataclasses and expressions wait for their first use: tuner.base.dataclass, tuner.base.expressions."""
    found = {str(each.relative_to(ROOT)) for each in PYTHON if SLOW_TO_LOAD.search(each.read_text("utf-8"))}
    assert found == {
        "tuner/bench/workflow.py",  # whose Plan is a default, which the linter takes from dataclasses alone
        "tuner/jobs/preflight/collect.py",  # a script that needs the standard library alone
    }


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_what_scripts_import_is_there(script: Path) -> None:
    """They are run by make alone, some of them seldom."""
    for node in nodes(script):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in ("tuner", "nccl_tuner", "tests"):
            module = importlib.import_module(node.module or "")
            absent = [each.name for each in node.names if not hasattr(module, each.name)]
            for name in absent:
                importlib.import_module(f"{node.module}.{name}")


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
