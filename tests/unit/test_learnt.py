"""Releases learnt from a library: their names and files, and whose files count."""

import os
import struct
from pathlib import Path

import pytest

from tests.support.command_line import run
from tuner import release
from tuner.base import extras
from tuner.base.errors import BadReleaseFile, OracleFailed, OracleUnavailable, UnknownRelease
from tuner.base.files import sha256
from tuner.oracle.conformance import learn
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


def test_what_is_no_library_is_refused_at_once(tmp_path: Path) -> None:
    """A pipe would be waited at, and 10 GB of holes would be hashed for a minute."""
    pipe, sparse, text = (tmp_path / name for name in ("pipe", "sparse", "text"))
    os.mkfifo(pipe)
    with sparse.open("wb") as file:
        file.truncate(10 << 30)
    text.write_text("no library")
    for path, said in ((pipe, "is no file"), (Path("/dev/zero"), "is no file"), (sparse, "is larger than 2 GiB")):
        for words in (("oracle", "learn"), ("pick", "allreduce", "--machine", "dgx-h100", "--nccl")):
            refused = run(*words, str(path), code=2).stderr
            assert said in refused
            assert refused.count("\n") == 1
    assert run("oracle", "learn", str(text), code=2).stderr.startswith(f"nccl-tuner: {text} is not an ELF shared")


@pytest.mark.parametrize("damage", ["cut", "sections_beyond", "no_sections", "symbols", "names", "program"])
def test_a_damaged_library_is_refused_in_one_line(tmp_path: Path, damage: str) -> None:
    """Whatever its headers say of sections, symbols and segments."""
    own = Path(extras.shared_object("nccl_tuner_sim")).read_bytes()
    sections, number = struct.unpack_from("<Q", own, 0x28)[0], struct.unpack_from("<H", own, 0x3C)[0]
    of_type = {struct.unpack_from("<I", own, sections + 64 * at + 4)[0]: sections + 64 * at for at in range(number)}
    assert 2 in of_type  # .symtab
    data = bytearray(own)
    match damage:
        case "cut":
            data = data[: len(data) // 2]
        case "sections_beyond":
            struct.pack_into("<Q", data, 0x28, 1 << 63)
        case "no_sections":
            struct.pack_into("<H", data, 0x3C, 0)
        case "symbols":
            struct.pack_into("<Q", data, of_type[2] + 56, 3)  # bytes of an entry
        case "names":
            struct.pack_into("<I", data, of_type[2] + 40, number + 7)  # the section of their names
        case "program":
            struct.pack_into("<H", data, 0x36, 0)  # bytes of a segment's entry
    library = tmp_path / "libnccl.so.2"
    library.write_bytes(bytes(data) + b"NCCL version 2.28.9+cuda12.9")
    with pytest.raises(OracleUnavailable) as refused:
        learn.learn(library)
    assert str(library) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_library_that_never_answers_is_asked_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not fifteen times: crash and hang alike."""
    asked = []

    def failing(configuration: object, timeout_s: float) -> None:
        asked.append(timeout_s)
        raise OracleFailed("libnccl did not answer within 60 s; NCCL's last lines: one | two")

    monkeypatch.setattr(learn, "Oracle", failing)
    with pytest.raises(OracleUnavailable, match="answers on none of 2 communicators; the last: libnccl did not"):
        learn._probes(tmp_path / "libnccl.so.2", "2.28.9", asked.append)  # type: ignore[arg-type]
    assert asked[0] == asked[2] == learn.ANSWER_S
    assert "not asked on 2 x dgx-h100: libnccl did not answer within 60 s" in str(asked[1])
    assert "last lines" not in str(asked)
