"""What the plugin counts and writes, and what `plugin stats` makes of it."""

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.command_line import run
from tuner.base.errors import BadInput
from tuner.base.names import Collective
from tuner.plugin import stats
from tuner.plugin.dry_run import WARN, DryRun, TunerCall
from tuner.plugin.stats import RowCount, Undecided

AR = Collective.AllReduce
ROWS = """nccl-tuner-table 1
allreduce bytes=..9 -> nvls/simple | ring/ll
allreduce bytes=10..19 -> nvls/simple
allreduce bytes=20..29 -> tree/ll
cost reduce bytes=..99 -> ring/ll latency-us=1 bandwidth-gbs=1
cost reduce bytes=100.. -> ring/ll never
allgather -> nccl
"""


def cells() -> Any:
    own = np.full((7, 3), 7, np.float32)
    own[4] = -1  # no NVLS
    return own


def table(folder: Path, content: str = ROWS) -> Path:
    path = folder / "t"
    path.write_text(content)
    return path


def counted(path: Path, pattern: Path | str, sizes: tuple[int, ...] = (), **shape: int) -> DryRun:
    with DryRun(path, env={"NCCL_TUNER_STATS": str(pattern)}, **({"ranks": 4, "nodes": 2} | shape)) as plugin:
        for size in sizes:
            plugin.ask(TunerCall(AR, size), cells())
    return plugin


def test_a_line_has_every_count(tmp_path: Path) -> None:
    out = tmp_path / "s.%h.%p.%c%%"
    with DryRun(table(tmp_path), ranks=4, nodes=2, env={"NCCL_TUNER_STATS": str(out)}) as plugin:
        for size in (3, 4, 12, 15, 20000, 16385, 70):
            plugin.ask(TunerCall(AR, size), cells())
        for size in (5, 6):
            plugin.ask(TunerCall(Collective.Reduce, size), cells())
    host = socket.gethostname().partition(".")[0]
    (written,) = (path for path in tmp_path.iterdir() if path.name.startswith("s."))
    assert written.name == f"s.{host}.{os.getpid()}.{1:016x}%"
    (line,) = written.read_text().splitlines()
    record = json.loads(line)
    assert len(record.pop("sha256")) == 64
    assert record.pop("build").startswith("nccl-tuner-plugin ")
    assert 0 <= record.pop("ended") - record.pop("started") < 3600
    assert record == {
        "nccl_tuner_stats": 1,
        "rank": None,
        "nccl": None,
        "host": host,
        "pid": os.getpid(),
        "commId": "0x1",
        "ranks": 4,
        "nodes": 2,
        "table": str(tmp_path / "t"),
        "calls": 9,
        "decided": 2,
        "could_not_run": 2,
        "costed": 2,
        "rows": [
            {"line": 2, "decided": 2, "could_not_run": 0},
            {"line": 3, "decided": 0, "could_not_run": 2},
        ],
        "costs": [{"line": 5, "calls": 2}],
        "never_matched": [[4, 4], [6, 6]],
        "undecided": [
            {
                "collective": "AllReduce",
                "reason": "no row",
                "least_bytes": 70,
                "most_bytes": 70,
                "calls": 1,
                "bytes": 70,
            },
            {
                "collective": "AllReduce",
                "reason": "no row",
                "least_bytes": 16385,
                "most_bytes": 20000,
                "calls": 2,
                "bytes": 36385,
            },
            {
                "collective": "AllReduce",
                "reason": "could not run",
                "least_bytes": 12,
                "most_bytes": 15,
                "calls": 2,
                "bytes": 27,
            },
        ],
    }


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_a_host_is_named_up_to_the_first_dot(tmp_path: Path) -> None:
    """On a computer of another name, whatever this one's is."""
    shim = tmp_path / "shim.c"
    shim.write_text(
        "#include <stddef.h>\n#include <string.h>\n"
        'int gethostname(char *name, size_t length) { strncpy(name, "node7.rack.example", length); return 0; }\n'
    )
    subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "shim.so", shim], check=True)
    code = (
        "import sys; from pathlib import Path\n"
        "from tuner.base.names import Collective; from tuner.plugin.dry_run import DryRun, TunerCall\n"
        "import numpy as np\n"
        "with DryRun(Path(sys.argv[1]), ranks=4, nodes=2, env={'NCCL_TUNER_STATS': sys.argv[2]}) as plugin:\n"
        "    plugin.ask(TunerCall(Collective.AllReduce, 3), np.full((7, 3), 7, np.float32))\n"
    )
    command = [sys.executable, "-c", code, str(table(tmp_path)), str(tmp_path / "s.%h")]
    subprocess.run(command, check=True, env={**os.environ, "LD_PRELOAD": str(tmp_path / "shim.so")})
    (line,) = (tmp_path / "s.node7").read_text().splitlines()
    assert json.loads(line)["host"] == "node7"


def test_the_first_time_a_row_decides_is_said(tmp_path: Path) -> None:
    with DryRun(table(tmp_path), ranks=4, nodes=2) as plugin:
        before = len(plugin.log)
        with plugin._listen(plugin.log):
            for size in (3, 4, 25, 26, 12, 99):
                plugin.ask(TunerCall(AR, size), cells())
        said = [line.text for line in plugin.log[before:]]
    first = "decides for the first time here: AllReduce of"
    assert [line.partition(": ")[2] for line in said[:2]] == [
        f"line 2 {first} 3 bytes by Ring/LL",
        f"line 4 {first} 25 bytes by Tree/LL",
    ]


def test_rows_that_fall_through_count_the_first_and_the_one_that_decides(tmp_path: Path) -> None:
    lines = [f"allreduce,0,9,{choice},-1,-1,-1\n" for choice in ("nvls,simple", "nvls,simple", "ring,ll", "tree,ll")]
    counted(table(tmp_path, "".join(lines)), tmp_path / "s", (1, 2, 3))
    found = stats.read([tmp_path / "s"]).tables[0].counts
    assert found.rows == (RowCount(1, 0, 3), RowCount(3, 3, 0))
    assert (found.decided, found.could_not_run, found.undecided) == (3, 0, ())


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("/nowhere/s", "errno 2"),
        ("{}", "errno 21"),
        ("{}/s.%x", "valid after a percent sign"),
        ("{}/s%", "percent sign"),
        ("/dev/full", "errno 28"),
        ("{}/fifo", "errno 6"),
    ],
)
def test_what_cannot_be_written_is_one_warning(pattern: str, reason: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    log = counted(table(tmp_path), pattern.format(tmp_path), (1,)).log
    warnings = [line.text for line in log if line.level == WARN]
    assert len(warnings) == 1
    assert reason in warnings[0]
    assert "no statistics" in warnings[0]


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("kept")
    (tmp_path / "s").symlink_to(tmp_path / "mine")
    log = counted(table(tmp_path), tmp_path / "s", (1,)).log
    assert "errno 40" in next(line.text for line in log if line.level == WARN)
    assert (tmp_path / "mine").read_text() == "kept"


def test_files_are_summed(tmp_path: Path) -> None:
    path = table(tmp_path)
    counted(path, tmp_path / "a", (3, 12, 300))
    counted(path, tmp_path / "a", (25, 301))
    counted(path, tmp_path / "b", (25,), ranks=8)
    found = stats.read([tmp_path / "a", tmp_path / "b"])
    assert not found.disagreements
    (one,) = found.tables
    assert (one.communicators, one.counts.calls, one.counts.decided) == (3, 6, 3)
    assert one.counts.rows == (RowCount(2, 1, 0), RowCount(3, 0, 1), RowCount(4, 2, 0))
    assert one.counts.never_matched == ((5, 6),)
    assert Undecided("AllReduce", "no row", 300, 301, 2, 601) in one.counts.undecided
    shown = run("plugin", "stats", str(tmp_path / "a"), str(tmp_path / "b"))
    assert "lines 5 to 6: never matched" in shown.stdout
    assert "AllReduce bytes=300..301: no row: 2 calls, 601 bytes" in shown.stdout


def test_ranks_with_different_tables_are_named(tmp_path: Path) -> None:
    counted(table(tmp_path), tmp_path / "a", (3,))
    (tmp_path / "other").mkdir()
    counted(table(tmp_path / "other", f"{ROWS}allgather -> ring/ll\n"), tmp_path / "b")
    shown = run("plugin", "stats", str(tmp_path / "a"), str(tmp_path / "b"), code=1)
    assert "different tables: commId 0x1, 4 ranks on 2 nodes" in shown.stdout


def test_a_rank_without_its_table_is_named(tmp_path: Path) -> None:
    counted(table(tmp_path), tmp_path / "a", (3,))
    counted(tmp_path / "missing", tmp_path / "b")
    counted(tmp_path / "gone", tmp_path / "b")
    read = stats.read([tmp_path / "a", tmp_path / "b"])
    (found,) = read.disagreements
    assert "none" in found.tables
    assert found.paths["none"] == [str(tmp_path / "missing"), str(tmp_path / "gone")]
    assert [one.table for one in read.tables if one.sha256 is None] == found.paths["none"]
    shown = run("plugin", "stats", str(tmp_path / "a"), str(tmp_path / "b"), code=1).stdout
    assert f"  no table that could be used ({tmp_path}/missing, {tmp_path}/gone) on " in shown
    assert f"{tmp_path}/gone: 1 ranks of communicators could not use it" in shown


@pytest.mark.parametrize(
    "content",
    ["", "x\n", "{}\n", '{"nccl_tuner_stats": 2}\n', "[1]\n", '{"nccl_tuner_stats": 1, "host": "here"}\n'],
)
def test_what_is_no_line_of_the_plugins(content: str, tmp_path: Path) -> None:
    (tmp_path / "s").write_text(content)
    with pytest.raises(BadInput, match="statistics"):
        stats.read([tmp_path / "s"])
