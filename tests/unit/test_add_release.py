"""What `make release` writes of a release that no file knows, without asking a libnccl."""

import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.scripts import add_release, newest_release
from tuner import release
from tuner.oracle.conformance.learn import Learning
from tuner.release import reader
from tuner.release.variables import in_library

LEARNT = Learning("2.99.1@0", "/x", "2.32.3", {"base_latency_us.ring.ll": 7.25}, 1, {}, {}, (), 1.0, "/y")


def test_the_file_of_a_new_release_has_what_was_learnt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    variables, library = tmp_path / "variables.toml", tmp_path / "libnccl.so.2"
    variables.write_text("")
    library.write_bytes(b"a library")
    names = in_library(release.names()[-1]) - {"NCCL_ALGO"} | {"NCCL_NEWER"}
    monkeypatch.setattr(add_release, "FOLDER", tmp_path)
    monkeypatch.setattr(add_release, "VARIABLES", variables)
    monkeypatch.setattr(add_release, "learn", lambda *_, **__: LEARNT)
    monkeypatch.setattr(add_release, "variables_in", lambda _: names)
    fetched = SimpleNamespace(path=library, sha256="ab" * 32)
    monkeypatch.setattr("tuner.oracle.library.fetch", lambda *_: fetched)
    add_release.begin("2.99.1")
    for file in reader._folder().glob("*.toml"):
        (tmp_path / file.name).write_text(file.read_text())
    new, parent = reader.read(tmp_path, "2.99.1"), release.load("2.32.3")
    assert [(each.key, each.after) for each in release.differences(parent, new)] == [("base_latency_us.ring.ll", 7.25)]
    assert new.library["cu12"]["x86_64"].bytes == 9
    assert tomllib.loads(variables.read_text()) == {"2.99.1": {"new": ["NCCL_NEWER"], "gone": ["NCCL_ALGO"]}}


@pytest.mark.parametrize(("said", "unknown"), [("2.99.1", "2.99.1"), ("2.32.3", ""), ("2.26.2.post1", "")])
def test_the_newest_release_of_the_index(said: str, unknown: str) -> None:
    assert newest_release.unknown(f"nvidia-nccl-cu12 ({said})\nAvailable versions: 2.1.1") == unknown
    with pytest.raises(SystemExit, match="no version"):
        newest_release.unknown("ERROR")
