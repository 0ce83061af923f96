"""What hostile files and failing machines could once do to this program: by the command line alone.

So each can be run on another build, to see that it fails there: ``NCCL_TUNER_TEST_BUILD=FOLDER``, a checkout with its
environment in .venv.
"""

import json
import os
import re
import resource
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import COMMAND, PYTHON

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
LIMIT_S = 90
ASKING = ("graphs", "--topology", "docs/examples/node.xml", "--nodes", "2", "--json")
pytestmark = pytest.mark.slow


def ran(
    *words: str | Path,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    memory_mb: int | None = None,
) -> subprocess.CompletedProcess[str]:
    """What a command says. It fails where it waits for ever, shows a traceback, or is ended by a signal."""

    def bounded() -> None:
        if memory_mb is not None:
            resource.setrlimit(resource.RLIMIT_AS, (memory_mb << 20, memory_mb << 20))

    index = {"PIP_INDEX_URL": "http://127.0.0.1:9", "PIP_RETRIES": "0"}
    done = subprocess.run(
        [COMMAND, *words], cwd=cwd, env={**os.environ, **index, **(env or {})}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, errors="replace", timeout=LIMIT_S, check=False, preexec_fn=bounded,
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr[-500:]
    assert done.returncode >= 0, done.stderr[-500:]
    return done


@pytest.mark.parametrize("attribute", ["pci_link_speed", "cpuset", "depth", "os_index", "gp_index"])
def test_an_attribute_that_is_no_number(attribute: str, tmp_path: Path) -> None:
    text = (EXAMPLES / "lstopo.xml").read_text("utf-8")
    (tmp_path / "x.xml").write_text(re.sub(rf'\b{attribute}="[^"]*"', f'{attribute}="0xzz"', text), "utf-8")
    for words in (["machines", "x.xml", "--gpu", "h100-sxm", "--nic-gbps", "400"], ["diagnose", "x.xml"]):
        ran(*words, cwd=tmp_path)


def test_names_of_files_in_json(tmp_path: Path) -> None:
    (tmp_path / "a `nodes` b.log").write_bytes((EXAMPLES / "nccl.log").read_bytes())
    done = ran("diagnose", "a `nodes` b.log", "--json", cwd=tmp_path)
    assert "a `nodes` b.log" in done.stdout


def test_folders_of_others_below_the_cache(tmp_path: Path) -> None:
    mine = tmp_path / "src" / "fetch-api" / "code.c"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    (tmp_path / "2.27.3").mkdir()
    (tmp_path / "2.27.3" / "fetch-notes").write_text("mine")
    done = ran("fetch-nccl", "2.28.9", cwd=tmp_path, env={"NCCL_TUNER_CACHE": str(tmp_path)})
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
    ran("plugin", "switch", "switch", "on", *(["--reason", reason] if reason else []), cwd=tmp_path)
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
    done = ran("plugin", "stats", folder, cwd=tmp_path, memory_mb=3000)
    assert done.returncode in (0, 1, 2, 3)
    assert "MemoryError" not in done.stderr


MISSED = [
    "no plugin", "another switch", "no job time", "a next tuner", "a table without its text", "one slower adapter",
    "RoCE", "a list that selects nothing", "another job", "another number of ranks", "another year",
    "another name of the host", "two hosts of one name",
]  # fmt: skip


def _other_form(path: Path) -> None:
    kept: Any = json.loads(path.read_text())
    path.write_text(json.dumps({**kept, "answer": 7} if "answer" in kept else 7))


@pytest.mark.parametrize("other", [os.mkfifo, _other_form], ids=["FIFO", "other JSON"])
def test_what_others_put_into_the_cache(other: Callable[[Path], object], tmp_path: Path) -> None:
    env, root = {"NCCL_TUNER_CACHE": str(tmp_path)}, EXAMPLES.parents[1]
    said = ran(*ASKING, cwd=root, env=env).stdout
    (kept,) = (each for each in tmp_path.rglob("*.json") if each.is_file())
    if other is os.mkfifo:
        kept.unlink()
    other(kept)
    assert ran(*ASKING, cwd=root, env=env).stdout == said


PICK = "pick allreduce --machine dgx-h100 --bytes 1M"
MEASURE = "measure --backend simulated --machine dgx-h100 --out x"


@pytest.mark.parametrize(
    "words",
    [
        *(f"{PICK} --libnccl --timeout {value}" for value in ("nan", "-1", "inf")),
        *(f"{MEASURE} {option} nan" for option in ("--precision", "--budget-s")),
        "order allreduce --machine dgx-h100 --bytes 64K --nodes 1048576",
        "export allreduce --format csv --machine dgx-h100 --bytes 1M --nodes 100000",
    ],
)
def test_numbers_without_an_end(words: str, tmp_path: Path) -> None:
    done = ran(*words.split(), cwd=tmp_path, memory_mb=3000)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr[-300:]


def test_a_thousand_adapters(tmp_path: Path) -> None:
    text = (EXAMPLES / "node.xml").read_text("utf-8")
    net = next(line for line in text.splitlines() if "<net " in line)
    (tmp_path / "x.xml").write_text(text.replace(net, net * 1000, 1), "utf-8")
    done = ran(
        "pick", "allreduce", "--topology", "x.xml", "--nodes", "2", "--bytes", "1M", cwd=tmp_path, memory_mb=3000
    )
    assert (done.returncode, "adapters" in done.stderr) == (2, True)
