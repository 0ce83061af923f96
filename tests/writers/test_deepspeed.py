"""The summary that DeepSpeed's communication logger prints, of two ranks of PyTorch's CPU build with gloo."""

import subprocess
from pathlib import Path

import pytest

from tuner.base.names import Collective
from tuner.jobs.traces import deepspeed as reader

PROGRAM = """
import os, sys, torch, torch.multiprocessing as processes

def main(rank, ranks):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks))
    import deepspeed.comm as dist
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # which compiles a shorter way of its own
    file = f"file://{os.getcwd()}/store"
    dist.init_distributed("gloo", auto_mpi_discovery=False, init_method=file, rank=rank, world_size=ranks)
    dist.configure(enabled=True, prof_all=True, verbose=True, debug=False)
    for size in (1 << 18, 1 << 20):
        for _ in range(3):
            dist.all_reduce(torch.ones(size))
    dist.all_gather_into_tensor(torch.empty(ranks << 16), torch.ones(1 << 16))
    dist.reduce_scatter_tensor(torch.empty(1 << 16), torch.ones(ranks << 16))
    dist.broadcast(torch.ones(1000), 0)
    dist.log_summary()
    sys.stdout.flush()
    os._exit(0)

if __name__ == "__main__":
    processes.spawn(main, (2,), 2)
"""

pytestmark = pytest.mark.live  # else it connects to no other computer


def test_a_summary_is_read_with_its_sizes_and_ranks(torch_python: Path, deepspeed: Path, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    env = {"PYTHONPATH": str(deepspeed), "DS_ACCELERATOR": "cpu", "PATH": "/usr/bin:/bin"}
    words = [str(torch_python), "program.py"]
    said = subprocess.run(words, cwd=tmp_path, env=env, check=True, timeout=600, capture_output=True, text=True).stdout
    assert reader.is_text(said)
    read = reader.from_text("log", said, 2)
    found = [(each.collective, each.bytes, each.calls) for each in read.calls if each.collective is not None]
    assert found == [
        (Collective.AllReduce, 1 << 20, 3),
        (Collective.AllReduce, 4 << 20, 3),
        (Collective.AllGather, 2 << 18, 1),
        (Collective.ReduceScatter, 2 << 18, 1),
        (Collective.Broadcast, 4004, 1),  # 4,000, which it prints as 3.91 KB
    ]
    assert {each.ranks for each in read.calls} == {2}
