"""Measuring and deciding by processes that a launcher started, on simulated GPUs: fresh ones meet again and again."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.available_releases import HERE
from tests.support.double.settings import CUPY, DoubleEnvironment, DoubleSettings
from tuner.scenario import Scenario

RELEASE, RANKS = "2.28.9", 2
MEASURE = "measure allreduce --bytes 1K --rounds 6 --rounds-per-process 3 --repeats 3 --warmup 0 --out run.jsonl"
DECIDE = "decide run.jsonl --out run.table --processes 3 --rounds 6 --repeats 3 --apart-s 0.1"


MPIRUN = shutil.which("mpirun", path=str(Path(sys.executable).parent))


def launched(environment: DoubleEnvironment, folder: Path, words: str) -> tuple[int, str, str]:
    """Exit code, output and errors of the command, as mpirun starts it."""
    assert MPIRUN is not None
    variables = environment.variables()
    variables["PYTHONPATH"] = f"{folder / 'packages'}:{variables['PYTHONPATH']}"
    command = [sys.executable, "-c", "from tuner.cli import main; main()", *words.split()]
    done = subprocess.run(
        [MPIRUN, "-n", str(RANKS), *command, "--library", str(environment.library)],
        cwd=folder,
        env=variables,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.live
@pytest.mark.slow
@pytest.mark.skipif(RELEASE not in HERE, reason=f"no libnccl {RELEASE} here")
@pytest.mark.skipif(MPIRUN is None, reason="no mpirun here: pip install mpich mpi4py")
def test_every_rank_is_renewed_and_only_the_first_writes(tmp_path: Path) -> None:
    # Files that say that GPUs measured them, so that they are measured again as those are.
    shutil.copytree(CUPY, tmp_path / "packages" / "cupy")
    with (tmp_path / "packages" / "cupy" / "__init__.py").open("a") as file:
        file.write("\n\ndel nccl_tuner_header\n")
    scenario = Scenario(RELEASE, 1, machine="dgx-h100", gpus_per_node=RANKS)
    with DoubleEnvironment(DoubleSettings(scenario, seed=5, process_per_rank=True)) as environment:
        code, said, errors = launched(environment, tmp_path, MEASURE)
        assert (code, said.count("run.jsonl: ")) == (0, 1), said + errors
        header, *blocks = map(json.loads, (tmp_path / "run.jsonl").read_text().splitlines())
        assert (header["backend"], header["launcher"], header["ranks"]) == ("gpu", "mpirun", RANKS)
        assert {block.get("process", 0) for block in blocks} >= {0, 1}
        code, said, errors = launched(environment, tmp_path, DECIDE)
        assert code == 0, said + errors
    assert "kept     allreduce bytes=" in said
    gate = (tmp_path / "run.table.ab.jsonl").read_text().splitlines()[1:]
    assert {json.loads(line).get("process", 0) for line in gate} == {0, 1, 2}
