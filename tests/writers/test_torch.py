"""What PyTorch's CPU build writes with gloo: dumps of its Flight Recorder, pickled and JSON, of two ranks."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.command_line import run
from tuner.jobs.traces import flight_recorder

PROGRAM = """
import os, torch, torch.distributed as dist, torch.multiprocessing as processes
from torch._C import _distributed_c10d as c10d

def main(rank, ranks):
    dist.init_process_group("gloo", rank=rank, world_size=ranks, init_method=f"file://{os.getcwd()}/store")
    dist.all_reduce(torch.ones(1000, dtype=torch.float32))
    dist.all_gather([torch.empty(64, dtype=torch.bfloat16) for _ in range(ranks)], torch.ones(64, dtype=torch.bfloat16))
    dist.broadcast(torch.ones(7, dtype=torch.int64), 1)
    if rank == 0:
        dist.all_reduce(torch.ones(33, dtype=torch.float16), async_op=True)  # which rank 1 never calls
    open(f"trace_{rank}", "wb").write(c10d._dump_fr_trace())
    open(f"trace_{rank}.json", "wb").write(c10d._dump_fr_trace_json())
    os._exit(0)

if __name__ == "__main__":
    processes.spawn(main, (2,), 2)
"""

pytestmark = pytest.mark.live  # else it connects to no other computer


@pytest.fixture(scope="module")
def dumps(torch_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("torch")
    (folder / "program.py").write_text(PROGRAM)
    env = {"TORCH_FR_BUFFER_SIZE": "100", "PATH": "/usr/bin:/bin"}
    subprocess.run([torch_python, "program.py"], cwd=folder, env=env, check=True, timeout=300, capture_output=True)
    for each in ("program.py", "store"):
        (folder / each).unlink(missing_ok=True)
    return folder


CALLS = [
    ("all_reduce", ("Float",), (1000, 1000)),
    ("all_gather", ("BFloat16",), (64, 128)),
    ("broadcast", ("Long",), (7, 7)),
]


def test_calls_of_a_rank_with_their_sizes_and_types(dumps: Path) -> None:
    (group, calls), *_ = flight_recorder.read_dump(dumps / "trace_1", 1).calls.items()
    assert group.members == (0, 1)
    assert [(each.name, each.dtypes, each.elements) for each in calls.values()] == CALLS
    assert not any(each.waits for each in calls.values())


def test_json_holds_the_same_calls(dumps: Path) -> None:
    entries = json.loads((dumps / "trace_1.json").read_text())["entries"]
    assert [each["profiling_name"] for each in entries] == [f"gloo:{name}" for name, *_ in CALLS]


def test_the_rank_that_lacks_a_collective_is_named(dumps: Path, tmp_path: Path) -> None:
    for rank in range(2):
        shutil.copy(dumps / f"trace_{rank}", tmp_path)
    done = json.loads(run("diagnose", str(tmp_path), "--json", code=1).stdout)
    (behind,) = [each for each in done["files"][0]["findings"] if each["code"] == "recorder.behind"]
    assert (behind["facts"]["rank"], behind["facts"]["number"], behind["facts"]["name"]) == (1, 4, "all_reduce")
