"""Children of libnccl that are ended at any moment leave no shared memory, no folder and no process."""

import contextlib
import os
import random
import re
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Set
from pathlib import Path
from typing import Any

import pytest

from tests.support import training_job
from tests.support.command_line import PYTHON
from tuner.base import scratch
from tuner.base.scratch import ScratchFolder

STARTING = """
import sys
from tuner.oracle.api import Oracle
from tuner.scenario import Scenario
with Oracle(Scenario("2.28.9", nodes=2, machine="dgx-h100").oracle_configuration()) as oracle:
    oracle.connected()
    print("there", flush=True)
    sys.stdin.read()
"""


def segments() -> set[str]:
    """Shared memory of libnccl that no process has open: what other tests use just now is not left."""
    there = {each for each in os.listdir("/dev/shm") if re.fullmatch(r"nccl-\w{6}", each)}
    return {each for each in there if not any(each.encode() in maps for maps in read_of_all("maps").values())}


def processes(folder: Path) -> set[int]:
    """Those that run the oracle's child for a process whose folder for temporary files is this one."""
    mark, environments = f"TMPDIR={folder}".encode(), read_of_all("environ")
    commands = read_of_all("cmdline")
    return {
        pid
        for pid, command in commands.items()
        if b"tuner.oracle.child" in command and mark in environments.get(pid, b"").split(b"\0")
    }


def read_of_all(what: str) -> dict[int, bytes]:
    """A file of /proc of each process that there is."""
    found = {}
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            with contextlib.suppress(OSError):
                found[int(each.name)] = (each / what).read_bytes()
    return found


def start(folder: Path) -> "subprocess.Popen[bytes]":
    env = {**os.environ, "TMPDIR": str(folder)}
    return subprocess.Popen(
        [PYTHON, "-c", STARTING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env,
        cwd=folder,
    )  # fmt: skip


def settled(left: Callable[[], Set[Any]]) -> Set[Any]:
    """What is still there when processes have had time to notice that nobody asks."""
    for _ in range(100):
        if not (now := left()):
            break
        time.sleep(0.1)
    return now


@pytest.mark.slow
@pytest.mark.parametrize("who", ["the child", "the parent"])
def test_children_that_are_killed_leave_nothing(who: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw, times = random.Random(7), int(os.environ.get("NCCL_TUNER_TEST_KILLS", "6"))
    before, seen = segments(), 0
    for number in range(times):
        with start(tmp_path) as parent:
            deadline = time.monotonic() + 60
            while number == 0 and not processes(tmp_path) and time.monotonic() < deadline:
                time.sleep(0.05)  # one of them has a child however slow the computer is
            time.sleep(draw.uniform(0.2, 3.0))
            seen += bool(processes(tmp_path))
            if who == "the parent":
                parent.send_signal(draw.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT]))
            else:
                for pid in processes(tmp_path):
                    if _parent(pid) == parent.pid:
                        os.kill(pid, signal.SIGKILL)
            parent.stdin.close()  # type: ignore[union-attr]
            parent.wait()
        assert settled(lambda: processes(tmp_path)) == set()
    assert seen
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    scratch.clear_left()  # as the next start does
    assert list(tmp_path.glob("nccl-tuner-oracle-*")) == []
    assert settled(lambda: segments() - before) == set()


def _segments_of(pids: Set[int]) -> set[str]:
    """Shared memory that these processes have open and that still has a name."""
    found = set[str]()
    for pid in pids:
        with contextlib.suppress(OSError):
            found |= set(re.findall(r"/dev/shm/(nccl-\w{6})$", Path(f"/proc/{pid}/maps").read_text(), re.M))
    return found


@pytest.mark.slow
def test_a_child_that_is_killed_while_it_has_shared_memory_leaves_none(tmp_path: Path) -> None:
    """NCCL takes the name away once all ranks have opened it, milliseconds later: the child is stopped in between."""
    before, seen = segments(), 0
    for _ in range(20):
        with start(tmp_path) as parent:
            while not (children := processes(tmp_path)) and parent.poll() is None:
                time.sleep(0.001)
            assert parent.stdout is not None
            while not _segments_of(children) and not select.select([parent.stdout], [], [], 0)[0]:
                time.sleep(0.001)
            for number in (signal.SIGSTOP, signal.SIGKILL):
                for pid in children:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, number)
                seen += bool(number == signal.SIGSTOP and _segments_of(children))
            parent.stdin.close()  # type: ignore[union-attr]
            parent.wait()
        if seen:
            break
    assert seen
    assert settled(lambda: segments() - before) == set()


@pytest.mark.parametrize("end", ["leave", "kill 1", "again"])
def test_programs_leave_no_shared_memory(end: str, tmp_path: Path) -> None:
    """That end without ending their communicators, are killed, or leave one of several behind."""
    before = segments()
    ran = training_job.run(tmp_path, "2.28.9", 2, ["allreduce 1024", "again", "allreduce 1024", end, "sleep 0.2"])
    assert ran.codes[0] == 0 or end != "again", ran.outputs
    assert "Init COMPLETE" in ran.outputs[0]
    assert segments() - before == set()


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])
    except OSError:
        return 0


def test_what_a_gone_process_left_is_cleared_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(scratch, "_SHARED", tmp_path / "shm")
    (tmp_path / "shm").mkdir()
    own = ScratchFolder("oracle")
    here = own.name.split("-oracle-")[1].rsplit("-", 3)[0]
    gone = tmp_path / f"nccl-tuner-oracle-{here}-{os.getpid()}-1-abcdefgh"  # this number, of another process
    of_others = [
        tmp_path / "nccl-tuner-oracle-x-1-1-abcdefgh",  # another host's
        tmp_path / f"nccl-tuner-{here}-notes",
        tmp_path / "nccl-tuner-data",
    ]
    for each in (gone, *of_others):
        each.mkdir()
        (each / "x").touch()
    link = tmp_path / f"nccl-tuner-oracle-{here}-{os.getpid()}-2-abcdefgh"
    link.symlink_to(of_others[2])
    (gone / scratch.IN_THE_OPEN).touch()
    for name in ("nccl-abcdef", "nccl-abcdef-other", "other"):
        (tmp_path / "shm" / name).touch()
    ScratchFolder("oracle").cleanup()
    assert not gone.exists()
    assert all(each.is_dir() for each in (*of_others, Path(own.name)))
    assert sorted(each.name for each in (tmp_path / "shm").iterdir()) == ["nccl-abcdef-other", "other"]
    own.cleanup()
