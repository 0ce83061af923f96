"""A libnccl that the command line gives: asked instead of the installed or cached one."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.available_releases import HERE
from tuner.base.errors import OracleUnavailable
from tuner.machine import catalogue
from tuner.oracle import library

RELEASE = "2.28.9"


@pytest.fixture(autouse=True)
def _nothing_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_given", {})


def test_what_is_no_libnccl_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OracleUnavailable, match="does not exist"):
        library.give(tmp_path / "libnccl.so.2")
    (tmp_path / "libnccl.so.2").write_text("NCCL version 2.28.9+cuda12.9")
    with pytest.raises(OracleUnavailable, match="is not an ELF shared object"):
        library.give(tmp_path / "libnccl.so.2")


@pytest.mark.live
@pytest.mark.skipif(RELEASE not in HERE, reason=f"no libnccl {RELEASE} here")
@pytest.mark.skipif(library.installed_release() == RELEASE, reason="found without being given")
def test_commands_ask_the_given_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "node.xml").write_text(catalogue.load("dgx-h100").topology_xml)
    measured = f"measure allreduce --backend simulated --topology node.xml --nccl {RELEASE} --bytes 1K,1M,64M"
    run(*measured.split(), "--rounds", "8", "--out", "run.jsonl")
    there = library.cached(RELEASE)
    monkeypatch.setenv("NCCL_TUNER_CACHE", str(tmp_path / "cache"))
    for command in (("verify",), ("fit",), ("decide", "--no-gate", "--out", "out.table")):
        assert f"no libnccl {RELEASE}: " in run(*command, "run.jsonl", code=2)
        run(*command, "run.jsonl", "--library", str(there))


def run(*words: str, code: int = 0) -> str:
    """The command, in a process of its own; what it says."""
    command = [sys.executable, "-c", "from tuner.cli import main; main()", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr
