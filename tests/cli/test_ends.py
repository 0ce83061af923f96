"""How a command ends that cannot go on: one line at most, never a traceback, and an exit code that is no answer."""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from tests.support.command_line import COMMAND, run

ON = ("--machine", "dgx-h100", "--nodes", "2", "--nccl", "2.28.9")
FULL = Path("/dev/full")
full_disk = pytest.mark.skipif(not FULL.exists(), reason="no /dev/full here")
ANSWERS = {
    "a table": ("edges", *ON),
    "json": ("pick", "allreduce", *ON, "--json"),
    "lines for a shell": ("plugin", "env"),
    "help": ("pick", "--help"),
    "all verbs": ("--help",),
}


def ended(*words: str, stdout: object = subprocess.PIPE, stderr: object = subprocess.PIPE) -> tuple[int, str]:
    """The exit code, and what is on stderr where that is a pipe."""
    done = subprocess.run([COMMAND, *words], stdout=stdout, stderr=stderr, text=True, timeout=300)  # type: ignore[call-overload]
    return done.returncode, done.stderr


@pytest.mark.slow
@full_disk
@pytest.mark.parametrize("name", ANSWERS)
def test_a_full_disk_is_one_line(name: str) -> None:
    with FULL.open("w") as full:
        assert ended(*ANSWERS[name], stdout=full) == (2, "nccl-tuner: No space left on device\n")


@full_disk
def test_an_error_that_cannot_be_written_is_in_the_exit_code() -> None:
    with FULL.open("w") as full:
        assert ended("pick", "allreduce", stderr=full)[0] == 2
        assert ended("pick", "allreduce", *ON, stdout=full, stderr=full)[0] == 2


@full_disk
def test_measuring_onto_a_full_disk_is_one_line(tmp_path: Path) -> None:
    words = ("measure", "allreduce", "--backend", "simulated", *ON, "--bytes", "1M", "--rounds", "1", "--out")
    with FULL.open("w") as full:
        code, says = ended(*words, str(tmp_path / "run.jsonl"), stdout=full)
    assert (code, says.splitlines()[-1]) == (2, "nccl-tuner: No space left on device")
    assert "Traceback" not in says


@pytest.mark.slow
@pytest.mark.parametrize("name", ANSWERS)
def test_nobody_who_reads_is_no_answer(name: str) -> None:
    """128 + SIGPIPE, as shells have it; 1 would say that the answer is "no"."""
    read, write = os.pipe()
    os.close(read)
    try:
        assert ended(*ANSWERS[name], stdout=write) == (141, "")
    finally:
        os.close(write)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_an_encoding_without_the_lines_of_tables_ends_nothing(encoding: str) -> None:
    environment = os.environ | {"PYTHONIOENCODING": encoding}
    words = ("pick", "allreduce", *ON, "--bytes", "8")
    done = subprocess.run([COMMAND, *words], env=environment, capture_output=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"Tree/LL" in done.stdout


def of_shell(words: str) -> tuple[int, str, str]:
    """What a shell makes of ``nccl-tuner`` and the words after it, which may close streams."""
    done = subprocess.run(["sh", "-c", f"{COMMAND} {words}"], capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout, done.stderr


def test_a_closed_standard_output_is_one_line() -> None:
    for words in ("--help", "pick allreduce --machine dgx-h100"):
        assert of_shell(f"{words} >&-") == (2, "", "nccl-tuner: standard output is closed\n")
    assert of_shell("--help >&- 2>&- <&-") == (2, "", "")


def test_without_the_other_streams_there_is_an_answer() -> None:
    code, out, _ = of_shell("pick allreduce --machine dgx-h100 --bytes 1M <&- 2>&-")
    assert code == 0
    assert "1 MiB" in out
    assert of_shell("pick allreduce --machine dgx-h1000 <&- 2>&-") == (2, "", "")


@pytest.mark.parametrize("words", ["pick allreduce --bytes 1M", "graphs --json", "pick alltoall --nodes 2 --bytes 1M"])
def test_a_topology_comes_through_a_pipe_as_from_a_file(words: str) -> None:
    file = Path(__file__).parents[2] / "docs" / "examples" / "node.xml"
    code, out, says = of_shell(f"{words} --topology {file}")
    assert (code, says) == (0, "")
    assert of_shell(f"{words} --topology /dev/stdin < {file}")[1] == out.replace(str(file), "/dev/stdin")
    done = subprocess.run(
        ["sh", "-c", f"cat {file} | {COMMAND} {words} --topology /dev/stdin"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, out.replace(str(file), "/dev/stdin"), "")


def test_an_error_that_nobody_reads_keeps_its_exit_code() -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        assert ended("pik", stderr=write)[0] == 2
    finally:
        os.close(write)


INTERRUPTED_AT_IMPORT = """
import os, signal, sys
class Interrupts:
    def find_spec(self, name, path, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupts())
from tuner.__main__ import main
sys.argv = ["nccl-tuner", "machines"]
main()
"""


@pytest.mark.parametrize(
    ("module", "says"), [("tuner.cli", ""), ("click", ""), ("tuner.cli.machines", "\nnccl-tuner: interrupted\n")]
)
def test_an_interrupt_while_it_loads_ends_it_without_a_traceback(module: str, says: str) -> None:
    program = [sys.executable, "-c", INTERRUPTED_AT_IMPORT.format(module=module)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr, done.stdout) == (130, says, "")


def test_who_starts_it_to_ignore_interrupts_is_heeded() -> None:
    ignoring = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    program = [sys.executable, "-c", ignoring + INTERRUPTED_AT_IMPORT.format(module="click")]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_refusal_is_folded_on_a_terminal_and_one_line_in_a_pipe() -> None:
    asked = (COMMAND, "pick", "allreduce", "--machine", "dgx-h100", "--nccl", "2.99")
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    given = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    assert subprocess.run(asked, stdout=subprocess.DEVNULL, stderr=theirs, env=given, check=False).returncode == 2
    os.close(theirs)
    lines = os.read(ours, 1 << 16).decode().splitlines()
    os.close(ours)
    assert lines[0] == "nccl-tuner: no table for NCCL 2.99;"
    assert max(map(len, lines)) <= 80
    piped = subprocess.run(asked, capture_output=True, text=True, check=False).stderr
    assert piped.splitlines() == [" ".join(" ".join(lines).split())]
    assert "(all: nccl-tuner doctor)" in piped


def test_what_is_missing_is_named_with_an_example() -> None:
    done = run("pick", code=2)
    assert done.stderr.startswith("nccl-tuner: Missing argument 'COLLECTIVE|CALLS'; such as: nccl-tuner pick allreduce")


def test_a_compiled_file_that_was_cut_is_no_interrupt(tmp_path: Path) -> None:
    """CPython 3.11 keeps the part of a compiled file that a full disk takes, and ends later imports with EOFError."""
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(tmp_path), "PYTHONDONTWRITEBYTECODE": ""}
    words = [str(COMMAND), "machines"]
    whole = subprocess.run(words, capture_output=True, text=True, check=True, env=environment)
    (compiled,) = tmp_path.rglob("catalogue.*.pyc")
    compiled.write_bytes(compiled.read_bytes()[:60])
    cut = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
    assert (cut.returncode, cut.stderr.count("\n")) == (2, 2)  # click's own line is empty
    assert f"remove the *.pyc files below {tmp_path}" in cut.stderr
    compiled.unlink()
    assert subprocess.run(words, capture_output=True, text=True, check=True, env=environment).stdout == whole.stdout
