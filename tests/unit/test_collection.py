"""What a test without the marker `live` cannot do, and which cases of a broad test `make test` runs."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from unittest.mock import patch

import pytest

from tests.support.not_live import sitecustomize as not_live
from tuner.base import children
from tuner.oracle import process


@contextmanager
def guarded(tried: Path) -> Iterator[None]:
    """What is tried is noted there, in place of the file that would fail this test."""
    with patch.dict(os.environ, {not_live.VARIABLE: str(tried)}):
        yield
    assert tried.exists()


@pytest.fixture
def tried(tmp_path: Path) -> Path:
    return tmp_path / "tried.txt"


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """As large as no library that a test makes."""
    path = tmp_path / "libnccl.so.2"
    with path.open("wb") as file:
        file.truncate(11 << 20)
    return path


def test_no_libnccl_is_opened(tried: Path, library: Path) -> None:
    with guarded(tried), pytest.raises(RuntimeError, match=r"not marked live opened .*libnccl\.so\.2"):
        library.open("rb")
    assert tried.read_text() == f"opened {library}\n"


def test_a_process_of_the_test_opens_none_either(tried: Path, library: Path) -> None:
    command = [sys.executable, "-c", f"open({str(library)!r}, 'rb')"]
    with guarded(tried):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "not marked live opened" in done.stderr
    assert tried.read_text() == f"opened {library}\n"


def test_the_oracle_is_not_started(tried: Path) -> None:
    with guarded(tried), pytest.raises(RuntimeError, match="not marked live started the oracle"):
        subprocess.run(children.command(process.CHILD, "0"), check=False)


def test_no_other_computer_is_called(tried: Path) -> None:
    program = "import socket; socket.socket().connect(('192.0.2.1', 80))"
    with guarded(tried):
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "not marked live connected to 192.0.2.1" in done.stderr


def test_files_that_tests_make_may_be_opened(tmp_path: Path) -> None:
    (tmp_path / "libnccl.so.2").write_bytes(b"small")


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
