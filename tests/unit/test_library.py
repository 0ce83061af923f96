"""Where libnccl comes from: finding, checking and fetching, without a network."""

import base64
import csv
import hashlib
import importlib.metadata
import io
import json
import os
import re
import shutil
import struct
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tuner import release
from tuner.base.errors import BadInput, OracleUnavailable
from tuner.base.files import cache_folder, recall, remember, sha256
from tuner.cli import installation
from tuner.oracle import library, symbols
from tuner.oracle.messages import StructLayout, Symbols
from tuner.release.schema import LibraryFile

X86_64, AARCH64 = 62, 183  # e_machine


def elf(machine: int = X86_64, symtab: bool = True) -> bytes:
    """The smallest 64-bit ELF with a section table; with a .symtab of one null symbol if asked."""
    names = b"\0.symtab\0.strtab\0.shstrtab\0"
    data = names + b"\0" * (24 + 1)  # section names, one null symbol, an empty string table
    start = 64
    symbols_at, strings_at = start + len(names), start + len(names) + 24

    def section(name: int, kind: int, at: int, size: int, link: int = 0, entry: int = 0) -> bytes:
        return struct.pack("<IIQQQQIIQQ", name, kind, 0, 0, at, size, link, 1, 1, entry)

    sections = [section(0, 0, 0, 0), section(17, 3, start, len(names))]
    if symtab:
        sections += [section(1, 2, symbols_at, 24, link=3, entry=24), section(9, 3, strings_at, 1)]
    head = b"\x7fELF\x02\x01\x01" + b"\0" * 9
    head += struct.pack("<HHIQQQIHHHHHH", 3, machine, 1, 0, 0, start + len(data), 0, 64, 56, 0, 64, len(sections), 1)
    return head + data + b"".join(sections)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, no installed wheel, and no release table that knows its library."""
    monkeypatch.setenv("NCCL_TUNER_CACHE", str(tmp_path))
    monkeypatch.setattr(library, "installed_release", lambda build="cu12": None)
    monkeypatch.setattr(library, "known", lambda release, build="cu12": None)
    return tmp_path


def put(cache: Path, release: str, content: bytes) -> Path:
    path = cache / release / "libnccl.so.2"
    path.parent.mkdir()
    path.write_bytes(content)
    return path


def test_missing_says_where_it_looked_and_what_to_do(cache: Path) -> None:
    with pytest.raises(OracleUnavailable) as caught:
        library.find("2.28.9")
    message = str(caught.value)
    assert str(cache / "2.28.9" / "libnccl.so.2") in message
    assert "nccl-tuner fetch-nccl 2.28.9" in message
    assert "\n" not in message


def test_found_in_the_cache_with_its_hash(cache: Path) -> None:
    path = put(cache, "2.28.9", elf())
    found = library.find("2.28.9")
    assert found == library.Library(path, "2.28.9", hashlib.sha256(elf()).hexdigest())


def test_hash_follows_the_file(cache: Path) -> None:
    path = put(cache, "2.28.9", elf())
    before = sha256(path)
    path.write_bytes(elf() + b"more")
    assert sha256(path) != before
    assert sha256(path) == hashlib.sha256(elf() + b"more").hexdigest()


def test_who_may_write_the_cache_cannot_bless_a_library(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(cache, "2.28.9", elf())
    digest = sha256(path)
    (stored,) = (cache / "sha256").iterdir()
    blessed = stored.read_text().replace(digest, "0" * 64)
    stored.write_text(blessed)
    assert sha256(path) == "0" * 64  # what the user himself wrote counts
    stored.chmod(0o666)
    assert sha256(path) == digest
    stored.write_text(blessed)
    stored.chmod(0o644)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert sha256(path) == digest


def test_a_digest_of_another_file_counts_for_none(cache: Path) -> None:
    path, other = put(cache, "2.28.9", elf()), put(cache, "2.29.2", elf() + b"more")
    digest = sha256(path)
    (of_path,) = (cache / "sha256").iterdir()
    sha256(other)
    (of_other,) = set((cache / "sha256").iterdir()) - {of_path}
    of_other.replace(of_path)
    assert sha256(path) == digest


def test_a_library_of_the_same_size_and_time_is_another(cache: Path) -> None:
    path = put(cache, "2.28.9", elf() + b"a")
    before, digest = path.stat(), sha256(path)
    path.write_bytes(elf() + b"b")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert sha256(path) != digest


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"#!/bin/sh\nexit 0\n", "is not an ELF shared object"),
        (b"", "is not an ELF shared object"),
        (b"\x7fELF\x02", "is not an ELF shared object"),
        (elf(AARCH64), "is for EM_AARCH64; this machine is EM_X86_64"),
        (elf(symtab=False), "is stripped: it has no .symtab"),
    ],
    ids=["text", "empty", "cut off", "other architecture", "stripped"],
)
def test_unusable_files_are_refused_in_one_line(cache: Path, content: bytes, complaint: str) -> None:
    path = put(cache, "2.28.9", content)
    with pytest.raises(OracleUnavailable) as caught:
        library.find("2.28.9")
    assert complaint in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_elf_that_is_not_libnccl(cache: Path) -> None:
    path = put(cache, "2.28.9", elf())
    with pytest.raises(OracleUnavailable, match="is not a libnccl"):
        symbols.load(path, sha256(path), cache)


@pytest.mark.parametrize("release", ["2.28", "v2.28.9", "2.28.9-1", "latest", "../2.28.9", ""])
def test_a_release_has_three_numbers(cache: Path, release: str) -> None:
    with pytest.raises(BadInput, match="is not a release"):
        library.find(release)


def test_the_installed_wheel_comes_first_and_a_post_release_counts(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(cache, "2.26.2", elf() + b"cached")
    installed = tmp_path / "site" / library.MEMBER
    installed.parent.mkdir(parents=True)
    installed.write_bytes(elf())

    class Wheel:
        @staticmethod
        def locate_file(path: str) -> Path:
            return tmp_path / "site" / path

    monkeypatch.undo()
    monkeypatch.setenv("NCCL_TUNER_CACHE", str(cache))
    monkeypatch.setattr(library, "known", lambda release, build="cu12": None)
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "2.26.2.post1")
    monkeypatch.setattr(importlib.metadata, "distribution", lambda _: Wheel)
    assert library.installed_release() == "2.26.2"
    assert library.find("2.26.2").path == installed
    put(cache, "2.28.9", elf())
    assert library.find("2.28.9").path == cache / "2.28.9" / "libnccl.so.2"


def wheel(folder: Path, content: bytes, recorded: bytes | None = None, member: str = library.MEMBER) -> Path:
    """A wheel as pip would leave it, with a RECORD for ``recorded`` (what it holds, unless said otherwise)."""
    digest = hashlib.sha256(content if recorded is None else recorded).digest()
    rows = io.StringIO()
    csv.writer(rows).writerow(
        [member, "sha256=" + base64.urlsafe_b64encode(digest).rstrip(b"=").decode(), len(content)]
    )
    path = folder / "nvidia_nccl_cu12-2.28.9-py3-none-manylinux_2_18_x86_64.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(member, content)
        archive.writestr("nvidia_nccl_cu12-2.28.9.dist-info/RECORD", rows.getvalue())
    return path


def test_fetch_keeps_the_library_and_a_note(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    downloads = []

    def download(release: str, build: str, folder: Path, progress: object) -> Path:
        downloads.append(release)
        return wheel(folder, elf())

    monkeypatch.setattr(library, "_download", download)
    fetched = library.fetch("2.28.9")
    assert fetched == library.find("2.28.9")
    note = json.loads((cache / "2.28.9" / "library.json").read_text())
    assert note == {"release": "2.28.9", "wheel": wheel(cache, elf()).name, "sha256": fetched.sha256}
    assert sorted(os.listdir(cache / "2.28.9")) == ["libnccl.so.2", "library.json"]

    library.fetch("2.28.9")
    assert downloads == ["2.28.9"], "a whole library is not fetched again"

    fetched.path.write_bytes(elf() + b"damaged")
    assert library.fetch("2.28.9").sha256 == fetched.sha256
    assert downloads == ["2.28.9", "2.28.9"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"content": elf(), "recorded": b"something else"}, "is damaged"),
        ({"content": elf(), "member": "nvidia/nccl/lib/other.so"}, "has no nvidia/nccl/lib/libnccl.so.2"),
        ({"content": elf(symtab=False)}, "is stripped"),
    ],
    ids=["damaged", "another wheel", "stripped"],
)
def test_fetch_leaves_nothing_of_a_bad_wheel(
    cache: Path, monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any], complaint: str
) -> None:
    monkeypatch.setattr(library, "_download", lambda release, build, folder, progress: wheel(folder, **arguments))
    with pytest.raises(OracleUnavailable, match=complaint):
        library.fetch("2.28.9")
    assert not (cache / "2.28.9").exists()


def test_fetch_from_a_folder_downloads_nothing(
    cache: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("wheels")
    there = wheel(folder, elf())
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("asked pip"))
    (fetched,) = library.fetch_all(["2.28.9"], source=folder)
    assert fetched == library.find("2.28.9")
    assert there.is_file()
    with pytest.raises(OracleUnavailable, match=rf"no wheel of nvidia-nccl-cu12 2.18.1 .*{there.name}.*pip download"):
        next(library.fetch_all(["2.18.1"], source=folder))
    there.write_bytes(b"cut off")
    (cache / "2.28.9" / "libnccl.so.2").unlink()
    with pytest.raises(OracleUnavailable, match="is damaged"):
        next(library.fetch_all(["2.28.9"], source=folder))


def test_fetch_looks_at_the_disk_first(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mib = {"2.28.9": 300, "2.18.1": 200}
    monkeypatch.setattr(library, "known", lambda release, build="cu12": LibraryFile("", mib[release] << 20))
    monkeypatch.setattr(library, "_download", lambda *_: pytest.fail("downloaded without room"))
    usage = shutil.disk_usage(cache)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1100 << 20))
    told: list[str] = []
    with pytest.raises(pytest.fail.Exception):
        next(library.fetch_all(["2.28.9", "2.18.1"], told.append))
    assert told[0].startswith("fetching 2 releases needs up to 1100 MiB in")
    assert told[0].endswith("which has 1100 MiB free; 500 MiB stay")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=(1100 << 20) - 1))
    with pytest.raises(OracleUnavailable, match=r"needs up to 1100 MiB in .*, which has 1099 MiB free; set NCCL_"):
        next(library.fetch_all(["2.28.9", "2.18.1"]))


def test_the_releases_of_an_interrupted_fetch_are_not_fetched_again(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = ["2.18.1", "2.28.9", "2.32.3"]
    downloads: list[str] = []

    def download(release: str, build: str, folder: Path, progress: object) -> Path:
        downloads.append(release)
        if downloads == wanted[:2]:
            (folder / "half").write_bytes(b"a wheel that is cut")
            raise KeyboardInterrupt
        return wheel(folder, elf() + release.encode())

    monkeypatch.setattr(library, "_download", download)
    with pytest.raises(KeyboardInterrupt):
        list(library.fetch_all(wanted))
    assert sorted(os.listdir(cache)) == ["2.18.1", "sha256"]
    told: list[str] = []
    assert [found.release for found in library.fetch_all(wanted, told.append)] == wanted
    assert downloads == ["2.18.1", "2.28.9", "2.28.9", "2.32.3"]
    assert told[0].startswith("fetching 2 releases needs")
    assert told[1] == f"{cache / '2.18.1' / 'libnccl.so.2'} is already there"
    assert told[2] == "[1/2] 2.28.9"


@pytest.mark.parametrize("left_bytes", [0, 100])
def test_a_wheel_that_was_cut_is_one_line(cache: Path, monkeypatch: pytest.MonkeyPatch, left_bytes: int) -> None:
    def download(release: str, build: str, folder: Path, progress: object) -> Path:
        path = wheel(folder, elf())
        path.write_bytes(path.read_bytes()[:left_bytes])
        return path

    monkeypatch.setattr(library, "_download", download)
    with pytest.raises(OracleUnavailable, match="is damaged") as caught:
        library.fetch("2.28.9")
    assert "\n" not in str(caught.value)
    assert os.listdir(cache) == []


def test_a_cache_that_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NCCL_TUNER_CACHE", str(tmp_path / "file"))
    with pytest.raises(OracleUnavailable, match=r"cannot make folder .*file: File exists; set NCCL_TUNER_CACHE"):
        library.fetch("2.28.9")


def test_a_library_is_used_where_nothing_about_it_can_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The installed wheel, and a home that cannot be written to."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NCCL_TUNER_CACHE", str(tmp_path / "file"))
    path = tmp_path / "libnccl.so.2"
    path.write_bytes(elf())
    assert library.at(path).sha256 == hashlib.sha256(elf()).hexdigest()
    read = object()
    monkeypatch.setattr(symbols, "read", lambda _: read)
    monkeypatch.setattr(symbols, "to_json", lambda _: {})
    assert symbols.load(path, "0" * 64, cache_folder()) is read
    assert sorted(each.name for each in tmp_path.iterdir()) == ["file", "libnccl.so.2"]


def test_what_is_kept_is_for_all_whom_the_umask_lets_read(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        remember(tmp_path / "kept" / "one", "1")
    finally:
        os.umask(before)
    assert (tmp_path / "kept" / "one").stat().st_mode & 0o777 == 0o640
    assert (recall(tmp_path / "kept" / "one"), recall(tmp_path / "kept")) == ("1", None)
    assert os.listdir(tmp_path / "kept") == ["one"]


def test_what_another_user_keeps_to_himself_is_found_out_again(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(cache, "2.28.9", elf())
    digest = sha256(path)
    monkeypatch.setattr(symbols, "read", lambda _: "read")
    monkeypatch.setattr(symbols, "to_json", lambda _: {})
    symbols.load(path, digest, cache)

    def forbidden(self: Path, *_: Any) -> str:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "read_text", forbidden)
    assert sha256(path) == digest
    assert symbols.load(path, digest, cache) == "read"


@pytest.mark.parametrize(
    "damage",
    [
        *(
            lambda text, other=other: other
            for other in ("", "null", "7", "[]", "{}", "[" * 100_000, '{"answer": "{}"}')
        ),
        lambda text: text[: len(text) // 2],
        lambda text: text.replace("10", "11", 1),  # an address, which libnccl would be asked at
    ],
)
def test_kept_symbols_that_are_damaged_are_read_again(
    damage: Callable[[str], str], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = StructLayout(1, {}, {}, {})
    found = Symbols({"f": [(10, 1)]}, {}, ("f", 10), *[layout] * 7, {}, {}, {}, {})  # type: ignore[arg-type,call-arg]
    monkeypatch.setattr(symbols, "read", lambda _: found)
    path = put(cache, "2.28.9", elf())
    assert symbols.load(path, "0" * 64, cache) == found
    monkeypatch.setattr(symbols, "read", lambda _: "read again")
    assert symbols.load(path, "0" * 64, cache) == found
    (kept,) = (cache / "symbols").iterdir()
    kept.write_text(damage(kept.read_text()))
    assert symbols.load(path, "0" * 64, cache) == "read again"


def test_a_cache_that_may_not_be_looked_into_is_empty(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a folder of another user's; this error root gets, too."""
    monkeypatch.setenv("NCCL_TUNER_CACHE", str(cache / ("long" * 100)))
    with pytest.raises(OracleUnavailable, match="does not exist; `nccl-tuner fetch-nccl"):
        library.find("2.28.9")
    with pytest.raises(OracleUnavailable, match=r"cannot make folder .*: File name too long; set NCCL_TUNER_CACHE"):
        library.fetch("2.28.9")
    assert installation.inspect().cached == ()
    read = object()
    monkeypatch.setattr(symbols, "read", lambda _: read)
    monkeypatch.setattr(symbols, "to_json", lambda _: {})
    assert symbols.load(cache / "libnccl.so.2", "0" * 64, cache_folder()) is read


def test_what_a_killed_fetch_left_is_cleared_and_does_not_count(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = cache / "2.28.9" / "fetch-abc" / "libnccl.so.2"
    left.parent.mkdir(parents=True)
    left.write_bytes(elf())
    with pytest.raises(OracleUnavailable, match=r"no libnccl 2\.28\.9"):
        library.find("2.28.9")
    monkeypatch.setattr(library, "_download", lambda release, build, folder, progress: wheel(folder, elf()))
    library.fetch("2.28.9")
    assert sorted(os.listdir(cache / "2.28.9")) == ["libnccl.so.2", "library.json"]


@pytest.mark.parametrize("note", ["", "{", "[]", "7", "null", '{"sha256": 5}', "[" * 100_000, os.mkfifo], ids=str)
def test_a_damaged_note_of_a_fetch_is_none(note: Any, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a release that no table knows, whose library only the note vouches for: it is fetched again."""
    path = put(cache, "2.99.1", elf()).with_name("library.json")
    path.write_text(note) if isinstance(note, str) else note(path)
    monkeypatch.setattr(library, "_download", lambda release, build, folder, progress: wheel(folder, elf()))
    library.fetch("2.99.1")
    assert json.loads(path.read_text())["sha256"] == hashlib.sha256(elf()).hexdigest()


def test_a_fetch_removes_nothing_of_others(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders and files that are called as its own, anywhere below the cache's folder, and links."""
    kept = [
        cache / "src" / "fetch-api" / "code.c",
        cache / "2.28.9" / "fetch-notes" / "notes.txt",
        cache / "fetch-x" / "y",
    ]
    for each in (*kept, cache / "2.27.3" / "fetch-file"):
        each.parent.mkdir(parents=True, exist_ok=True)
        each.write_text("mine")
    (cache / "2.28.9" / "fetch-link").symlink_to(kept[0].parent)
    monkeypatch.setattr(library, "_download", lambda release, build, folder, progress: wheel(folder, elf()))
    library.fetch("2.28.9")
    assert all(each.read_text() == "mine" for each in (*kept, cache / "2.27.3" / "fetch-file"))
    assert (cache / "2.28.9" / "fetch-link").is_symlink()


def test_only_the_library_that_the_table_knows_is_used(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right, other = elf(), elf() + b"of another build"
    sha256 = hashlib.sha256(right).hexdigest()
    monkeypatch.setattr(library, "known", lambda release, build="cu12": LibraryFile(sha256, len(right)))
    path = put(cache, "2.28.9", other)
    with pytest.raises(OracleUnavailable, match=f"is not the libnccl 2.28.9 .*valid: {sha256}") as caught:
        library.find("2.28.9")
    assert "\n" not in str(caught.value)
    assert library.at(path).path == path, "a file that is named is used whatever it is"

    monkeypatch.setattr(library, "_download", lambda release, build, folder, progress: wheel(folder, other))
    with pytest.raises(OracleUnavailable, match=f"is not used, because its libnccl has sha256 .*, not {sha256}"):
        library.fetch("2.28.9")
    assert path.read_bytes() == other
    monkeypatch.setattr(library, "_download", lambda release, build, folder, progress: wheel(folder, right))
    assert library.fetch("2.28.9") == library.find("2.28.9") == library.Library(path, "2.28.9", sha256)


def test_a_strange_installed_wheel_gives_way_to_the_cache(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "site" / library.MEMBER
    installed.parent.mkdir(parents=True)
    installed.write_bytes(elf() + b"of another build")
    wheel_of = type("Wheel", (), {"locate_file": staticmethod(lambda path: installed)})
    monkeypatch.setattr(library, "installed_release", lambda build="cu12": "2.28.9")
    monkeypatch.setattr(importlib.metadata, "distribution", lambda _: wheel_of)
    monkeypatch.setattr(
        library, "known", lambda release, build="cu12": LibraryFile(hashlib.sha256(elf()).hexdigest(), len(elf()))
    )
    with pytest.raises(OracleUnavailable, match="site/nvidia"):
        library.find("2.28.9")
    cached = put(cache, "2.28.9", elf())
    assert library.find("2.28.9").path == cached


def test_every_release_table_knows_its_library() -> None:
    for name in release.names():
        row = release.load(name).library["cu12"]["x86_64"]
        assert re.fullmatch("[0-9a-f]{64}", row.sha256), name
        assert 200 << 20 < row.bytes < library.LARGEST_BYTES, name
        if (path := library.cached(name)).is_file():
            assert (sha256(path), path.stat().st_size) == (row.sha256, row.bytes), name
    rows = [release.load(name).library["cu12"]["x86_64"].sha256 for name in release.names()]
    assert len(set(rows)) == len(rows)


def test_every_build_that_a_release_table_knows() -> None:
    names = library.with_build("cu13")
    assert names == release.names()[release.names().index("2.27.7") :]
    for name in names:
        row = release.load(name).library["cu13"]["x86_64"]
        assert re.fullmatch("[0-9a-f]{64}", row.sha256), name
        assert 200 << 20 < row.bytes < release.load(name).library["cu12"]["x86_64"].bytes, name
        if (path := library.cached(name, "cu13")).is_file():
            assert (sha256(path), path.stat().st_size) == (row.sha256, row.bytes), name
    hashes = [each["x86_64"].sha256 for name in release.names() for each in release.load(name).library.values()]
    assert len(set(hashes)) == len(hashes) == len(names) + len(release.names())


def test_builds_lie_side_by_side(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(release: str, build: str, folder: Path, progress: object) -> Path:
        return wheel(folder, elf() + build.encode())

    monkeypatch.setattr(library, "_download", download)
    assert library.fetch("2.28.9").path == cache / "2.28.9" / "libnccl.so.2"
    assert library.fetch("2.28.9", build="cu13").path == cache / "2.28.9-cu13" / "libnccl.so.2"
    assert library.find("2.28.9").sha256 != library.find("2.28.9", "cu13").sha256


def test_a_build_that_is_missing_says_how_to_get_it(cache: Path) -> None:
    put(cache, "2.28.9", elf())
    with pytest.raises(OracleUnavailable, match=r"no nvidia-nccl-cu13 wheel .*/2\.28\.9-cu13/") as caught:
        library.find("2.28.9", "cu13")
    assert "`nccl-tuner fetch-nccl 2.28.9 --build cu13`" in str(caught.value)


@pytest.mark.parametrize(
    ("build", "complaint"),
    [("cu13", r"NCCL 2\.26\.2 has no cu13 build; valid: 2\.27\.7, "), ("cu11", "no build 'cu11'; valid: cu12, cu13")],
)
def test_a_build_that_there_is_not(cache: Path, build: str, complaint: str) -> None:
    for ask in (library.find, lambda release, build: library.fetch(release, build=build)):
        with pytest.raises(BadInput, match=complaint):
            ask("2.26.2", build)


def pip(monkeypatch: pytest.MonkeyPatch, *outcomes: tuple[int, str]) -> list[list[str]]:
    """Replaces pip: each call gets the next (exit status, stderr). Returns the commands it was called with."""
    calls: list[list[str]] = []

    def run(command: list[str], **_: object) -> object:
        status, stderr = outcomes[len(calls)]
        calls.append(command)
        if status == 0:
            wheel(Path(command[command.index("--dest") + 1]), elf())
        return subprocess.CompletedProcess(command, status, "", stderr)

    monkeypatch.setattr(subprocess, "run", run)
    return calls


UNKNOWN = (
    "ERROR: Could not find a version that satisfies the requirement nvidia-nccl-cu12==2.26.2 (from versions: 2.16.5)\n"
    "ERROR: No matching distribution found for nvidia-nccl-cu12==2.26.2\n"
)


def test_a_release_that_is_only_a_post_release(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = pip(monkeypatch, (1, UNKNOWN), (0, ""))
    library.fetch("2.26.2")
    assert [command[-1] for command in calls] == ["nvidia-nccl-cu12==2.26.2", "nvidia-nccl-cu12==2.26.2.*"]


def test_the_wheel_of_a_build_is_downloaded(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = pip(monkeypatch, (0, ""))
    library.fetch("2.28.9", build="cu13")
    assert [command[-1] for command in calls] == ["nvidia-nccl-cu13==2.28.9"]


@pytest.mark.parametrize(
    ("stderr", "calls", "reason"),
    [
        (UNKNOWN, 2, "No matching distribution found for nvidia-nccl-cu12==2.26.2"),
        ("WARNING: Retrying after connection broken by 'NewConnectionError'\n" + UNKNOWN, 1, "cannot be reached"),
        ("No module named pip\n", 1, "No module named pip"),
        ("", 1, "pip gave no reason"),
    ],
    ids=["unknown", "offline", "no pip", "silent"],
)
def test_a_failed_download_is_one_line(
    cache: Path, monkeypatch: pytest.MonkeyPatch, stderr: str, calls: int, reason: str
) -> None:
    made = pip(monkeypatch, (1, stderr), (1, stderr))
    with pytest.raises(OracleUnavailable) as caught:
        library.fetch("2.26.2")
    assert reason in str(caught.value)
    assert "2.16.5" not in str(caught.value), "pip's list of every version says nothing"
    assert "\n" not in str(caught.value)
    assert len(made) == calls


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        ("cudaMalloc", "cudaMalloc"),
        ("_Z11getHostHashv", "getHostHash"),
        ("_ZL16calcCollChunkingP8ncclComm", "calcCollChunking"),
        ("_Z19ncclNvlsGroupCreateP8ncclCommPyPc.constprop.6", "ncclNvlsGroupCreate"),
        ("_ZN12_GLOBAL__N_14lockE", "_ZN12_GLOBAL__N_14lockE"),
    ],
)
def test_own_names_of_symbols(symbol: str, name: str) -> None:
    assert symbols.own_name(symbol) == name
