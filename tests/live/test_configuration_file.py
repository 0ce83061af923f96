"""How libnccl reads the lines of nccl.conf, which is not how a shell does, and what diagnose and preflight rest on."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.available_releases import HERE
from tuner import release
from tuner.oracle import preloaded
from tuner.scenario.describe import describe

PROGRAM = """
from ctypes import CDLL, c_void_p
here, comms = CDLL(None), (c_void_p * 2)()
print("@@", here.ncclCommInitAll(comms, 2, None), flush=True)
"""
SUCCESS, INVALID_USAGE = 0, 5
NTHREADS, ALGO = "NCCL_NTHREADS set by environment to 128", "NCCL_ALGO set by environment to Ring"
WITH_FILE = [nccl for nccl in HERE if release.load(nccl).ranks.named_configuration_file]

pytestmark = pytest.mark.live


def started(nccl: str, content: bytes, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[int, str]:
    """Result of a communicator's start with this file, and NCCL's log."""
    file = folder / "nccl.conf"
    file.write_bytes(content)
    # NCCL's own reader of files stays: no other test wants this computer's.
    monkeypatch.setattr(preloaded, "_OWN_PROCESSES", preloaded._OWN_PROCESSES | {"setEnvFile"})
    own = {name: value for name, value in os.environ.items() if not name.startswith(("NCCL_", "CUDA_"))}
    log = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,ENV", "NCCL_CONF_FILE": str(file)}
    with preloaded.preloaded(describe(machine="dgx-h100", nccl=nccl, gpus_per_node=2).oracle_configuration()) as made:
        variables = made.variables({**own, **log, "HOME": str(folder)})
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], env=variables, capture_output=True, text=True, timeout=120, check=True
        )
    return int(done.stdout.rpartition("@@ ")[2].split()[0]), done.stdout


@pytest.mark.parametrize(
    ("line", "result", "says"),
    [
        (b"NCCL_NTHREADS= 128", SUCCESS, NTHREADS),
        (b"NCCL_NTHREADS=128 # few", SUCCESS, NTHREADS),
        (b"NCCL_NTHREADS =128", SUCCESS, None),
        (b" NCCL_NTHREADS=128", SUCCESS, None),
        (b"export NCCL_NTHREADS=128", SUCCESS, None),
        (b'NCCL_NTHREADS="128"', SUCCESS, None),
        (b"NCCL_ALGO=Ring", SUCCESS, ALGO),
        (b"NCCL_ALGO=Ring\nNCCL_ALGO=Tree", SUCCESS, ALGO),
        (b"NCCL_ALGO= Ring", INVALID_USAGE, None),
        (b"NCCL_ALGO=Ring ", INVALID_USAGE, ALGO),
        (b"NCCL_ALGO=Ring # ours", INVALID_USAGE, ALGO),
        (b"NCCL_ALGO='Ring'", INVALID_USAGE, None),
    ],
)
@pytest.mark.parametrize("nccl", [nccl for nccl in WITH_FILE if nccl == "2.32.3"])
def test_lines(
    nccl: str, line: bytes, result: int, says: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended, log = started(nccl, line + b"\n", tmp_path, monkeypatch)
    assert ended == result
    assert (says or NTHREADS) in log if says else (NTHREADS not in log and ALGO not in log)


@pytest.mark.parametrize("nccl", WITH_FILE)
def test_the_end_of_a_line(nccl: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """2.30.3 and later drop a CR; before, it belongs to the word, which is no algorithm then."""
    ended, _ = started(nccl, b"NCCL_ALGO=Ring\r\n", tmp_path, monkeypatch)
    drops, refuses = release.load(nccl).ranks.drops_carriage_return, nccl != "2.23.4"
    assert ended == (SUCCESS if drops or not refuses else INVALID_USAGE)
