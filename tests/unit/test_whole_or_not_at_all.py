"""Outputs are written whole or not at all: a full disk, an error or a link leaves what was there."""

import os
import stat
from pathlib import Path

import pytest

from tests.support.command_line import run
from tuner.base.errors import BadInput
from tuner.base.files import check_writable, recall, recall_own, replacing, write_bytes, write_text


def test_what_ends_in_the_middle_leaves_the_old_file(tmp_path: Path) -> None:
    file = tmp_path / "x"
    write_text(file, "old")

    def broken() -> None:
        with replacing(file) as to:
            to.write_text("half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        broken()
    assert (file.read_text(), os.listdir(tmp_path)) == ("old", ["x"])


@pytest.mark.parametrize(
    "words",
    [
        ["machines", "dgx-h100", "--out"],
        ["plot", "curves", "allreduce", "--machine", "dgx-h100", "--nodes", "2", "--out"],
        ["budget", "docs/examples/job.csv", "--machine", "dgx-h100", "--nodes", "2", "--parquet"],
        ["export", "allreduce", "--format", "goal", "--machine", "dgx-h100", "--bytes", "1M", "--out"],
    ],
    ids=["topology", "picture", "parquet", "schedule"],
)
def test_a_full_disk_leaves_the_old_file(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / ("x.svg" if "plot" in words else "x")
    file.write_text("old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    done = run(*words, str(file), code=2)
    assert "No space left on device" in done.stderr
    assert (file.read_text(), os.listdir(tmp_path)) == ("old", [file.name])


def test_a_link_stays_and_its_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "to").write_text("old")
    (tmp_path / "to").chmod(0o640)
    (tmp_path / "link").symlink_to("to")
    write_bytes(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "to").read_text() == "new"
    assert stat.S_IMODE((tmp_path / "to").stat().st_mode) == 0o640


def test_devices_and_pipes_are_written_themselves(tmp_path: Path) -> None:
    write_text(Path("/dev/null"), "x")
    reader, writer = os.pipe()
    write_text(Path(f"/dev/fd/{writer}"), "through")
    assert os.read(reader, 100) == b"through"
    with pytest.raises(BadInput, match="Is a directory"):
        write_text(tmp_path, "x")


def test_a_look_ahead_leaves_nothing(tmp_path: Path) -> None:
    check_writable(tmp_path / "x")
    assert os.listdir(tmp_path) == []
    with pytest.raises(BadInput, match="No such file"):
        check_writable(tmp_path / "no" / "x")


def test_a_fifo_or_a_link_under_a_name_of_the_cache_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "folder").mkdir()
    for name in ("fifo", "zero", "folder"):
        assert recall(tmp_path / name) is None
        assert recall_own(tmp_path / name) is None
