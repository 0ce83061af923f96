"""How a command ends that cannot go on: one line at most, never a traceback, and an exit code that is no answer."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command_line import COMMAND

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
