"""The cache's files, listed and removed by a command: this project's and this user's alone."""

import json
import os
import subprocess
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.command_line import COMMAND, run
from tuner.base.errors import OracleUnavailable
from tuner.base.files import remember, sha256
from tuner.engines import releases
from tuner.graphs import cached
from tuner.oracle import kept_files, serving
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


ASKING = ("graphs", "--topology", "docs/examples/node.xml", "--nodes", "2", "--json")


def answers(cache: Path, times: int) -> list[str]:
    """What so many processes say that ask at once."""
    env = {**os.environ, "NCCL_TUNER_CACHE": str(cache)}
    asked = [
        subprocess.Popen([COMMAND, *ASKING], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for _ in range(times)
    ]
    return [each.communicate(timeout=120)[0] for each in asked]


@pytest.mark.slow
def test_eight_processes_share_a_cache(tmp_path: Path) -> None:
    said = answers(tmp_path, 8)
    assert len(set(said)) == 1
    assert '"graphs"' in said[0]
    kept = [each for each in tmp_path.rglob("*") if each.is_file()]
    assert [each.suffix for each in kept] == [".json"]  # one answer whole, and nothing half
    written = json.loads(kept[0].read_text())
    kept[0].write_text(json.dumps(written))
    before = kept[0].stat().st_mtime_ns
    assert answers(tmp_path, 1) == said[:1]
    assert kept[0].stat().st_mtime_ns == before, "it was not read"


def _linked(path: Path) -> None:
    path.symlink_to("/dev/zero")


OTHERS: dict[str, Callable[[Path], object]] = {
    "FIFO": os.mkfifo,
    "link to a device": _linked,
    "link to nothing": lambda path: path.symlink_to("/nowhere/at/all"),
    "folder": lambda path: path.mkdir(),
    "empty": lambda path: path.write_bytes(b""),
    "no text": lambda path: path.write_bytes(b"\xff\xfe\0"),
    "deep": lambda path: path.write_text("[" * 100_000),
    **{
        f"JSON {text[:12]}": lambda path, text=text: path.write_text(text)
        for text in ("null", "[]", "{}", "7", '{"sha256": 1, "answer": 2}', '{"sha256": {}, "answer": []}')
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("other", OTHERS)
def test_what_others_put_under_a_kept_files_name_is_no_answer(other: str, tmp_path: Path) -> None:
    """It neither waits nor takes what has no end, and is found out again."""
    (said,) = answers(tmp_path, 1)
    (kept,) = (each for each in tmp_path.rglob("*") if each.is_file())
    kept.unlink()
    OTHERS[other](kept)
    assert answers(tmp_path, 1) == [said]


@pytest.mark.parametrize("answer", [None, 7, [], {}, {"graphs": None}, {"graphs": {"ring": 7}}, [[]]])
def test_a_kept_answer_of_another_form_is_none(answer: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a right sum, as another release of this project may have kept it."""
    (said,) = answers(tmp_path, 1)
    monkeypatch.setenv("NCCL_TUNER_CACHE", str(tmp_path))
    (kept,) = (tmp_path / "graphs").iterdir()
    cached.keep(kept.stem, answer)
    assert answers(tmp_path, 1) == [said]


@pytest.mark.parametrize("what", ["nothing", "no wheel", "a file less"])
def test_a_fetch_of_an_engine_that_fails_leaves_nothing(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither an empty folder nor some of the files; and what a killed one left is cleared by the next."""
    release = releases.load("vllm")
    files = serving.ENGINES["vllm"].FILES

    def downloaded(release: object, folder: Path, progress: object) -> Path:
        if what == "no wheel":
            raise OracleUnavailable("cannot download")
        with zipfile.ZipFile(folder / "x.whl", "w") as wheel:
            for file in files[: -1 if what == "a file less" else None]:
                wheel.writestr(file, "x = 1\n")
        return folder / "x.whl"

    monkeypatch.setenv("NCCL_TUNER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(serving, "_downloaded", downloaded)
    (left := tmp_path / "cache" / "engines" / "fetch-abcdefgh" / "tmp").mkdir(parents=True)
    (left / "half.py").touch()
    if what == "nothing":
        folder = serving.fetch(release)
        assert sorted(each.relative_to(folder).as_posix() for each in folder.rglob("*.py")) == sorted(files)
        assert serving.is_fetched(release)
        assert os.listdir(folder.parent) == [folder.name]
    else:
        with pytest.raises(OracleUnavailable):
            serving.fetch(release)
        assert os.listdir(tmp_path / "cache") == []
