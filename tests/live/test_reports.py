"""Reports of NCCL's RAS server and its diagnostics, made by the library on simulated GPUs, as `diagnose` reads them.

Of the release that had the server first, of later ones, and of the newest: as text, and as JSON where there is that.
"""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.available_releases import is_here
from tests.support.command_line import run
from tests.support.programs import ROOT
from tuner.oracle.preloaded import preloaded
from tuner.scenario.describe import describe

PROGRAM = ROOT / "tests" / "support" / "reporting_program.py"
GREETING = "CLIENT PROTOCOL 2"
FORMS = {"text": (GREETING, "VERBOSE STATUS"), "json": (GREETING, "SET FORMAT json", "VERBOSE STATUS")}
REPORTS = [
    (name, form) for name in ("2.24.3", "2.27.7", "2.28.9", "2.30.7", "2.32.3") if is_here(name) for form in FORMS
]
WITH_JSON = ("2.28.9", "2.30.7", "2.32.3")
WELL = {"net bw", "CUDA driver version", "NCCL environment", "Xid/SXid", "Paths"}

pytestmark = pytest.mark.live


def reported(name: str, words: list[str], **given: str) -> subprocess.CompletedProcess[str]:
    """Runs the program with these words on four simulated GPUs."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    own = {key: value for key, value in os.environ.items() if not key.startswith(("NCCL_", "CUDA_"))}
    asked = describe(machine="dgx-h100", nccl=name, gpus_per_node=4).oracle_configuration()
    with preloaded(asked) as prepared:
        variables = prepared.variables({**own, "NCCL_RAS_ENABLE": "1", "NCCL_RAS_ADDR": address, **given})
        done = subprocess.run(
            [sys.executable, PROGRAM, *words], env=variables, capture_output=True, text=True, timeout=300
        )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def findings(*files: Path, code: int) -> dict[str, dict[str, object]]:
    """Codes with their facts, of all files."""
    done = json.loads(run("diagnose", *map(str, files), "--json", code=code).stdout)
    return {each["code"]: each["facts"] for file in done["files"] for each in file["findings"]}


@pytest.mark.parametrize(("name", "form"), REPORTS)
def test_a_rank_that_lacks_a_collective_is_named(name: str, form: str, tmp_path: Path) -> None:
    """One report may show a moment; a second one that says the same decides."""
    reported(name, ["behind", str(tmp_path / "report"), *FORMS[form]])
    first, second = tmp_path / "report.1", tmp_path / "report.2"
    assert ('"communicators"' in first.read_text()) == (form == "json" and name in WITH_JSON)
    for facts in (findings(first, code=3)["ras.behind"], findings(first, second, code=1)["ras.hang"]):
        assert (facts["ranks"], facts["counts"], facts["ahead"]) == ([3], [5], 6)
        assert facts["operation"] == ("AllReduce" if "AllReduce" in first.read_text() else "collective")


@pytest.mark.parametrize(("name", "form"), REPORTS)
def test_a_healthy_job_is_sound(name: str, form: str, tmp_path: Path) -> None:
    reported(name, ["healthy", str(tmp_path / "report"), *FORMS[form]])
    found = findings(tmp_path / "report.1", tmp_path / "report.2", code=0)
    assert "ras.sound" in found
    assert not found.keys() & {"ras.behind", "ras.hang"}


def test_diagnostics_name_ranks_whose_memory_others_do_not_reach(tmp_path: Path) -> None:
    """On simulated memory nothing is written: to NCCL it is as if no GPU reached another's."""
    said = reported(
        "2.32.3",
        ["healthy", str(tmp_path / "report"), GREETING, "STATUS"],
        NCCL_DEBUG="INFO",
        NCCL_RUN_DIAGNOSTICS="1",
        NCCL_RUN_RAS_DIAGNOSTICS="1",
    )
    (tmp_path / "log").write_text(said.stdout)
    found = findings(tmp_path / "log", code=1)
    assert found["diagnostics.found"]["check"] == "p2p"
    assert found["diagnostics.found"]["pairs"] == ["0 to 1", "0 to 2", "0 to 3", "1 to 0"]
    assert found["diagnostics.found"]["more_pairs"] == 8
    assert set(found["diagnostics.well"]["checks"]) == WELL  # type: ignore[call-overload]
