"""What hostile files and failing machines could once do to this program, where no other test does it.

By the command line alone, so that each can be seen to fail on an older build, as docs/bounds.md lists them all:
``NCCL_TUNER_TEST_BUILD=FOLDER``, a checkout with its environment in .venv.
"""

import os
import re
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.command_line import PYTHON, run_process

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
pytestmark = pytest.mark.slow


def test_names_of_files_in_json(tmp_path: Path) -> None:
    (tmp_path / "a `nodes` b.log").write_bytes((EXAMPLES / "nccl.log").read_bytes())
    done = run_process("diagnose", "a `nodes` b.log", "--json", code=None, cwd=tmp_path)
    assert "a `nodes` b.log" in done.stdout


def test_folders_of_others_below_the_cache(tmp_path: Path) -> None:
    mine = tmp_path / "src" / "fetch-api" / "code.c"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    (tmp_path / "2.27.3").mkdir()
    (tmp_path / "2.27.3" / "fetch-notes").write_text("mine")
    env = {"NCCL_TUNER_CACHE": str(tmp_path), "PIP_INDEX_URL": "http://127.0.0.1:9", "PIP_RETRIES": "0"}
    done = run_process("fetch-nccl", "2.28.9", code=2, cwd=tmp_path, env=env)
    assert "cannot download" in done.stderr
    assert mine.read_text() == "mine"


LEARNT = """
from tuner.release import learnt
name = "2.28.9@0123456789abcdef"
changes = {"limits.data_types": 11, "threads.ring.ll.default": 512}
file = learnt.keep(name, learnt.text(name, "2.28.9", learnt.LearntFrom(FROM, "0" * 64, 10, 10), changes))
if CUT:
    lines = file.read_text().splitlines(keepends=True)
    while "512" not in lines.pop():
        pass
    file.write_text("".join(lines))
import tomllib
print(sorted(tomllib.loads(learnt.text_of(name))))
"""


@pytest.mark.parametrize("how", ["cut", "nowhere", "a line's end"])
def test_what_was_learnt_and_not_kept(how: str, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    if how == "nowhere":
        cache.write_text("a file")
    library = "/x/\n[a]\nb = 1/libnccl.so.2" if how == "a line's end" else "/x/libnccl.so.2"
    program = LEARNT.replace("FROM", repr(library)).replace("CUT", str(how == "cut"))
    env = {**os.environ, "NCCL_TUNER_CACHE": str(cache)}
    done = subprocess.run([PYTHON, "-c", program], env=env, capture_output=True, text=True, cwd=tmp_path, check=False)
    if how == "cut":
        assert (done.returncode, "it was cut or changed" in done.stderr) == (1, True), done.stdout
    elif how == "nowhere":
        assert (done.returncode, "nothing can be learnt" in done.stderr) == (1, True), done.stdout
    else:
        assert (done.returncode, "'a'" in done.stdout) == (0, False), done.stderr


@pytest.mark.parametrize("reason", ["", "a\rb", "a\udce9b"])
def test_a_switch_and_a_clock_that_was_ahead(reason: str, tmp_path: Path) -> None:
    (tmp_path / "switch").write_text(f"off {int(time.time()) + 10**4}" + "\n" * bool(reason))
    words = ["plugin", "switch", "switch", "on", *(["--reason", reason] if reason else [])]
    run_process(*words, code=None, cwd=tmp_path)
    lines = (tmp_path / "switch").read_text("ascii", "strict").splitlines()
    times = [int(line.split()[1]) for line in lines if re.fullmatch(r"(?:on|off) \d+(?: # .*)?", line)]
    assert (times, len(times)) == (sorted(times), len(lines))


@pytest.mark.parametrize("what", ["FIFO", "link", "damaged"])
def test_counts_in_a_folder_that_all_may_write(what: str, tmp_path: Path) -> None:
    (folder := tmp_path / "counts").mkdir()
    if what == "FIFO":
        os.mkfifo(folder / "x")
    elif what == "link":
        (folder / "x").symlink_to("/dev/zero")
    else:
        head = b"ncclt01\0" + b"".join(n.to_bytes(8, "little") for n in (2000, 1, 5, 8, 1, 7, 0, 22809, 0, 10**9, 3, 4))
        (folder / "x").write_bytes(head.ljust(2000, b"\xff"))
    done = run_process("plugin", "stats", str(folder), code=None, memory_mb=3000)
    assert done.returncode in (0, 1, 2, 3)
    assert "MemoryError" not in done.stderr
