"""Which cases of a broad test `make test` runs."""

import os
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEST = """
import pytest

CASES = [("a", {}), ("a", {"x": 1}), ("b", {}), ("b", {"x": 1})]

@pytest.mark.each_choice
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
@pytest.mark.parametrize(("machine", "settings"), CASES, ids=["a-0", "a-1", "b-0", "b-1"])
def test_broad(size, machine, settings):
    pass

@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("machine", ["a", "b"])
def test_other(size, machine):
    pass
"""
BROAD = {*product("ab", "01", "12345")}  # machine, settings, size


def collected(folder: Path, *options: str) -> list[str]:
    (folder / "pytest.ini").write_text("[pytest]\ntestpaths = .\nmarkers =\n    each_choice\n    slow\n")
    (folder / "test_it.py").write_text(TEST)
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "--collect-only", "--quiet", *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    return [line for line in ran.stdout.splitlines() if "::" in line]


def values(ids: list[str]) -> set[tuple[str, ...]]:
    return {tuple(name.partition("[")[2].rstrip("]").split("-")) for name in ids if "test_broad" in name}


def test_every_value_of_each_parameter_is_run(tmp_path: Path) -> None:
    ids = collected(tmp_path)
    kept = values(ids)
    assert kept < BROAD
    assert [set(column) for column in zip(*kept, strict=True)] == [set(column) for column in zip(*BROAD, strict=True)]
    assert len(kept) <= sum(len(set(column)) for column in zip(*BROAD, strict=True))
    assert sum("test_other" in name for name in ids) == 6
    assert collected(tmp_path) == ids  # in another process the same: those of pytest-xdist agree


@pytest.mark.parametrize("options", [["--exhaustive"], ["test_it.py"], ["-m", "each_choice"]], ids=str)
def test_all_are_run_where_that_is_asked(tmp_path: Path, options: list[str]) -> None:
    assert values(collected(tmp_path, *options)) == BROAD
