"""What a test without the marker `live` cannot do, in its own process and in one that it starts."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest

from tests.support.not_live import sitecustomize as not_live
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
        subprocess.run([sys.executable, "-P", "-m", process.CHILD, "0"], check=False)


def test_no_other_computer_is_called(tried: Path) -> None:
    program = "import socket; socket.socket().connect(('192.0.2.1', 80))"
    with guarded(tried):
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "not marked live connected to 192.0.2.1" in done.stderr


def test_files_that_tests_make_may_be_opened(tmp_path: Path) -> None:
    (tmp_path / "libnccl.so.2").write_bytes(b"small")
