"""Files that a user names: bounded however they are packed, and one line where they cannot be read."""

import gzip
import os
import tracemalloc
from pathlib import Path

import pytest

from tests.support.command_line import run
from tuner.base import files
from tuner.base.errors import BadInput, BadTopology
from tuner.base.files import contents, read_bytes, recall_own, remember
from tuner.graphs.graph_file import GraphFile
from tuner.machine.graphs import read_dump
from tuner.machine.topology import read
from tuner.release import load

PICK = ("pick", "allreduce", "--bytes", "1M", "--nccl", "2.28.9")
BOMB = (
    """<!DOCTYPE graphs [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;">]><graphs version="1"><graph id="&b;"/></graphs>"""
)


def test_a_gzipped_file_is_unpacked_to_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MOST_BYTES", 3 << 20)
    packed = tmp_path / "x.gz"
    packed.write_bytes(gzip.compress(bytes(3 << 20)))
    assert read_bytes(packed, BadInput) == bytes(3 << 20)
    packed.write_bytes(gzip.compress(bytes(2 << 20)) + gzip.compress(bytes((1 << 20) + 1)))  # two members
    with pytest.raises(BadInput, match=rf"^{packed}: too large; valid: up to {3 << 20} bytes$"):
        read_bytes(packed, BadInput)


def test_a_pipe_is_read_once_for_readers_with_other_bounds() -> None:
    reader, writer = os.pipe()
    os.write(writer, b"all of it")
    os.close(writer)
    path = Path(f"/dev/fd/{reader}")
    assert [contents(path), contents(path, 9), contents(path, 1 << 20)] == [b"all of it"] * 3
    with pytest.raises(OSError, match="valid: up to 8 bytes"):
        contents(path, 8)
    os.close(reader)


@pytest.mark.parametrize("option", ["--topology", "--log"])
def test_what_unpacks_to_more_is_one_line_of_the_command(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MOST_BYTES", 64 << 20)
    packed = tmp_path / "bomb.gz"
    packed.write_bytes(gzip.compress(bytes(1 << 20)) * 100)
    tracemalloc.start()
    done = run(*PICK, option, str(packed), code=2)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 80 << 20
    assert len(done.stderr.splitlines()) == 1
    assert str(packed) in done.stderr


def test_a_device_without_an_end_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadTopology, match=r"^/dev/zero: too large; valid: up to 4194304 bytes$"):
        read(Path("/dev/zero"))
    with pytest.raises(BadTopology, match=r"^/dev/zero: too large"):
        read_dump(Path("/dev/zero"))
    monkeypatch.setattr(files, "MOST_BYTES", 64 << 20)
    assert "/dev/zero: too large" in run(*PICK, "--log", "/dev/zero", code=2).stderr


def test_graphs_that_declare_entities_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "graphs.xml"
    file.write_text(BOMB)
    with pytest.raises(BadTopology, match=r"graphs\.xml:1: declares an entity"):
        read_dump(file)
    with pytest.raises(BadInput, match=r"^NCCL_GRAPH_FILE=x:1: declares an entity"):
        GraphFile("x", BOMB, load("2.28.9").search.dump)


def test_only_what_this_user_alone_could_have_written_is_his_own(tmp_path: Path) -> None:
    file = tmp_path / "kept" / "one"
    before = os.umask(0)
    try:
        remember(file, "1")
    finally:
        os.umask(before)
    assert recall_own(file) == "1"
    file.chmod(0o664)
    assert recall_own(file) is None
    file.chmod(0o602)
    assert recall_own(file) is None
    assert recall_own(tmp_path / "none") is None


def test_what_another_user_wrote_is_not_his_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remember(tmp_path / "one", "1")
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert recall_own(tmp_path / "one") is None
