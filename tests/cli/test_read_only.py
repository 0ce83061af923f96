"""Long work that ends in a file says at once where that file cannot be written."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.scripts.search_graphs import main
from tuner.base.errors import BadInput
from tuner.base.files import check_writable


def test_capture_says_it_before_it_searches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.scripts.search_graphs.capture", lambda *_: pytest.fail("searched"))
    file = tmp_path / "nowhere" / "graphs.toml"
    result = CliRunner().invoke(main, ["dgx-h100", "--nccl", "2.28.9", "--libnccl", "-o", str(file)])
    assert isinstance(result.exception, BadInput)
    assert str(result.exception) == f"{file}: No such file or directory"


def test_what_can_be_written_stays_as_it_is(tmp_path: Path) -> None:
    there, new = tmp_path / "there", tmp_path / "new"
    there.write_text("text")
    check_writable(there)
    check_writable(new)
    assert there.read_text() == "text"
    assert not new.exists()
