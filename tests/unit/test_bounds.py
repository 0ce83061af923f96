"""Files just over a reader's bounds: refused in one line that says how to raise them, in little memory and time."""

import gzip
import pickle
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import COMMAND, run
from tuner.base import bounds
from tuner.base.bounds import DECLARED, VARIABLE, ReaderBounds
from tuner.base.errors import BadInput
from tuner.base.files import read_bytes

LINE = b"node0:12:34 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read\n"
MOST_MB, MOST_S = 600, 20


def repeated(path: Path, unpacked: int) -> Path:
    with gzip.open(path, "wb", compresslevel=1) as file:
        piece = LINE * 10_000
        for _ in range(unpacked // len(piece) + 1):
            file.write(piece)
    return path


def huge_sizes(path: Path) -> Path:
    entry: dict[str, Any] = {
        "profiling_name": "nccl:all_reduce",
        "input_sizes": [[10**4000] * 400] * 50,
        "output_sizes": [],
    }
    entry |= {
        "output_sizes": [],
        "input_dtypes": ["Float"],
        "process_group": ["0", "x"],
        "state": "completed",
        "collective_seq_id": 1,
    }
    value = {"version": "2.4", "entries": [entry] * 200, "pg_config": {"0": {"ranks": "[0, 1]"}}}
    path.write_bytes(pickle.dumps(value, 2))
    return path


SCHEMA = (
    "CREATE TABLE NVTX_PAYLOAD_SCHEMAS (domainId, schemaId, name); CREATE TABLE NVTX_PAYLOAD_SCHEMA_ENTRIES (domainId, "
    "schemaId, idx, name, type, offset); CREATE TABLE StringIds (id, value);"
)
COLUMNS = "globalTid, start, [end], text, textId, eventType, binaryData, domainId"


def database(path: Path, more: str) -> Path:
    with closing(sqlite3.connect(path)) as opened:
        opened.executescript(SCHEMA + more)
        opened.commit()
    return path


def recursive_view(path: Path) -> Path:
    with closing(sqlite3.connect(path)) as opened:
        opened.executescript(SCHEMA.replace("CREATE TABLE StringIds (id, value);", ""))
        opened.execute(f"CREATE TABLE NVTX_EVENTS ({COLUMNS})")
        opened.execute("INSERT INTO NVTX_EVENTS VALUES (1, 1, 2, NULL, 1, 59, x'00', 1)")
        opened.execute(
            "CREATE VIEW StringIds AS WITH RECURSIVE c(id, value) AS (SELECT 1, 'x' UNION ALL SELECT id + 1, 'x' FROM c"
            ") SELECT id, value FROM c"
        )
        opened.commit()
    return path


def generated_column(path: Path) -> Path:
    large = "binaryData GENERATED ALWAYS AS (zeroblob(500000000)) VIRTUAL"
    table = f"CREATE TABLE NVTX_EVENTS ({COLUMNS.replace('binaryData', large)});"
    return database(path, table + "INSERT INTO NVTX_EVENTS VALUES (1, 1, 2, NULL, 1, 59, 1);")


def nested(path: Path) -> Path:
    path.write_text("[" + ",".join(["[]"] * 2_500_000) + "]")
    return path


def short_lines(path: Path) -> Path:
    path.write_bytes(b"ab\n" * 5_000_000)
    return path


def long_words(path: Path) -> Path:
    """Words without an end, of which a search that begins anew at each letter takes the square."""
    words = ["x" * 60_000, "1" * 60_000, "x_" * 30_000, " " * 60_000, "x:" * 30_000, "n:1:1 [0] NCCL " * 4000]
    path.write_text("".join(f"{word}\n{word}{mark}{word}\n" for word in words * 3 for mark in MARKS))
    return path


# What makes a reader look closer at a line.
MARKS = (
    " NCCL INFO ",
    " NCCL WARN Cuda failure ",
    ": opCount ",
    " [Symmetric]: ",
    " Bytes -> Algo ",
    "# all_reduce_perf ",
)
FILES: dict[str, Callable[[Path], Path]] = {
    "log.gz": lambda path: repeated(path, 1000 << 20),
    "log within.gz": lambda path: repeated(path, 90 << 20),
    "dump_0": huge_sizes,
    "view.sqlite": recursive_view,
    "generated.sqlite": generated_column,
    "nested.json": nested,
    "short.log": short_lines,
    "words.log": long_words,
}
COMMANDS = {
    "diagnose": ["diagnose", "{}"],
    "budget": ["budget", "{}", "--machine", "dgx-h100"],
    "verify": ["verify", "{}", "--machine", "dgx-h100"],
    "accept": ["accept", "{}", "--machine", "dgx-h100"],
    "log": ["log", "{}"],
    "lint": ["plugin", "lint", "{}"],
    "convert": ["plugin", "convert", "{}", "--to", "table"],
    "dry-run": ["plugin", "dry-run", "{}", "allreduce", "--machine", "dgx-h100"],
    "stats": ["plugin", "stats", "{}"],
    "pick": ["pick", "allreduce", "--log", "{}"],
    "cost report": ["cost", "report", "{}", "--machine", "dgx-h100"],
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Each of the files by its name, made once: the commands only read it."""
    folder = tmp_path_factory.mktemp("hostile")
    return cache(lambda file: FILES[file](folder / file))


def measured(words: list[str]) -> tuple[subprocess.CompletedProcess[str], float, float]:
    """What a command says, its memory in MB and its CPU seconds. It is ended beyond twice the memory allowed."""
    program = (
        "import os, resource, subprocess, sys\n"
        f"resource.setrlimit(resource.RLIMIT_CPU, ({4 * MOST_S}, {4 * MOST_S}))\n"
        "done = subprocess.run(sys.argv[1:])\n"
        "used = resource.getrusage(resource.RUSAGE_CHILDREN)\n"
        "print('USED', used.ru_maxrss // 1024, used.ru_utime + used.ru_stime, file=sys.stderr)\n"
        "sys.exit(done.returncode)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, COMMAND, *words], capture_output=True, text=True, check=False)
    *_, mb, seconds = done.stderr.splitlines()[-1].split()
    return done, float(mb), float(seconds)


# What reads each as it is written, with every file by the command that reads all.
PAIRS = [(file, "diagnose") for file in FILES] + [
    (file, command) for file in ("log.gz", "short.log", "words.log") for command in COMMANDS
]


@pytest.mark.heavy
@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "command"), [*PAIRS, *((file, "budget") for file in FILES if (file, "budget") not in PAIRS)]
)
def test_a_hostile_file_takes_little_memory_and_time(file: str, command: str, made: Callable[[str], Path]) -> None:
    path = made(file)
    assert path.stat().st_size < 50 << 20
    done, mb, seconds = measured([word.format(path) for word in COMMANDS[command]])
    assert "Traceback" not in done.stderr
    assert done.returncode in (0, 1, 2, 3)
    assert mb < MOST_MB, f"{mb} MB"
    assert seconds < MOST_S, f"{seconds} s"


@pytest.mark.parametrize("file", ["log.gz", "nested.json", "short.log"])
def test_the_error_says_how_to_raise_the_bound(file: str, made: Callable[[str], Path]) -> None:
    done = run("budget", str(made(file)), "--machine", "dgx-h100", code=2)
    assert f"{VARIABLE}=N" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_raised_bound_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = ReaderBounds("a test's", unpacked_bytes=1000, lines=10)
    DECLARED.remove(small)
    (tmp_path / "lines").write_bytes(b"x\n" * 11)
    (tmp_path / "packed.gz").write_bytes(gzip.compress(b"x" * 1001))
    for name in ("lines", "packed.gz"):
        with pytest.raises(BadInput, match=r"too large: .*; valid: up to .*NCCL_TUNER_BOUNDS=N"):
            read_bytes(tmp_path / name, BadInput, bounds=small)
    monkeypatch.setenv(VARIABLE, "1.2")
    for name in ("lines", "packed.gz"):
        read_bytes(tmp_path / name, BadInput, bounds=small)
    for wrong in ("nan", "-1", "0.5", "inf", "x", ""):
        monkeypatch.setenv(VARIABLE, wrong)
        assert bounds.factor() == 1.0


def test_a_query_that_never_ends_is_ended(tmp_path: Path) -> None:
    short = ReaderBounds("a test's", seconds=0.2)
    DECLARED.remove(short)
    path = database(tmp_path / "x", "CREATE TABLE t (a); INSERT INTO t VALUES (1);")
    endless = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT max(x) FROM c"

    def asked() -> None:
        with bounds.database(path, None, BadInput, short) as opened:
            opened.set_authorizer(None)
            opened.execute(endless).fetchall()

    with pytest.raises(BadInput, match="the time of its queries"):
        asked()


def test_the_docs_list_every_reader_with_bounds_and_tests_that_there_are() -> None:
    import importlib
    import pkgutil

    import tuner

    for module in pkgutil.walk_packages(tuner.__path__, "tuner."):
        if ".bench." not in module.name and "__main__" not in module.name and ".child" not in module.name:
            importlib.import_module(module.name)
    page = Path(__file__).parents[2] / "docs" / "bounds.md"
    rows = [bounds.row(each) for each in sorted(set(DECLARED), key=lambda each: each.what)]
    assert "\n".join(rows) in page.read_text("utf-8")
    named = re.findall(r"`(\w+/test_\w+\.py)`", page.read_text("utf-8"))
    assert len(named) > 20
    assert all((page.parents[1] / "tests" / each).is_file() for each in named)
