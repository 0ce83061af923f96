"""Files of learnt releases: kept whole or refused, and a sum over them."""

from pathlib import Path

import pytest

from tuner.base.errors import BadInput, UnknownRelease
from tuner.release import learnt, reader

NAME = "2.28.9@0123456789abcdef"
CHANGES = {"limits.data_types": 11, "threads.ring.ll.default": 512}


def text(library: str = "/x/libnccl.so.2") -> str:
    return learnt.text(NAME, "2.28.9", learnt.LearntFrom(library, "0" * 64, 10, 10), CHANGES)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NCCL_TUNER_CACHE", str(tmp_path / "cache"))
    reader.forget()
    return tmp_path / "cache"


def test_what_is_kept_is_read_again() -> None:
    learnt.keep(NAME, text())
    assert learnt.text_of(NAME) == text()


@pytest.mark.parametrize("lines", range(1, 14))
def test_a_file_that_was_cut_at_a_lines_end_is_refused(lines: int) -> None:
    file = learnt.keep(NAME, text())
    whole = file.read_text().splitlines(keepends=True)
    if lines < len(whole):
        file.write_text("".join(whole[:lines]))
        with pytest.raises(UnknownRelease, match="it was cut or changed"):
            learnt.text_of(NAME)


def test_a_changed_value_is_refused() -> None:
    file = learnt.keep(NAME, text())
    file.write_text(file.read_text().replace("= 512", "= 640"))
    with pytest.raises(UnknownRelease, match="it was cut or changed"):
        learnt.text_of(NAME)


def test_what_cannot_be_kept_is_said(cache: Path) -> None:
    cache.write_text("a file")
    for kept in (learnt.check_kept, lambda: learnt.keep(NAME, text())):
        with pytest.raises(BadInput, match="cannot be written, so nothing can be learnt: set NCCL_TUNER_CACHE"):
            kept()


def test_a_path_with_a_line_end_makes_a_file_that_can_be_read() -> None:
    import tomllib

    learnt.keep(NAME, text("/x/\n[a]\nb = 1/libnccl.so.2"))
    table = tomllib.loads(learnt.text_of(NAME))
    assert table["learnt"]["library"] == "/x/\n[a]\nb = 1/libnccl.so.2"
    assert "a" not in table
