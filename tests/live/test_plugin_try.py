"""A table tried in the real libnccl: every row, by what is launched and what the plugin counts there."""

import json
from pathlib import Path

import pytest

from tests.support.available_releases import WITH_PLUGINS
from tests.support.command_line import run

pytestmark = pytest.mark.live

ROWS = """nccl-tuner-table 1
allreduce bytes=64K..4M ranks=16 nodes=2 -> ring/ll128 channels=8 | tree/ll128
allreduce bytes=128K..1M -> tree/simple
allreduce bytes=8G.. -> nvls/simple
allgather ranks=8 -> ring/ll
allgather bytes-per-rank=..32K -> nccl
cost allreduce bytes=..1K -> ring/ll latency-us=20 bandwidth-gbs=1
"""
EFFECTS = {
    2: "decides",
    3: "no call reaches it",
    4: "cannot run here",
    5: "for other communicators",
    6: "leaves it to NCCL",
    7: "gives times",
}
ON = ("--machine", "dgx-h100", "--nodes", "2", "--nccl")


def rows_of(table: Path, nccl: str, code: int) -> list[dict[str, object]]:
    said = json.loads(run("plugin", "lint", "--libnccl", str(table), *ON, nccl, "--json", code=code).stdout)
    rows: list[dict[str, object]] = said["rows"]
    return rows


@pytest.mark.slow
@pytest.mark.parametrize("nccl", [name for name in ("2.22.3", "2.28.9", "2.32.3") if name in WITH_PLUGINS])
def test_every_row_is_seen_or_said_to_have_no_effect(tmp_path: Path, nccl: str) -> None:
    table = tmp_path / "t"
    table.write_text(ROWS)
    rows = rows_of(table, nccl, code=1)
    assert {row["line"]: row["effect"] for row in rows} == EFFECTS
    after = rows[0]["after"]
    assert isinstance(after, dict)
    assert (after["algorithm"], after["protocol"], after["channels"]) == ("Ring", "LL128", 8)


@pytest.mark.slow
def test_a_table_whose_rows_all_take_effect(tmp_path: Path) -> None:
    table = tmp_path / "t"
    table.write_text("nccl-tuner-table 1\nallreduce bytes=..1M -> ring/simple channels=2\nreduce -> ring/ll\n")
    done = run("plugin", "lint", "--libnccl", str(table), *ON, "2.28.9")
    assert done.stdout.startswith("every row for this communicator takes effect: 2 of 2 rows seen to\n")
    assert "Ring/Simple x1" in done.stdout


def test_an_exported_table_is_not_ignored_in_silence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_TUNER_TABLE", str(tmp_path / "t"))
    said = run("pick", "--libnccl", "allreduce", "--machine", "dgx-h100", "--nccl", "2.28.9", "--bytes", "8").stderr
    assert (
        "note: NCCL_TUNER_TABLE is set, and no plugin reads it here; `nccl-tuner plugin lint --libnccl` loads a table"
        in said
    )
