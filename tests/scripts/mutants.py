"""Breaks the rules one by one, and says which breaks no test notices: `make mutants`.

A mutant is a copy of the project in which one comparison is a neighbouring one (``<`` is ``<=``), or one whole number
another. Tests that fail kill it; one that survives stands for a test that is missing, or changes nothing that anybody
could see. Sites are drawn at random: another seed finds others.
"""

import ast
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import click

ROOT = Path(__file__).parents[2]
COMPARISONS: dict[type[ast.cmpop], str] = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">"}
TESTS = ("tests/golden/test_golden.py", "tests/golden/test_launches.py", "tests/unit/test_graphs_of_real_machines.py")


@dataclass(frozen=True, slots=True)
class Mutant:
    """A change of one line."""

    file: str
    line: int
    before: str
    after: str


def of_source(file: str, source: str) -> Iterator[Mutant]:
    """All mutants of a module; of its docstrings, slices and annotations none."""
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        place: ast.expr
        if isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARISONS and len(node.ops) == 1:
            first, last, place = node.left.end_col_offset or 0, node.comparators[0].col_offset, node.left
            new = f" {COMPARISONS[type(node.ops[0])]} "
            if node.left.end_lineno != node.comparators[0].lineno:
                continue
        elif isinstance(node, ast.Constant) and type(node.value) is int and node.value > 1:
            first, last, place = node.col_offset, node.end_col_offset or 0, node
            new = str(node.value * 2)
        else:
            continue
        line = (place.end_lineno or place.lineno) - 1
        text = lines[line].encode()
        yield Mutant(file, line + 1, lines[line], (text[:first] + new.encode() + text[last:]).decode())


def survives(mutant: Mutant, folder: Path, tests: tuple[str, ...], timeout_s: float) -> bool:
    """Whether all tests pass with the mutant; one that takes too long is killed."""
    path = folder / mutant.file
    source = path.read_text("utf-8")
    lines = source.splitlines(keepends=True)
    lines[mutant.line - 1] = mutant.after + "\n"
    path.write_text("".join(lines), "utf-8")
    try:
        return not _failures(folder, tests, timeout_s)
    except subprocess.TimeoutExpired:
        return False
    finally:
        path.write_text(source, "utf-8")


def _failures(folder: Path, tests: tuple[str, ...], timeout_s: float) -> str:
    """What pytest says where tests fail; empty where all pass. Errors: TimeoutExpired."""
    command = [sys.executable, "-B", "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=timeout_s, check=False)
    return done.stdout[-2000:] or done.stderr if done.returncode else ""


@click.command()
@click.argument("sources", nargs=-1)
@click.option("number", "-n", default=20, help="how many mutants")
@click.option("seed", "--seed", type=int)
@click.option("tests", "--test", multiple=True, help="instead of those of golden data")
@click.option("timeout_s", "--timeout-s", default=600.0)
def main(sources: tuple[str, ...], number: int, seed: int | None, tests: tuple[str, ...], timeout_s: float) -> None:
    """Mutants of SOURCES, files or folders; of the rules of the emulator where none are named."""
    seed = random.randrange(1 << 32) if seed is None else seed
    folders = [ROOT / each for each in sources or ("tuner/emulator/rules",)]
    files = [path for each in folders for path in (sorted(each.rglob("*.py")) if each.is_dir() else [each])]
    every = [mutant for path in files for mutant in of_source(str(path.relative_to(ROOT)), path.read_text("utf-8"))]
    drawn = random.Random(seed).sample(every, min(number, len(every)))
    survivors = 0
    with TemporaryDirectory(prefix="mutants-") as folder:
        copy = Path(folder)
        for name in ("tuner", "tests", "tables", "docs", "pyproject.toml", "nccl_tuner"):
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, copy)
        (copy / "tuner" / "tables").symlink_to(copy / "tables")  # as in a wheel
        if failures := _failures(copy, tests or TESTS, timeout_s):
            raise click.ClickException(f"these tests fail without a mutant, so each would be killed:\n{failures}")
        for mutant in drawn:
            if survives(mutant, copy, tests or TESTS, timeout_s):
                survivors += 1
                click.echo(f"{mutant.file}:{mutant.line}\n-{mutant.before}\n+{mutant.after}")
    click.echo(f"{survivors} of {len(drawn)} mutants survive, of {len(every)} that there are (--seed {seed})")


if __name__ == "__main__":
    main()
