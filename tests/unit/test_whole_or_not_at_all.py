"""Outputs are written whole or not at all: a full disk, an error or a link leaves what was there."""

import ast
import os
import re
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import structure
from tests.support.command_line import COMMAND, run
from tuner.base.errors import BadInput
from tuner.base.files import check_writable, recall, recall_own, replacing, write_bytes, write_text


def test_what_ends_in_the_middle_leaves_the_old_file(tmp_path: Path) -> None:
    file = tmp_path / "x"
    write_text(file, "old")

    def broken() -> None:
        with replacing(file) as to:
            to.write_text("half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        broken()
    assert (file.read_text(), os.listdir(tmp_path)) == ("old", ["x"])


@pytest.mark.parametrize(
    "words",
    [
        ["machines", "dgx-h100", "--out"],
        ["plot", "curves", "allreduce", "--machine", "dgx-h100", "--nodes", "2", "--out"],
        ["budget", "docs/examples/job.csv", "--machine", "dgx-h100", "--nodes", "2", "--parquet"],
        ["export", "allreduce", "--format", "goal", "--machine", "dgx-h100", "--bytes", "1M", "--out"],
    ],
    ids=["topology", "picture", "parquet", "schedule"],
)
def test_a_full_disk_leaves_the_old_file(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / ("x.svg" if "plot" in words else "x")
    file.write_text("old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    done = run(*words, str(file), code=2)
    assert "No space left on device" in done.stderr
    assert (file.read_text(), os.listdir(tmp_path)) == ("old", [file.name])


def test_a_link_stays_and_its_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "to").write_text("old")
    (tmp_path / "to").chmod(0o640)
    (tmp_path / "link").symlink_to("to")
    write_bytes(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "to").read_text() == "new"
    assert stat.S_IMODE((tmp_path / "to").stat().st_mode) == 0o640


def test_devices_and_pipes_are_written_themselves(tmp_path: Path) -> None:
    write_text(Path("/dev/null"), "x")
    reader, writer = os.pipe()
    write_text(Path(f"/dev/fd/{writer}"), "through")
    assert os.read(reader, 100) == b"through"
    with pytest.raises(BadInput, match="Is a directory"):
        write_text(tmp_path, "x")


def test_a_look_ahead_leaves_nothing(tmp_path: Path) -> None:
    check_writable(tmp_path / "x")
    assert os.listdir(tmp_path) == []
    with pytest.raises(BadInput, match="No such file"):
        check_writable(tmp_path / "no" / "x")


def test_a_fifo_or_a_link_under_a_name_of_the_cache_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "folder").mkdir()
    for name in ("fifo", "zero", "folder"):
        assert recall(tmp_path / name) is None
        assert recall_own(tmp_path / name) is None


OUTPUTS = {
    "topology": ["machines", "dgx-h100", "--out", "x"],
    "picture": ["plot", "curves", "allreduce", "--machine", "dgx-h100", "--nodes", "2", "--out", "x.svg"],
    "parquet": ["budget", "{docs}/job.csv", "--machine", "dgx-h100", "--nodes", "2", "--parquet", "x"],
    "schedule": ["export", "allreduce", "--format", "goal", "--machine", "dgx-h100", "--bytes", "1M", "--out", "x"],
    "table": ["plugin", "convert", "{tables}/ours.table", "--to", "table", "--out", "x"],
}
MOUNTED = """
set -e; cd "$1"; shift
mount -t tmpfs -o size=64k none .
cd "$PWD"; echo old >"$1"; shift
case "$1" in
    full) dd if=/dev/zero of=rest bs=1k count=64 2>/dev/null || true ;;
    *) mount -o remount,ro . ;;
esac
shift; before=$(ls -A)
set +e; "$@"; code=$?
for each in *; do test "$each" = rest || cat "$each"; done
test "$(ls -A)" = "$before" || ls -A
exit $code
"""


@pytest.mark.slow
@pytest.mark.parametrize("state", ["full", "read-only"])
@pytest.mark.parametrize("output", OUTPUTS)
def test_a_file_system_that_takes_nothing_leaves_the_old_file(output: str, state: str, tmp_path: Path) -> None:
    """One of its own, of 64 KiB, where the system lets a user mount one."""
    own = ["unshare", "--mount", *(["--user", "--map-root-user"] if os.geteuid() else [])]
    if (
        not shutil.which("unshare")
        or subprocess.run([*own, "mount", "-t", "tmpfs", "none", tmp_path], check=False).returncode
    ):
        pytest.skip("no file system can be mounted here")
    docs, tables = (
        structure.ROOT / "docs" / "examples",
        structure.ROOT / "csrc" / "plugin" / "check" / "seeds" / "table",
    )
    words = [word.format(docs=docs, tables=tables) for word in OUTPUTS[output]]
    shell: list[str] = [*own, "sh", "-c", MOUNTED, "sh", str(tmp_path), words[-1], state, str(COMMAND), *words]
    done = subprocess.run(shell, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout) == (2, "old\n"), done.stderr
    assert ("No space left on device" if state == "full" else "Read-only file system") in done.stderr


# What else writes files, and why it may.
WRITERS = {
    "tuner/answers/charts/__init__.py": "a picture, in memory",
    "tuner/answers/charts/parts.py": "a picture, in memory",
    "tuner/base/files.py": "the functions that all others call",
    "tuner/bench/gpu/states.py": "lines are added while GPUs run",
    "tuner/bench/simulated.py": "a temporary folder",
    "tuner/cli/__init__.py": "streams that were closed",
    "tuner/cli/mcp.py": "standard output",
    "tuner/jobs/preflight/collect.py": "a script that runs without the package has a function of its own",
    "tuner/oracle/child/apart.py": "the kernel's own files",
    "tuner/oracle/library.py": "a temporary folder, from which files are moved",
    "tuner/oracle/preloaded.py": "a temporary folder",
    "tuner/oracle/process.py": "a temporary folder",
    "tuner/oracle/serving/__init__.py": "a temporary folder, from which files are moved",
    "tuner/plugin/rollout.py": "a line is added to a switch, and taken back where not all of it is written",
    "tuner/times/measured/samples.py": "lines are added while times are measured",
}
_WRITING = {"write_text", "write_bytes", "savefig", "write_parquet", "to_parquet", "write_table", "copyfileobj"}
_OPENING = {"open", "fdopen"}
OWN = ("files.write_text", "files.write_bytes", "formatter.write_text", "report.write_parquet")  # not of a Path
_MODE = re.compile(r"(?=[rbt]*[wxa+])[rwxabt+]{1,3}")


def writing(source: str) -> Iterator[str]:
    """Calls that write a file: by no function of tuner/base/files.py, and not inside its `replacing`."""
    tree, inside = ast.parse(source), set[ast.AST]()
    for node in ast.walk(tree):
        if isinstance(node, ast.With) and any("replacing(" in ast.unparse(item) for item in node.items):
            inside |= set(ast.walk(node))
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or node in inside:
            continue
        attribute = isinstance(node.func, ast.Attribute)
        name, said = ast.unparse(node.func).rpartition(".")[2], ast.unparse(node)
        modes = [
            each for each in (*node.args, *(word.value for word in node.keywords)) if isinstance(each, ast.Constant)
        ]
        opens = any(isinstance(each.value, str) and _MODE.fullmatch(each.value) for each in modes)
        opens = name in _OPENING and (opens or "O_WRONLY" in said or "O_RDWR" in said)
        own = said.partition("(")[0] in OWN
        if (opens or (name in _WRITING and attribute)) and not own:
            yield said


def test_one_place_writes_files() -> None:
    """All others call it, so that a full disk or an end in the middle leaves what was there."""
    found = {path for path, source in structure.sources().items() if [*writing(source)]}
    assert found == set(WRITERS)


def test_what_writes_a_file_is_seen() -> None:
    for line in ("open(x, 'w')", "x.open('r+b')", "x.open(mode='ab')", "x.write_text(y)", "os.open(x, os.O_WRONLY)"):
        assert [*writing(line)], line
    for line in ("open(x)", "x.open('rb')", "write_text(x, y)", "with replacing(x) as y:\n    y.write_text(z)"):
        assert not [*writing(line)], line
