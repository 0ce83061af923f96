"""Releases learnt from a library: their names and files, and whose files count."""

import os
from pathlib import Path

import pytest

from tests.support.command_line import run
from tuner import release
from tuner.base.errors import BadReleaseFile, UnknownRelease
from tuner.base.files import sha256
from tuner.release import learnt, reader

DIGEST = "ab" * 32
NAME = learnt.name_of("2.28.9", DIGEST)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NCCL_TUNER_CACHE", str(tmp_path))
    reader.forget()
    return tmp_path


def kept(library: Path, equal: int = 5, digest: str = DIGEST, **changes: object) -> str:
    origin = learnt.LearntFrom(str(library), digest, 5, equal)
    name = learnt.name_of("2.28.9", digest)
    learnt.keep(
        name, learnt.text(name, "2.28.9", origin, {key.replace("__", "."): value for key, value in changes.items()})
    )
    reader.forget()
    return name


def test_a_learnt_release_is_its_parent_with_what_differs() -> None:
    own, parent = release.load(kept(Path("/x"), base_latency_us__ring__ll=7.25)), release.load("2.28.9")
    assert own.name == NAME
    assert not own.library
    assert [(each.key, each.before, each.after) for each in release.differences(parent, own)] == [
        ("base_latency_us.ring.ll", 6.6, 7.25)
    ]
    assert learnt.origin_of(own) == learnt.LearntFrom("/x", DIGEST, 5, 5)
    assert learnt.origin_of(parent) is None


def test_a_library_is_the_release_that_was_learnt_from_it(tmp_path: Path) -> None:
    library = tmp_path / "libnccl.so.2"
    library.write_bytes(b"a build of one's own")
    with pytest.raises(UnknownRelease, match="was not learnt yet"):
        release.named(str(library))
    name = kept(library, digest=sha256(library), base_latency_us__ring__ll=70.25)
    assert release.named(str(library)) == name
    words = ("pick", "allreduce", "--machine", "dgx-h100", "--bytes", "1K")
    slow, known = (run(*words, "--nccl", nccl) for nccl in (str(library), "2.28.9"))
    assert "learnt, 5 of 5 compared equal" in slow.stderr
    assert name in slow.stdout
    assert slow.stdout.partition("\n")[2] != known.stdout.partition("\n")[2]
    assert "base_latency_us.ring.ll" in run("diff", *words[1:4], "--nccl", "2.28.9", str(library)).stdout
    library.write_bytes(b"another one")
    with pytest.raises(UnknownRelease, match="was not learnt yet"):
        release.named(str(library))


def test_a_library_that_differs_is_refused(tmp_path: Path) -> None:
    library = tmp_path / "libnccl.so.2"
    library.write_bytes(b"a build")
    kept(library, equal=4, digest=sha256(library))
    refused = run("pick", "allreduce", "--machine", "dgx-h100", "--nccl", str(library), code=2).stderr
    assert "not emulated exactly: learnt, 4 of 5 compared equal" in refused
    assert refused.count("\n") == 1
    assert "is no file" in run("pick", "allreduce", "--machine", "dgx-h100", "--nccl", "/x/libnccl.so.2", code=2).stderr


def test_files_that_others_could_have_written_count_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    file = learnt.file_of(kept(Path("/x")))
    release.load(NAME)
    reader.forget()
    file.chmod(0o666)
    with pytest.raises(UnknownRelease, match="that this user wrote"):
        release.load(NAME)
    file.chmod(0o644)
    release.load(NAME)
    reader.forget()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(UnknownRelease, match="that this user wrote"):
        release.load(NAME)


def test_a_file_that_says_nonsense_names_file_and_key() -> None:
    kept(Path("/x"), base_latency_us__ring__ll="fast")
    with pytest.raises(BadReleaseFile, match=r"learnt/2.28.9@.*base_latency_us.ring.ll"):
        release.load(NAME)
