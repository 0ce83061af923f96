"""Counts that can be read while a job runs, and after it was killed: what the plugin maps, and how it is shown."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np

from tests.support.command_line import run
from tests.support.operations import calls_of
from tuner import plugin
from tuner.base.names import Collective
from tuner.plugin import live
from tuner.plugin.dry_run import WARN, DryRun, TunerCall

COSTS = np.full((7, 3), 10, np.float32)
TABLE = """nccl-tuner-table 1
allreduce bytes=..1K -> ring/ll | tree/ll
allreduce bytes=2K..4K -> tree/ll
allreduce bytes=1M -> nccl
cost reduce -> ring/ll latency-us=1 bandwidth-gbs=2
"""


def opened(folder: Path, table: Path, **env: str) -> DryRun:
    return DryRun(table, ranks=16, nodes=2, env={"NCCL_TUNER_LIVE": str(folder), **env})


def table_in(folder: Path) -> Path:
    (folder / "t").write_text(TABLE)
    return folder / "t"


def test_what_is_counted_shows_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "live"
    with opened(folder, table_in(tmp_path), RANK="3") as one:
        for number in (5, 6, 5000):
            one.ask(TunerCall(Collective.AllReduce, number), COSTS)
        one.ask(TunerCall(Collective.Reduce, 9), COSTS)
        (counts,) = live.read([folder])
        assert (counts.decided, counts.costs, counts.lines) == ({2: 2}, {5: 1}, {2, 3, 5})
        assert (counts.calls, counts.ranks, counts.nodes, counts.communicator) == (4, 16, 2, 1)
        assert (counts.pid, counts.rank, counts.runs, counts.refused) == (os.getpid(), 3, True, None)
        assert counts.build.startswith("nccl-tuner-plugin ")
        (table,) = live.tables([counts])
        assert [(row.line, row.calls, row.on) for row in table.rows] == [(2, 2, 1), (5, 1, 1)]
        assert table.never == (3,)
        assert "4 calls" in run("plugin", "stats", str(folder)).stdout.splitlines()[0]
    assert not list(folder.iterdir()), "the communicator has ended"


def test_a_child_leaves_what_its_parent_counts(tmp_path: Path) -> None:
    """A child that was forked may end its parent's communicators, as up to NCCL 2.21 ncclCommAbort does there."""
    with opened(tmp_path / "live", table_in(tmp_path)) as one:
        if (child := os.fork()) == 0:
            one.__exit__(None, None, None)
            os._exit(0)
        assert os.waitpid(child, 0) == (child, 0)
        assert [counts.pid for counts in live.read([tmp_path / "live"])] == [os.getpid()]


def test_a_process_that_was_killed_leaves_its_counts(tmp_path: Path) -> None:
    code = (
        "import sys, time; from tests.plugin.test_live import *\n"
        "one = opened(Path(sys.argv[1]), Path(sys.argv[2]))\n"
        "one.ask(TunerCall(Collective.AllReduce, 5), COSTS); print('asked', flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "live"), str(table_in(tmp_path))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "RANK": "7"}) as process:
        assert process.stdout
        assert process.stdout.readline() == b"asked\n"
        process.send_signal(signal.SIGKILL)
    (counts,) = live.read([tmp_path / "live"])
    assert (counts.rank, counts.decided[2], counts.runs) == (7, 1, False)
    assert "1 from processes that have ended" in run("plugin", "stats", str(tmp_path / "live")).stdout


def test_a_table_that_is_not_used_shows(tmp_path: Path) -> None:
    folder = tmp_path / "live"
    with opened(folder, table_in(tmp_path)), opened(folder, tmp_path / "gone"), opened(folder, tmp_path / "gone"):
        done = run("plugin", "stats", str(folder), code=1)
        assert "1 WITHOUT THEIR TABLE" in done.stdout.splitlines()[0]
        assert f"{tmp_path}/gone: No such file or directory" in done.stdout
        assert "DIFFERENT TABLES" in done.stdout
    assert json.loads(run("plugin", "stats", str(folder), "--json", code=1).stdout)["ranks"][0]["refused"]


def test_metrics_that_cannot_be_written_name_the_file_that_was_asked_for(tmp_path: Path) -> None:
    out = tmp_path / "none" / "nccl.prom"
    said = run("plugin", "stats", "--prometheus", str(tmp_path), "--out", str(out), code=2).stderr
    assert said == f"nccl-tuner: {out}: No such file or directory\n"


def test_metrics_are_prometheus_text(tmp_path: Path) -> None:
    folder, out = tmp_path / "live", tmp_path / "nccl.prom"
    with opened(folder, table_in(tmp_path)) as one:
        one.ask(TunerCall(Collective.AllReduce, 5), COSTS)
        run("plugin", "stats", "--prometheus", str(folder), "--out", str(out))
    lines = out.read_text().splitlines()
    assert "# TYPE nccl_tuner_row_decided_total counter" in lines
    (decided,) = (line for line in lines if line.startswith("nccl_tuner_row_decided_total{"))
    assert decided.endswith(',line="2"} 1')
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_a_folder_that_cannot_be_made_is_one_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with opened(tmp_path / "file", table_in(tmp_path)) as one:
        (warning,) = (line.text for line in one.log if line.level == WARN)
        assert "nobody can look at the counts while they run (NCCL_TUNER_LIVE)" in warning
        one.ask(TunerCall(Collective.AllReduce, 5), COSTS)
    assert "1 decided by the table" in one.log[-1].text


def test_a_file_that_may_not_grow_so_far_is_one_warning(tmp_path: Path) -> None:
    """The signal for it would kill the process."""
    code = (
        "import sys, resource; from tests.plugin.test_live import *\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_DFL)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))\n"
        "one = opened(Path(sys.argv[1]), Path(sys.argv[2])); one.ask(TunerCall(Collective.AllReduce, 5), COSTS)\n"
        "print(*(line.text for line in one.log if line.level == WARN))"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "live"), str(table_in(tmp_path))]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout.count("nobody can look at the counts")) == (0, 1), done
    assert not list((tmp_path / "live").iterdir())


def test_files_of_others_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"ncclt01\0")
    (tmp_path / "y").write_bytes(bytes(5000))
    (tmp_path / "z").write_bytes(b"ncclt01\0" + b"\xff" * 5000)
    assert live.read([tmp_path]) == []
    assert "no counts" in run("plugin", "stats", str(tmp_path)).stdout
    assert "No such file" in run("plugin", "stats", str(tmp_path / "no"), code=2).stderr


def test_what_others_put_into_the_folder_neither_waits_nor_floods(tmp_path: Path) -> None:
    """The folder is one that everybody may write, and who looks at it is root."""
    folder = tmp_path / "live"
    with opened(folder, table_in(tmp_path), RANK="3") as one:
        one.ask(TunerCall(Collective.AllReduce, 5), COSTS)
        content = next(folder.iterdir()).read_bytes()
        os.mkfifo(folder / "fifo")
        (folder / "zero").symlink_to("/dev/zero")
        (folder / "writable").write_bytes(content)
        (folder / "writable").chmod(0o666)
        for cut in (0, 8, 100, len(content) - 1):
            (folder / f"cut{cut}").write_bytes(content[:cut])
        for at in range(8, 128, 8):  # a number of the head
            for value in (b"\xff" * 8, bytes(8), (10**9).to_bytes(8, "little")):
                (folder / f"number{at}.{value[0]}").write_bytes(content[:at] + value + content[at + 8 :])
        done = run("plugin", "stats", str(folder), "--json")
    assert [each["pid"] for each in json.loads(done.stdout)["ranks"]].count(os.getpid()) >= 1
    assert f"left out: {folder}/" in done.stderr


def test_the_build_shows_in_the_object() -> None:
    assert b"nccl-tuner-plugin " in plugin.path().read_bytes()


def test_a_look_at_many_ranks_takes_no_longer_where_the_table_has_many_rows(tmp_path: Path) -> None:
    def calls(rows: int) -> int:
        table, alone, many = (tmp_path / f"{name}{rows}" for name in ("table", "alone", "many"))
        lines = (f"allreduce bytes={at * 64}..{at * 64 + 63} -> ring/ll channels={at % 16 + 1}\n" for at in range(rows))
        table.write_text("".join(["nccl-tuner-table 1\n", *lines]))
        with opened(alone, table, RANK="3") as one:
            for number in range(64, 640, 64):
                one.ask(TunerCall(Collective.AllReduce, number), COSTS)
            content = next(alone.iterdir()).read_bytes()
        many.mkdir()
        for rank in range(64):
            (many / f"host.{rank}.0").write_bytes(content)
        (found,) = live.tables(live.read([many]))
        assert (found.calls, len(found.rows), len(found.never)) == (64 * 9, 9, rows - 9)
        return calls_of(lambda: live.tables(live.read([many])))

    few = calls(100)
    assert few / 64 < 350
    assert calls(10_000) < 1.05 * few
