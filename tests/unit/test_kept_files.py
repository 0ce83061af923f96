"""The cache's files, listed and removed by a command: this project's and this user's alone."""

import json
import os
import time
from pathlib import Path

import pytest

from tests.support.command_line import run
from tuner.base.files import remember, sha256
from tuner.graphs import cached
from tuner.oracle import kept_files
from tuner.release import learnt

OF_OTHERS = ("src/fetch-api/x.py", "graphs/notes.txt", "2.28.9/libnccl.so.2.old", "libnccl.so.2", "engines/own/x.py")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with a file of each kind, and with files of others among them."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("NCCL_TUNER_CACHE", str(folder))
    for name in ("2.28.9/libnccl.so.2", "2.28.9-cu13/library.json", "engines/vllm-0.34.0/vllm/x.py", *OF_OTHERS):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x" * 1000)
    os.mkfifo(folder / "2.28.9" / "library.json")
    (folder / "symbols").symlink_to(tmp_path)
    (tmp_path / f"{'0' * 32}.9.json").touch()
    sha256(folder / "libnccl.so.2")
    cached.keep(cached.key_of("x"), [])
    learnt.keep("2.28.9@0123456789abcdef", "")
    remember(folder / "topologies" / ("0" * 16) / "node.xml", "<system/>")
    return folder


def names(*words: str) -> list[str]:
    return [each["name"] for each in json.loads(run("cache", *words, "--json").stdout)["kept"]]


def test_it_lists_its_own_files_alone(cache: Path) -> None:
    assert names() == ["2.28.9", "2.28.9-cu13", "learnt", "graphs", "sha256", "topologies", "vllm-0.34.0"]
    assert f"{cache} holds 7 files" in run("cache").stdout
    assert names("--unused-days", "1") == []


def test_it_removes_what_is_named_and_no_file_of_others(cache: Path) -> None:
    run("cache", "2.28.9", "graphs", "--prune")
    assert not (cache / "2.28.9" / "libnccl.so.2").exists()
    assert names() == ["2.28.9-cu13", "learnt", "sha256", "topologies", "vllm-0.34.0"]
    old = time.time() - 100 * 86400
    for each in cache.rglob("*"):
        if each.is_file():
            os.utime(each, (old, old), follow_symlinks=False)
    assert len(names("--unused-days", "90", "--prune")) == 5
    assert names() == []
    assert all((cache / name).is_file() for name in OF_OTHERS)
    assert (cache / "2.28.9" / "library.json").is_fifo()
    assert sorted(each.name for each in cache.iterdir()) == [
        "2.28.9",
        "engines",
        "graphs",
        "libnccl.so.2",
        "src",
        "symbols",
    ]
    assert os.listdir(cache / "engines") == ["own"]


def test_what_is_not_there_or_not_named_removes_nothing(cache: Path) -> None:
    assert "2.99.9: not in" in run("cache", "2.99.9", "--prune", code=2).stderr
    assert "NAMES or --unused-days" in run("cache", "--prune", code=2).stderr
    assert len(names()) == 7


def test_a_cache_that_is_not_there_holds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_TUNER_CACHE", str(tmp_path / "no"))
    assert kept_files.kept_files(0.0) == {}
    assert "holds 0 files" in run("cache").stdout
