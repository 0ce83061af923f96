"""Measuring and deciding by processes that a launcher started, on simulated GPUs: fresh ones meet again and again."""

import json
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.available_releases import HERE
from tuner.bench.double.environment import CUPY, Environment
from tuner.bench.double.settings import DoubleSettings
from tuner.scenario import Scenario

RELEASE, RANKS = "2.28.9", 2
MEASURE = "measure allreduce --bytes 1K --rounds 6 --rounds-per-process 3 --repeats 3 --warmup 0 --out run.jsonl"
DECIDE = "decide run.jsonl --out run.table --processes 3 --rounds 6 --repeats 3"


def launched(environment: Environment, folder: Path, words: str) -> list[tuple[int, str]]:
    """Exit code and output of the command, by rank, as torchrun starts it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    processes = []
    for rank in map(str, range(RANKS)):
        said = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1"}
        variables = environment.variables() | said | {"MASTER_PORT": port, "TORCHELASTIC_RUN_ID": port}
        variables["PYTHONPATH"] = f"{folder}:{variables['PYTHONPATH']}"
        command = [sys.executable, "-c", "from tuner.cli import main; main()", *words.split()]
        processes.append(
            subprocess.Popen(
                [*command, "--library", str(environment.library)],
                cwd=folder,
                env=variables,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    return [(process.returncode, said) for process in processes for said in [process.communicate(timeout=300)[0]]]


@pytest.mark.live
@pytest.mark.slow
@pytest.mark.skipif(RELEASE not in HERE, reason=f"no libnccl {RELEASE} here")
def test_every_rank_is_renewed_and_only_the_first_writes(tmp_path: Path) -> None:
    # Files that say that GPUs measured them, so that they are measured again as those are.
    shutil.copytree(CUPY, tmp_path / "cupy")
    with (tmp_path / "cupy" / "__init__.py").open("a") as file:
        file.write("\n\ndel nccl_tuner_header\n")
    scenario = Scenario(RELEASE, 1, machine="dgx-h100", gpus_per_node=RANKS)
    with Environment(DoubleSettings(scenario, seed=5, process_per_rank=True)) as environment:
        (code, said), (other_code, other_said) = launched(environment, tmp_path, MEASURE)
        assert (code, other_code, other_said) == (0, 0, ""), said
        header, *blocks = map(json.loads, (tmp_path / "run.jsonl").read_text().splitlines())
        assert (header["backend"], header["launcher"], header["ranks"]) == ("gpu", "torchrun", RANKS)
        assert {block.get("process", 0) for block in blocks} >= {0, 1}
        (code, said), (other_code, other_said) = launched(environment, tmp_path, DECIDE)
        assert (code, other_code, other_said) == (0, 0, ""), said
    assert "kept     allreduce bytes=" in said
    gate = (tmp_path / "run.table.ab.jsonl").read_text().splitlines()[1:]
    assert {json.loads(line).get("process", 0) for line in gate} == {0, 1, 2}
