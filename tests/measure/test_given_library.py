"""A libnccl that the command line gives: asked instead of the installed or cached one."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.available_releases import HERE
from tuner.base.errors import OracleUnavailable
from tuner.oracle import library

RELEASE = "2.28.9"
SKELETON = Path(__file__).parents[2] / "docs" / "examples" / "skeleton.xml"
COMMANDS = (("verify",), ("fit", "constants"), ("decide", "--no-gate", "--out", "out.table"))


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
def test_what_is_given_is_found_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = library.cached(RELEASE)
    (tmp_path / "moved.so").symlink_to(there)
    monkeypatch.setenv("NCCL_TUNER_CACHE", str(tmp_path / "cache"))
    assert library.give(tmp_path / "moved.so") == RELEASE
    assert library.find(RELEASE).path == library.given(RELEASE) == there.resolve()


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_commands_take_it(command: tuple[str, ...], tmp_path: Path) -> None:
    said = run(*command, "run.jsonl", "--library", str(tmp_path / "gone.so"), code=2)
    assert said == f"nccl-tuner: {tmp_path}/gone.so does not exist\n"


@pytest.mark.slow
def test_commands_complete_a_skeleton_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NCCL_TUNER_CACHE", str(tmp_path / "cache"))
    where = f"--topology {SKELETON} --gpu h100-sxm --nic-gbps 400 --nccl {RELEASE}"
    run(*f"measure allreduce --backend simulated {where} --bytes 1K,1M,64M --rounds 8 --out run.jsonl".split())
    for command in COMMANDS:
        assert "no libnccl" not in run(*command, "run.jsonl")


def run(*words: str, code: int = 0) -> str:
    """The command, in a process of its own; what it says."""
    command = [sys.executable, "-c", "from tuner.cli import main; main()", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr
